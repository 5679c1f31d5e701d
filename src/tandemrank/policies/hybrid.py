"""Hybrid retrieval: a generator that is a weighted sum of the scores of given retrievers (BM25, dense, popularity, ...).

    score(q, d) = sharpness sum_j w_j(q) z_j(q, d),      w(q) = softmax(a + A' x_q)
    z_j(q, d)   = (s_j(q, d) - min_d s_j) / (max_d s_j - min_d s_j)   over what retriever j found for q, 0 elsewhere

So weights are shares and z is the min-max normalisation, as search engines have them. What no retriever found is not available.
A query that the table does not have is answered as the average one: z is the mean over the queries that it has.
Training moves a and A, a few numbers; `serving.export` writes them for the engine that serves them.
"""

from collections.abc import Mapping

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank._base.frames import refuse_large
from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank._base.sparse import entries_of_rows
from tandemrank.errors import ConfigError, DataError
from tandemrank.policies import features
from tandemrank.policies.features import PAIR as IDS
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.own import Generator
from tandemrank.policies.scorers import Repeated, Scorer

PACE = 10.0  # how much faster these few numbers move than the vectors of items, which as many queries speak of
LEAST = 1e-3  # the smallest share to begin with: from 0 no step leads away


class Hybrid(Generator):
    """A weighted sum of retrievers.

    `scores`: a table with `query_id`, `item_id` and a column of numbers for each retriever, null where it did not find the
    item. `weights`: today's, by column; equal by default. `query_features`: a table of features by which weights may differ
    from query to query. `sharpness`: how little drawn candidates differ from the best ones. A frame is saved with the policy,
    of a file its path alone.

    Retrievers that are functions: a subclass with `names` and `retrieve(q)`.
    """

    names: tuple[str, ...] = ()

    def __init__(
        self,
        scores: FeatureSource | None = None,
        weights: Mapping[str, float] | None = None,
        query_features: FeatureSource | None = None,
        sharpness: float = 50.0,
    ) -> None:
        super().__init__()
        self.table = None if scores is None else _table(scores)
        if self.table is not None:
            self.names = tuple(name for name in self.table.columns if name not in IDS)
        if not self.names:
            raise DataError("expected a table with a column of scores for each retriever; got no such column.")
        if not 0 < sharpness < np.inf:
            raise ConfigError(f"sharpness: expected a number above 0; got {sharpness}.")
        self.features = None if query_features is None else features.read(query_features, "query_id")
        self.sharpness = float(sharpness)
        self.level = nn.Parameter(torch.from_numpy(np.log(_shares(self.names, weights)) / PACE).float())

    def prepare(self) -> None:
        assert self.vocabulary is not None
        ids = self.vocabulary
        if self.table is not None:
            first, item, raw = _by_query(self.table, ids)
            self.average = nn.Buffer(torch.from_numpy(_average(self.table, ids.item_ids)), persistent=False)
            self.first, self.item, self.raw = (
                nn.Buffer(torch.from_numpy(x), persistent=False) for x in (first, item, raw)
            )
        x = np.zeros((len(ids.query_ids), 0))
        if self.features is not None:
            x = features.numbers(self.features, "query_id", ids.query_ids)
        self.x = nn.Buffer(torch.from_numpy(x).float(), persistent=False)
        self.by_feature = nn.Parameter(torch.zeros(x.shape[1], len(self.names)))

    def retrieve(self, q: Tensor) -> Tensor:
        """The scores of the retrievers, NaN where one did not find the item.  Shapes: q [B] -> [B, D, R]."""
        assert self.vocabulary is not None
        found = torch.full((len(q), len(self.vocabulary.item_ids), len(self.names)), torch.nan)
        rows, entries = (torch.from_numpy(x) for x in entries_of_rows(self.first.numpy(), q.numpy()))
        found[rows, self.item[entries]] = self.raw[entries]
        return found

    def weights(self, q: Tensor) -> Tensor:
        """The shares of the retrievers.  Shapes: q [B] -> [B, R]."""
        return torch.softmax(PACE * (self.level + self.x[q] @ self.by_feature), 1)

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> Scorer:
        """By the table where it has them: made anew for its own queries and these, as it checks that it fits the first."""
        own = plain_ids(self._ids().query_ids).alias("query_id")
        every = pl.concat([own, plain_ids(ids.query_ids).alias("query_id")]).unique(maintain_order=True)
        made = self._for(Vocabulary(every, ids.item_ids), self._ids())
        return Repeated(made, positions_of(every, ids.query_ids, "query"))

    @property
    def shares(self) -> dict[str, float]:
        """The share of every retriever; where it depends on features, of the mean query."""
        assert self.vocabulary is not None
        with torch.no_grad():
            mean = self.weights(torch.arange(len(self.vocabulary.query_ids))).mean(0)
        return dict(zip(self.names, mean.tolist(), strict=True))

    def forward(self, q: Tensor) -> Tensor:
        z, found = normalised(self.retrieve(q))
        if self.table is not None:
            new = (self.first[q] == self.first[q + 1])[:, None]
            z = torch.where(new[..., None], self.average.nan_to_num(), z)
            found = found | (new & ~self.average.isnan().all(1))
        scores = self.sharpness * torch.einsum("bdr,br->bd", z, self.weights(q))
        return scores.masked_fill(~found, -torch.inf)


