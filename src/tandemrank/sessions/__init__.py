"""Sessions: a sequence of lists, in which a click decides what comes next.

- `reading`: a log of sessions: its steps in order, and the state before each
- `estimators`: what a policy is worth over sessions: arrays in, an estimate out
- `valuation`: `estimate`: value, interval, bound, and down to which step the log supports a policy
- `foresight`: what clicks lead to, from the end of a session to its start
- `learning`: `learn`: both stages, for what a click leads to
- `simulation`: a world with boredom, influence and leaving, logs of it, and the truth; `environment`: the same for gymnasium
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tandemrank._base import modules_of

# The verbs of the room, as `tr.sessions.estimate`: imported, as its modules are, at their first use.
_HOME = {"estimate": "valuation", "learn": "learning", "read": "reading"}

if TYPE_CHECKING:
    from tandemrank.sessions.learning import learn as learn
    from tandemrank.sessions.reading import read as read
    from tandemrank.sessions.valuation import estimate as estimate
else:
    _modules = modules_of(__name__)

    def __getattr__(name: str) -> object:
        """A verb, or a module."""
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name) if name in _HOME else _modules(name)
