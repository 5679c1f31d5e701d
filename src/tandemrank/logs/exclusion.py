"""Pairs that a query has clicked, or was shown: what a recommender that must not repeat leaves out."""

from typing import Literal, get_args

import numpy as np
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary, positions_of, same_ids
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback

Exclude = Literal["clicked", "shown"]


def check_exclude(asked: str) -> Exclude:
    """The name of what is left out; refuses any other."""
    if asked not in get_args(Exclude):
        raise ConfigError(f"exclude takes {' or '.join(get_args(Exclude))}; got {asked!r}.")
    return asked  # type: ignore[return-value]


def pairs_of(log: Feedback, what: Exclude, vocabulary: Vocabulary | None = None) -> csr_matrix:
    """1 at every pair that was clicked, or shown: positions of the log, or of another vocabulary.

    Queries and items that the other vocabulary does not have are left out.  Shapes: -> sparse [Q, D].
    """
    chosen = log.clicks > 0 if check_exclude(what) == "clicked" else log.shown > 0
    query, item = log.query[chosen].astype(np.int64), log.item[chosen].astype(np.int64)
    ids = log.vocabulary if vocabulary is None else vocabulary
    if not same_ids(ids, log.vocabulary):
        query = positions_of(ids.query_ids, log.vocabulary.query_ids, "query", missing="mark")[query]
        item = positions_of(ids.item_ids, log.vocabulary.item_ids, "item", missing="mark")[item]
        known = (query >= 0) & (item >= 0)
        query, item = query[known], item[known]
    shape = len(ids.query_ids), len(ids.item_ids)
    found = csr_matrix((np.ones(len(query), np.float32), (query, item)), shape=shape)
    found.data[:] = 1  # a pair at several ranks came several times
    return found
