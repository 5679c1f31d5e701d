"""Policies by graded judgements (`beliefs.judgements`): R = rating / the highest rating, 0 of what nobody judged."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank.beliefs.judgements import read_judgements
from tandemrank.errors import DataError
from tandemrank.experiments.evaluation import evaluate, paired
from tandemrank.experiments.results import Evaluated
from tandemrank.policies.two_stage import TwoStagePolicy


def judge_by_qrels(
    policies: Mapping[str, TwoStagePolicy],
    path: str | Path,
    theta: ArrayLike,
    *,
    samples: int = 20,
    seed: int = 0,
) -> Evaluated:
    """Policies by a file of judgements, on the queries that all of them know; its notes say how many that leaves out.

    Relevant items that a policy does not know count in the best possible list: it cannot show them.  Shapes: theta [K].
    """
    rows = read_judgements(path)
    found = rows["rating"].max()
    if not isinstance(found, float | int) or not found > 0:
        raise DataError(f"{path}: expected some judgement above 0; got none.")
    judged = rows["query_id"].unique(maintain_order=True)
    known = np.ones(len(judged), np.bool_)
    for policy in policies.values():
        known &= _positions(policy.vocabulary.query_ids, judged, "query") >= 0
    if not known.any():
        raise DataError(
            f"{path}: expected judgements of queries that every policy knows; got none (first: {judged[0]!r})."
        )
    figures = {}
    for name, policy in policies.items():
        q = _positions(policy.vocabulary.query_ids, judged.filter(known), "query")
        relevance = relevance_of(rows, policy.vocabulary, float(found))
        figures[name] = evaluate(policy, relevance, theta, q, samples=samples, seed=seed)
    left = f"{int((~known).sum()):,} of {len(judged):,} judged queries are not known to every policy, and are left out"
    return paired(Path(path).name, figures, () if known.all() else [left])


def relevance_of(rows: pl.DataFrame, vocabulary: Vocabulary, highest: float) -> csr_matrix:
    """Judgements as relevance; items that the vocabulary does not have come after its own.  Shapes: -> [Q, D or more]."""
    q = _positions(vocabulary.query_ids, rows["query_id"], "query")
    d = _positions(vocabulary.item_ids, rows["item_id"], "item")
    unknown = d < 0
    other = rows["item_id"].filter(unknown).rank("dense").cast(pl.Int64).to_numpy()
    d = np.where(unknown, len(vocabulary.item_ids), d)
    d[unknown] += other - 1
    R, there = rows["rating"].to_numpy() / highest, (q >= 0) & (rows["rating"].to_numpy() > 0)
    D = max(len(vocabulary.item_ids), int(d.max(initial=-1)) + 1)
    return csr_matrix((R[there], (q[there], d[there])), shape=(len(vocabulary.query_ids), D))


def _positions(ids: pl.Series, wanted: pl.Series, what: str) -> NDArray[np.int64]:
    """Where ids are, -1 where they are not; texts of a file may be whole numbers of a policy."""
    if ids.dtype.is_integer() and wanted.dtype == pl.String:
        numbers = wanted.cast(pl.Int64, strict=False)
        found = positions_of(ids, numbers.fill_null(0), what, missing="mark")
        return np.where(numbers.is_null().to_numpy(), -1, found)
    wanted = wanted.cast(pl.String) if ids.dtype == pl.String else wanted
    return positions_of(ids, wanted, what, missing="mark")
