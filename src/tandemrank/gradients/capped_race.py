"""Arrivals out of very many documents without looking at each: cells of neighbours, and a cap of the scores in each.

A cell's documents have scores of about x . m, m their mean. Let c be that and z standard deviations of the scores within the
cell: a guess from above. All arrivals of its n documents before a horizon T are a thinned Poisson stream, as those of the tail of
`lazy_race`: a Poisson number of proposals, n e^c T expected, each a uniform document at a uniform time, kept with chance
e^(s - c) at most 1; the first kept proposal of a document is its arrival. So

    s_d <= c    the law is exact
    s_d > c     the document is slowed down: its rate is e^c instead of e^(s_d)

and how much is lost by that is known without looking at everything. Each proposal that meets such a document is a witness: with
a = T e^c and r = T e^(s_d), a of them are expected and e^-a - e^-r arrivals lost, so the sum of (e^-a - e^-r) / a over them is an
unbiased estimate (`cells.Tally`). A cell for which proposals would cost more than its documents is opened: all get clocks, and
nothing is lost.
"""

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import chunks
from tandemrank.gradients.products import Entries, Source, refuse, room


def arrived(source: Source, log_T: NDArray[np.float32], keys: NDArray[np.uint64], K2: int) -> Entries:
    """All who arrive before the horizons: documents, scores, times [B, U, capacity] and how many there are [B, U].

    Shapes: log_T, keys [B, U].
    """
    from tandemrank.gradients import _capped_race_kernel as kernel
    from tandemrank.gradients._products_kernel import BLOCK

    cells = source.cells
    assert cells is not None
    capacity, filled = min(source.D, 2 * (K2 + BLOCK)), np.zeros(log_T.shape, np.int64)
    while True:
        docs, scores, times = (room((*log_T.shape, capacity), of) for of in (np.int32, np.float32, np.float32))
        lost, bad = np.zeros(log_T.shape), np.full(source.B, -1, np.int64)
        proposed, opened = np.zeros(source.B, np.int64), np.zeros(source.B, np.int64)
        filled[:] = 0
        kernel.scan(
            source.X, source.Y, cells.members, cells.start, cells.mean, cells.variance, cells.covariance,
            np.float32(cells.z), log_T, keys, chunks(source.B), docs, scores, times, filled, lost, proposed, opened, bad,
        )  # fmt: skip
        refuse(bad)
        if filled.max(initial=0) <= capacity:
            break
        capacity = int(filled.max())  # the same once more, with room for all
    cells.tally.add(filled, lost, proposed, opened)
    return docs, scores, times, filled
