"""Sessions while a policy is live: the last click of each, and how many lists ago it was.

The state of an answer is that of `logs.sessions`: the last click that was heard of before it, and the steps since. It is
logged with the answer, so that propensities are given the state, whatever clicks come late or to another replica. Of many
sessions those that nobody asked about for longest are forgotten; after a restart the journals have those of the last half hour.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tandemrank._base.ids import Id
from tandemrank.logs.sessions import MOST_SINCE
from tandemrank.serving.records import Impression, StoredEvent

MOST = 100_000  # sessions that are remembered, those asked about last


@dataclass(frozen=True)
class SessionState:
    """The item clicked last in a session, how many lists were shown since, the last list of all, and which of its items move
    the state: those below a click."""

    last_click: Id | None = None
    since: int = 0
    impression: str = ""
    items: tuple[Id, ...] = ()

    @property
    def id(self) -> str:
        """Before the next list, as a log has it."""
        last = "" if self.last_click is None else self.last_click
        return f"{last}|{min(self.since + 1, MOST_SINCE)}"


class LiveSessions:
    """The states of recent sessions; safe to use from several threads."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._states: OrderedDict[str, SessionState] = OrderedDict()
        self._of_impression: dict[str, str] = {}  # of the last list of each session
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._states)

    def state(self, session: str) -> SessionState:
        """Before its next list."""
        return self._states.get(session, SessionState())

    def shown(self, impression: Impression) -> None:
        """A list was given out; one without a session is nobody's."""
        if impression.session is None:
            return
        with self._lock:
            before = self._states.pop(impression.session, SessionState())
            self._of_impression.pop(before.impression, None)
            self._states[impression.session] = SessionState(
                last_click=before.last_click,
                since=before.since + 1,
                impression=impression.id,
                items=impression.items,
            )
            self._of_impression[impression.id] = impression.session
            if len(self._states) > self.most:
                _, oldest = self._states.popitem(last=False)
                self._of_impression.pop(oldest.impression, None)

    def clicked(self, events: Iterable[StoredEvent]) -> None:
        """Clicks on the last list of a session move its state, of several the one furthest down; others came too late."""
        with self._lock:
            for event in events:
                session = self._of_impression.get(event.impression) if event.type == "click" else None
                if session is not None and event.item in (items := self._states[session].items):
                    below = items[items.index(event.item) :]
                    self._states[session] = replace(self._states[session], last_click=event.item, since=0, items=below)

    def recover(self, impressions: Iterable[Impression], clicks: Iterable[StoredEvent]) -> None:
        """What journals have, in the order of time."""
        records: list[Impression | StoredEvent] = [*impressions, *clicks]
        for record in sorted(records, key=lambda one: one.time):
            if isinstance(record, Impression):
                self.shown(record)
            else:
                self.clicked([record])
