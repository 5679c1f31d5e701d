"""Where training starts when nobody has rated anything: from the clicks themselves, or from embeddings that one has.

    x[q, d] = log(1 + C / (r (E + 1))),   C clicks and E = sum_k theta_k shown_k examinations of the pair, r = sum C / sum E
    x ~ U V^T  (truncated SVD),           u_q = U_q / sigma(U_q) + m / sigma(m),   m the mean of U_q

A click counts for more where fewer looked; E + 1 keeps a lucky one at the last rank small. sigma(u) is the standard
deviation of the scores <u, v_d> over the items, so a query starts from its own taste and from what all like in equal
parts, however many clicks it has; without any it starts from what all like.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank._base.random import derive
from tandemrank.beliefs.vectors import Vectors, vectors_of
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.logs import feedback
from tandemrank.logs.feedback import Feedback
from tandemrank.policies import features, towers
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import LARGEST as WEIGHT
from tandemrank.policies.scorers import MatrixFactorisation, Scorer, truncated_svd
from tandemrank.policies.two_stage import TwoStagePolicy

SPREAD = 1.0  # standard deviation of a query's scores: its best items stand out, and yet others are drawn


def from_clicks(log: Feedback, theta: ArrayLike, rank: int, *, seed: int = 0) -> MatrixFactorisation:
    """Embeddings from the clicks of a log, by the formula above; a rank that is too high for the log is lowered.

    Shapes: theta [K] -> queries [Q, rank], items [D, rank].
    """
    if rank < 1:
        raise ConfigError(f"expected a rank of 1 or more for the embeddings; {rank} came.")
    if min(log.Q, log.D) < 2:
        raise LogError(f"expected at least 2 queries and 2 items to factorise; the log has {log.Q} and {log.D}.")
    if not log.clicks.any():
        raise LogError(f"expected clicks to start from; none of {log.N:g} impressions has one. Give a longer log.")
    U, V = truncated_svd(_evidence(log, np.asarray(theta, np.float64)), min(rank, min(log.Q, log.D) - 1), seed=seed)
    m = U.sum(0, keepdims=True)
    queries = _unit(U, V) + _unit(m, V)
    spread = np.sqrt(np.mean(_spread(queries, V) ** 2))
    scale = np.sqrt(SPREAD / spread) if spread > 0 else 1.0
    return MatrixFactorisation(queries * scale, V * scale)


def _evidence(log: Feedback, theta: NDArray[np.float64]) -> csr_matrix:
    """x of every clicked pair.  Shapes: -> [Q, D] sparse."""
    examined = feedback.exposure(log, theta)
    pairs = [csr_matrix((x, (log.query, log.item)), shape=(log.Q, log.D)) for x in (log.clicks, examined)]
    C, E = pairs  # both have the pattern of the shown pairs, in the same order
    r = log.clicks.sum() / examined.sum()
    x = csr_matrix((np.log1p(C.data / (r * (E.data + 1))), C.indices, C.indptr), shape=C.shape)
    x.eliminate_zeros()
    return x


def _spread(queries: NDArray[np.float32], items: NDArray[np.float32]) -> NDArray[np.float32]:
    """sigma: the standard deviation of each query's scores, without the scores themselves.  Shapes: [Q, F], [D, F] -> [Q]."""
    centred = items - items.mean(0)
    covariance = centred.T @ centred / len(items)
    variance: NDArray[np.float32] = np.einsum("qf,qf->q", queries @ covariance, queries)
    sigma: NDArray[np.float32] = np.sqrt(variance.clip(min=0))
    return sigma


def _unit(queries: NDArray[np.float32], items: NDArray[np.float32]) -> NDArray[np.float32]:
    """Each query with scores of standard deviation 1; one that scores all items alike, but for rounding, is 0."""
    sigma = _spread(queries, items)
    apart = sigma > 1e-5 * np.linalg.norm(queries, axis=1).max() * np.linalg.norm(items, axis=1).max()
    return queries * np.where(apart, 1 / np.where(apart, sigma, 1), 0).astype(np.float32)[:, None]


def from_embeddings(
    query_embeddings: FeatureSource, item_embeddings: FeatureSource, vocabulary: Vocabulary
) -> MatrixFactorisation:
    """Given embeddings, as they are: tables with `query_id` or `item_id`, and `embedding`, a list of numbers.

    The scores are the products, and the policy is Plackett-Luce on them: they should differ by a few units, not hundreds.
    """
    queries = _embeddings(query_embeddings, "query_id", vocabulary.query_ids)
    items = _embeddings(item_embeddings, "item_id", vocabulary.item_ids)
    if queries.shape[1] != items.shape[1]:
        raise DataError(
            f"column embedding: those of queries have {queries.shape[1]} numbers and those of items {items.shape[1]}. "
            f"Both sides must come from one model."
        )
    return MatrixFactorisation(queries, items)


