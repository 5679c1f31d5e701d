"""Plackett-Luce lists, and the gradients of what they show.

- `plackett_luce`: many lists from few rows of scores, for simulation; the paper's gradient, which `race` is held to
- `race`: exposures, utilities and their gradients by the race: our own contribution (docs/explanation/race.md)
- `single`: one query at a time, for live answers: its scores, whole or within bounds, and its lists
- `products`: factorised scores of very many documents, in blocks, and of some with gradients
- `lazy_race`: candidates out of very many documents without drawing every clock; without chance, exact retrieval
- `sparse_race`: the race gradient where the re-ranker scores candidates only
- `sparse_alone`: one stage alone over very many documents: lists, exposure, and the same gradient
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
