"""Deciding whether to ship: from what a log says about a policy to a decision. Reads `offpolicy`, never `training`.

- `decision`: `decide`: ship, canary or do not, for one policy or several, and why
- `planning`: what the log says at least, how long it would have to be for a yes, and what a canary would need
- `reasons`: its reasons, in words
- `guardrails`: what must not fall while another reward decides
- `segments`: better on average, and for whom not
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
