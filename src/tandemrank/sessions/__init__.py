"""Sessions: a sequence of lists, in which a click decides what comes next.

- `estimators`: what a policy is worth over sessions: arrays in, an estimate out
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