def _embeddings(source: FeatureSource, id_column: str, ids: pl.Series) -> NDArray[np.float32]:
    """The embeddings of `ids`, every row of the table checked.  Shapes: ids [n] -> [n, F]."""
    frame, name = features.table(source, id_column)
    if "embedding" not in frame.columns:
        raise DataError(f"{name}: expected a column embedding; the columns are {', '.join(frame.columns)}.")
    column = frame["embedding"]
    dtype = column.dtype
    if not (isinstance(dtype, pl.List | pl.Array) and dtype.inner is not None and dtype.inner.is_numeric()):
        raise DataError(f"{name}, column embedding: expected lists of numbers; {dtype} came.")
    lists = column.cast(pl.List(pl.Float32))
    length = lists.list.len().fill_null(0)
    wrong = (length != length[0]) | (length == 0)
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{name}, row {row}, column embedding: expected {length[0] or 'some'} numbers, as in row 0; {length[row]} came."
        )
    values = lists.list.explode().fill_null(np.nan).to_numpy().reshape(len(frame), -1)
    finite = (np.abs(values) <= WEIGHT).all(1)
    if not finite.all():
        row = int(finite.argmin())
        raise DataError(
            f"{name}, row {row}, column embedding: expected finite numbers, at most {WEIGHT:g} in size; "
            f"{str(column[row].to_list())[:100]} came. "
            f"{(~finite).sum()} rows have the problem."
        )
    return values[features.rows(frame, id_column, ids, name)]


RANK = 50  # of the factorisation of the clicks
# Hidden units and dimension of two towers: the generator scores every item, so it is the smaller model.
TOWERS: dict[Literal["generator", "ranker"], tuple[int, int]] = {"generator": (32, 16), "ranker": (128, 64)}


@dataclass(frozen=True)
class Start:
    """What training starts from: a policy, or embeddings, or features; nothing at all means the clicks themselves.

    Embeddings and features are Parquet files or frames, each with its `query_id` or `item_id`.
    """

    policy: TwoStagePolicy | None = None
    query_embeddings: FeatureSource | None = None
    item_embeddings: FeatureSource | None = None
    query_features: FeatureSource | None = None
    item_features: FeatureSource | None = None

    def __post_init__(self) -> None:
        """Refuses two starting points at once, and embeddings of one side only."""
        if len(given := self._given) > 1:
            raise ConfigError(f"training starts from one thing only; got {' and '.join(given)}.")
        if (self.query_embeddings is None) != (self.item_embeddings is None):
            raise ConfigError("expected embeddings of both sides, queries and items; got those of one.")

    @property
    def _given(self) -> list[str]:
        kinds = {
            "a policy": (self.policy,),
            "embeddings": (self.query_embeddings, self.item_embeddings),
            "features": (self.query_features, self.item_features),
        }
        return [name for name, parts in kinds.items() if any(part is not None for part in parts)]

    @property
    def is_features(self) -> bool:
        """Whether both stages are two towers of features."""
        return self._given == ["features"]

    def with_tables(self) -> "Start":
        """With its tables of features as frames: read, and checked, once."""
        tables = {
            f"{side}_features": features.read(source, f"{side}_id")
            for side, source in (("query", self.query_features), ("item", self.item_features))
            if source is not None
        }
        return replace(self, **tables)  # type: ignore[arg-type]

    def vectors(self, vocabulary: Vocabulary) -> Vectors | None:
        """Its vectors, the prior of the beliefs; None where it has none.  Shapes: -> [Q, F], [D, F]."""
        if self.query_embeddings is not None and self.item_embeddings is not None:
            given = from_embeddings(self.query_embeddings, self.item_embeddings, vocabulary)
            return Vectors(given.queries.detach().numpy(), given.items.detach().numpy())
        return vectors_of(self.policy, vocabulary)

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        if self.policy is not None:
            return "a saved policy, both stages"
        if self.query_embeddings is not None:
            return "the given embeddings, both stages"
        if self.is_features:
            return "two towers of features, one pair of them for each stage"
        return "the clicks of the log"


def initial_policy(start: Start, log: Feedback, theta: ArrayLike, *, K2: int, K: int, seed: int) -> TwoStagePolicy:
    """Both stages before training; `log` are the clicks of the part for training alone.

    A log of few clicked items has no room for many dimensions: at most half as many as there are, of items or queries.
    Beyond its rank a matrix has no singular vectors that the same log would give twice.
    Shapes: theta [K].
    """
    vocabulary = log.vocabulary
    generator: Scorer
    ranker: Scorer
    if start.policy is not None:
        return replace(start.policy, K2=K2, K=K)
    if start.query_embeddings is not None and start.item_embeddings is not None:
        generator = ranker = from_embeddings(start.query_embeddings, start.item_embeddings, vocabulary)
    elif start.is_features:
        generator, ranker = (
            towers.from_features(
                start.query_features,
                start.item_features,
                vocabulary,
                width=width,
                dimension=dimension,
                seed=derive(seed, "start", stage) % 2**32,
            )
            for stage, (width, dimension) in TOWERS.items()
        )
    else:
        clicked = log.clicks > 0
        most = min(len(np.unique(log.query[clicked])), len(np.unique(log.item[clicked]))) // 2
        generator = ranker = from_clicks(log, theta, min(RANK, max(most, 1)), seed=derive(seed, "start") % 2**32)
    return TwoStagePolicy(generator, ranker, K2, K, vocabulary)
