"""Deciding whether to ship: from what a log says about a pair to a decision. Reads `offpolicy`, never `training`.

- `decision`: `decide`: ship, canary or do not, for one pair or several, and why
- `difference`: what the log says at least, and how long it would have to be for a yes
- `canary`: how much traffic a canary may have, and how long it takes
- `segments`: better on average, and for whom not
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
