"""A pair that is live: answers with known propensities, and a log that the next round learns from.

- `engine`: `Server`, which answers queries without any network
- `exploration`: how lists are drawn, and the exposure that follows from it
- `recorder`: impressions and events become segments of a click log
- `journal`: an append-only file that survives `kill -9`
- `replay`: every list drawn again from its key, and compared
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
