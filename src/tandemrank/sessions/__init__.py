"""Sessions: a sequence of lists, in which a click decides what comes next.

- `reading`: a log of sessions: its steps in order, and the state before each
- `estimators`: what a policy is worth over sessions: arrays in, an estimate out
- `baselines`: what the log says of steps without a click, and of what comes after them
- `asking`: how a policy is asked, by the state or by the query
- `valuation`: `estimate`: value, interval, bound, and down to which step the log supports a policy
- `foresight`: what clicks lead to, from the end of a session to its start
- `learning`: `learn`: both stages, for what a click leads to
- `world`: a world with boredom, influence and leaving; `simulation`: logs of it, and the truth; `environment`: for gymnasium
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
