"""How a policy is asked in a session: by the state, if its queries are states, else by the query, the same at every step."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank._base.sparse import sums_by
from tandemrank.errors import PolicyError
from tandemrank.logs.feedback import Feedback
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions.reading import SessionLog

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """A log as one policy is asked about it.

    `by`: state or query_id. `policy` has an answer for all of them. `log`: the pairs that were shown, whose queries are what it
    is asked; `query` and `row`: where the situations, and the rows of their log, are in it. `unknown`: the share of the steps
    that it answers as the average query.  Shapes: query [situations]; row [P].
    """

    by: str
    policy: TwoStagePolicy
    log: Feedback
    query: Whole
    row: Whole
    unknown: float


def asked(policy: TwoStagePolicy, log: SessionLog, rows: Feedback) -> Asked:
    """The pairs of a log of situations (`rows`), as a policy is asked about them; one that it does not know is the average."""
    by = asked_by(policy, log.situations)
    ids = log.situations[by]
    used = rows.impressions > 0
    new = used & ~_known(policy, ids)
    if new.any():
        if plain_ids(ids).dtype != plain_ids(policy.vocabulary.query_ids).dtype:
            raise PolicyError(
                f"expected a policy of the states or the queries of the log, such as {log.situations['state'][0]!r} or "
                f"{log.situations['query_id'][0]!r}; its queries are such as {policy.vocabulary.query_ids[0]!r}."
            )
        try:
            policy = policy.with_queries(plain_ids(ids.filter(new)).unique(maintain_order=True))
        except PolicyError as error:
            raise PolicyError(
                f"expected a policy that knows every {by} of the log; it does not know {ids.filter(new)[0]!r}, and {error}"
            ) from error
    distinct = ids.unique().sort()
    code = positions_of(distinct, ids, "query")
    pair, row = np.unique(code[rows.query] * np.int64(rows.D) + rows.item, return_inverse=True)
    found = replace(
        rows,
        vocabulary=Vocabulary(distinct, rows.vocabulary.item_ids),
        query=(pair // rows.D).astype(np.int32),
        item=(pair % rows.D).astype(np.int32),
        rank=np.zeros(len(pair), np.int16),
        shown=sums_by(row, rows.shown, len(pair)),
        clicks=sums_by(row, rows.clicks, len(pair)),
        logged=None,
        impressions=sums_by(code, rows.impressions, len(distinct)),
        exact={},
        others=None,
    )
    share = float(rows.impressions[new].sum() / max(rows.N, 1.0))
    return Asked(by=by, policy=policy, log=found, query=code, row=row, unknown=share)


def asked_by(policy: TwoStagePolicy, situations: pl.DataFrame) -> str:
    """Whether the queries of a policy are the states of a log, or its queries: what it knows more of."""
    by_state, by_query = (float(_known(policy, situations[by]).mean()) for by in ("state", "query_id"))
    return "state" if by_state >= by_query and by_state > 0 else "query_id"


def _known(policy: TwoStagePolicy, ids: pl.Series) -> NDArray[np.bool_]:
    known = policy.vocabulary.query_ids
    if plain_ids(known).dtype != plain_ids(ids).dtype:
        return np.zeros(len(ids), np.bool_)
    return positions_of(known, ids, "query", missing="mark") >= 0
