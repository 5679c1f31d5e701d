"""Plackett-Luce lists, and the gradients of what they show.

- `plackett_luce`: sampling and log-probability, functions only
- `race`: exposures, utilities and their gradients by the race: our own contribution (docs/race.md)
- `reinforce`: the paper's gradient, the reference that `race` is held to
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
