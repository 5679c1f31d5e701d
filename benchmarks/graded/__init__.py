"""Beliefs: what a log says of the relevance of every pair (docs/beliefs.md).

From the sums of a log (`counts`) and features (`features`), `fitting` chooses constants by what is held out and fits a
`belief`. Its parts: graded relevance and the bit (`grades`, `noise`), levels of items (`levels`), production's own choice
(`choice`), models over features (`models`), vectors of queries and items (`vectors`); `turns` fits them one after the other.
"""

from graded.belief import Beliefs
from graded.counts import Counts
from graded.features import Features
from graded.fitting import fit

__all__ = ["Beliefs", "Counts", "Features", "fit"]
