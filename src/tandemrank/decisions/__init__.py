"""Deciding whether to ship: from what a log says about a policy to a decision. Reads `offpolicy`, never `training`.

- `decision`: `decide`: ship, canary or do not, for one policy or several, and why
- `planning`: what the log says at least, how long it would have to be for a yes, and what a canary would need
- `guardrails`: what must not fall while another reward decides, or in a segment: better on average, and for whom not
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
