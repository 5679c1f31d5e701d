"""The shown lists of a log, for fitting its logging policy: sums (`Feedback`) have none."""

from collections.abc import Iterator

import numpy as np

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import LogError
from tandemrank.logs.checks import examine
from tandemrank.logs.registry import IdRegistry
from tandemrank.logs.sources import Source, batches, describe
from tandemrank.offpolicy.logger import LISTS, Lists, lists_of


def read_lists(source: Source, vocabulary: Vocabulary, K: int, *, limit: int = LISTS) -> Lists:
    """The first lists of a log, with the checks of `logs.read`; every id must be in the vocabulary."""
    return lists_of(_parts(source, vocabulary, K), limit=limit)


def _parts(source: Source, vocabulary: Vocabulary, K: int) -> Iterator[Lists]:
    names = IdRegistry(vocabulary)
    for piece in batches(source):
        if piece.frame is None or piece.found:
            raise LogError(describe(piece, piece.found[0]))
        if not len(piece.frame):
            continue
        found, shown = examine(piece.frame, names, K)
        if shown is None:
            raise LogError(describe(piece, found[0]))
        padded = np.full((len(shown.query), K), -1, np.int64)
        padded[np.repeat(np.arange(len(shown.query)), shown.length), shown.rank] = shown.item
        yield Lists(shown.query.astype(np.int64), padded)
