"""`tr.read`: a log, read once."""

from pathlib import Path

import numpy as np

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine
from tandemrank.logs import reading
from tandemrank.logs.sources import Log, Source, View, is_frame, layout_of, paths, placed, plain_source


@checked
def read(source: Source, *, engine: Engine = "local") -> Log:
    """Reads a log once, with every check, and says how large it is. The first problem is refused by its place, and
    `validate` lists all of them. The log stays these files, whatever comes beside them later."""
    given = plain_source(source)
    if not is_frame(given) and not isinstance(given, View):
        given = [path.absolute() if isinstance(path, Path) else path for path in paths(given)]
    sums = reading.read(placed(given, layout_of(given)), engine=engine)
    return Log(
        source=given,
        impressions=sums.N,
        queries=int((sums.impressions > 0).sum()),
        items=len(np.unique(sums.item)),
        clicks=float(sums.clicks.sum()),
        list_length=int(sums.rank.max(initial=-1)) + 1,
    )
