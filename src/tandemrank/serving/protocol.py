"""uvicorn's connection, with limits that it does not have: the size of a head, and the time in which a request must arrive."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tandemrank.serving.limits import Limits


class BoundedConnection(HttpToolsProtocol):
    """Counts the bytes of a head, and knows since when it waits for the rest of a request."""

    limits = Limits()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection that says nothing is one that waits."""
        super().connection_made(transport)
        self.since: float | None = self.loop.time()
        self.received = self.head = 0

    def data_received(self, data: bytes) -> None:
        """Ends the connection where a request does not end."""
        if self.since is None:
            self.since, self.received = self.loop.time(), 0
        self.received += len(data)
        super().data_received(data)
        if self.received > self.limits.head + 2 * self.limits.body and self.since is not None:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A new head."""
        super().on_message_begin()
        self.head = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Refuses a head that is too long, as anything that is no HTTP."""
        super().on_header(name, value)
        self.head += len(name) + len(value)
        if self.head > self.limits.head:
            raise ValueError("the head of the request is too long")

    def on_message_complete(self) -> None:
        """The request is whole: from here on it is ours to be quick."""
        super().on_message_complete()
        self.since = None


def sweep(connections: set[Any], now: float, seconds: float) -> int:
    """Ends the connections whose request has not arrived in time; returns how many."""
    late = [c for c in list(connections) if getattr(c, "since", None) is not None and now - c.since > seconds]
    for connection in late:
        connection.transport.close()
    return len(late)
