"""Plackett-Luce lists, and the gradients of what they show.

- `plackett_luce`: many lists from few rows of scores, for simulation
- `race`: exposures, utilities and their gradients by the race: our own contribution (docs/race.md)
- `coarse`: scores within bounds from one byte per number, so that few of very many need be computed
- `single`: one list and one row of scores at a time, for live answers
- `products`: factorised scores of very many documents, in blocks: exact retrieval, scores of some with gradients
- `lazy_race`: candidates out of very many documents without drawing every clock; lists and exposure of one stage
- `sparse_race`: the race gradient where the re-ranker scores candidates only
- `sparse_alone`: the same of one stage alone
- `reinforce`: the paper's gradient, the reference that `race` is held to
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