def normalised(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Scores from 0 to 1, the lowest and the highest that a retriever found, 0 where it did not; and whether any did.

    Of one height only they are 1.  Shapes: raw [B, D, R], NaN where not found -> [B, D, R], [B, D].
    """
    missing = raw.isnan()
    low = raw.masked_fill(missing, torch.inf).amin(1, keepdim=True)
    width = raw.masked_fill(missing, -torch.inf).amax(1, keepdim=True) - low
    z = torch.where(width > 0, (raw - low) / width, 1.0)
    return z.masked_fill(missing, 0.0), ~missing.all(2)


def _table(source: FeatureSource) -> pl.DataFrame:
    """The scores of retrievers, every column checked; NaN is null."""
    frame, name = features.table_of_pairs(source, "the table of retrievers")
    for column in frame.drop(IDS).get_columns():
        if not column.dtype.is_numeric():
            raise DataError(f"{name}, column {column.name}: expected the scores of a retriever; got {column.dtype}.")
        refuse_large(column, name)
    return frame


def _by_query(frame: pl.DataFrame, ids: Vocabulary) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """The rows of known queries and items, by query.  Shapes: -> first [Q + 1]; item [n]; raw [n, R]."""
    q, d = (
        positions_of(known, frame[column], column.removesuffix("_id"), missing="mark", owner="the log")
        for column, known in zip(IDS, (ids.query_ids, ids.item_ids), strict=True)
    )
    known = np.flatnonzero((q >= 0) & (d >= 0))
    if not len(known):
        raise DataError(
            f"expected scores of retrievers for queries and items of the log (first: query {ids.query_ids[0]!r}, item "
            f"{ids.item_ids[0]!r}); got none among {len(frame)} rows. Check that both come from the same data."
        )
    known = known[np.argsort(q[known], kind="stable")]
    raw = frame.drop(IDS).cast(pl.Float32).fill_null(np.nan).to_numpy()[known]
    first = np.searchsorted(q[known], np.arange(len(ids.query_ids) + 1))
    return first.astype(np.int64), d[known], np.ascontiguousarray(raw)


def _average(frame: pl.DataFrame, item_ids: pl.Series) -> NDArray[np.float32]:
    """The mean of z over all queries of the table, NaN of items that nobody found.  Shapes: -> [D, R]."""
    names, Q = frame.drop(IDS).columns, frame["query_id"].n_unique()
    columns = []
    for name in names:
        raw = pl.col(name).cast(pl.Float64).fill_nan(None)
        low, high = raw.min().over("query_id"), raw.max().over("query_id")
        z = pl.when(high > low).then((raw - low) / (high - low)).when(raw.is_not_null()).then(1.0)
        columns.append(z.alias(name))
    found = frame.select("item_id", *columns).filter(pl.any_horizontal(pl.col(names).is_not_null()))
    mean = found.group_by("item_id").agg(pl.col(names).fill_null(0.0).sum() / Q)
    place = features.places(mean, "item_id", item_ids)
    every = np.vstack([mean.drop("item_id").to_numpy(), np.full(len(names), np.nan)]).astype(np.float32)
    return every[place]


def _shares(names: tuple[str, ...], weights: Mapping[str, float] | None) -> NDArray[np.float64]:
    """Weights as shares, in the order of the names.  Shapes: -> [R]."""
    given = dict.fromkeys(names, 1.0) if weights is None else dict(weights)
    if set(given) != set(names):
        raise ConfigError(f"weights: expected one for each of {', '.join(names)}; got {', '.join(map(str, given))}.")
    found = np.array([given[name] for name in names], np.float64)
    if not (np.isfinite(found).all() and (found >= 0).all() and found.sum() > 0):
        raise ConfigError(f"weights: expected numbers of 0 or more, not all 0; got {given}.")
    found = np.maximum(found / found.sum(), LEAST)
    shares: NDArray[np.float64] = found / found.sum()
    return shares
