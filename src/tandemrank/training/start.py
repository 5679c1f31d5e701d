"""Where training starts when nobody has rated anything: from the clicks themselves, or from embeddings that one has.

    x[q, d] = log(1 + C / (r (E + 1))),   C clicks and E = sum_k theta_k shown_k examinations of the pair, r = sum C / sum E
    x ~ U V^T  (truncated SVD),           u_q = U_q / sigma(U_q) + m / sigma(m),   m the mean of U_q

A click counts for more where fewer looked; E + 1 keeps a lucky one at the last rank small. sigma(u) is the standard
deviation of the scores <u, v_d> over the items, so a query starts from its own taste and from what all like in equal
parts, however many clicks it has; without any it starts from what all like.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.logs import feedback
from tandemrank.logs.feedback import Feedback
from tandemrank.policies import features, stages, towers
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import LARGEST as WEIGHT
from tandemrank.policies.scorers import MatrixFactorisation, Scorer, truncated_svd
from tandemrank.policies.stages import Score, Stages
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LARGEST

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


class StartConfig(BaseModel):
    """The sizes of what training starts from; only those that it has may be given, the others are None."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    rank: int | None = Field(
        default=None, ge=1, le=LARGEST, description="dimension of the factorisation of the clicks; by default 50"
    )
    generator_width: int | None = Field(
        default=None, ge=1, le=LARGEST, description="hidden units of the generator's towers; by default 32"
    )
    generator_dimension: int | None = Field(
        default=None, ge=1, le=LARGEST, description="dimension of the generator's embeddings; by default 16"
    )
    ranker_width: int | None = Field(
        default=None, ge=1, le=LARGEST, description="hidden units of the re-ranker's towers; by default 128"
    )
    ranker_dimension: int | None = Field(
        default=None, ge=1, le=LARGEST, description="dimension of the re-ranker's embeddings; by default 64"
    )


RANK = {"rank": 50}
STAGES: tuple[Literal["generator", "ranker"], ...] = ("generator", "ranker")
TOWERS = {
    f"{stage}_{name}": size
    for stage in STAGES
    for name, size in zip(("width", "dimension"), stages.TOWERS[stage], strict=True)
}


@dataclass(frozen=True)
class Start:
    """What training starts from: a policy, or embeddings, or features; nothing at all means the clicks themselves.

    Embeddings and features are Parquet files or frames, each with its `query_id` or `item_id`; features of pairs have both.
    `stages`: which model each stage is, where they are not one; features are then for the models that take them, and a stage
    that is not named is that of the policy or of the embeddings, if there are any.
    """

    policy: TwoStagePolicy | None = None
    query_embeddings: FeatureSource | None = None
    item_embeddings: FeatureSource | None = None
    query_features: FeatureSource | None = None
    item_features: FeatureSource | None = None
    sizes: StartConfig = field(default_factory=StartConfig)
    pair_features: FeatureSource | None = None
    stages: Stages = field(default_factory=Stages)

    def __post_init__(self) -> None:
        """Refuses two starting points at once, embeddings of one side only, and sizes of what it is not."""
        given = [
            name
            for name, parts in (
                ("a policy", [self.policy]),
                ("embeddings", [self.query_embeddings, self.item_embeddings]),
                ("features", [self.query_features, self.item_features]),
            )
            if any(part is not None for part in parts)
        ]
        # A stage that is not asked for stays what is given; features alone make both of them two towers.
        own = self.stages.resolved(has_features=given == ["features"])
        object.__setattr__(self, "stages", own)
        if len([one for one in given if own.are_one or one != "features"]) > 1:
            raise ConfigError(f"training starts from one thing only; {' and '.join(given)} came.")
        stages.check_pairs(own, given=self.pair_features is not None)
        if (self.query_embeddings is None) != (self.item_embeddings is None):
            raise ConfigError("starting embeddings are needed of both sides, queries and items; those of one came.")
        asked = [name for name, size in self.sizes if size is not None]
        if wrong := [name for name in asked if name not in self._own_sizes()]:
            what = "a factorisation of the clicks" if wrong[0] == "rank" else "two towers of features"
            ours = f"training starts from {given[0] if given else 'the clicks'}" if own.are_one else own.words
            raise ConfigError(f"{wrong[0]} is a size of {what}, but {ours}. Leave it out.")

    def handing(self, score: Score) -> "Start":
        """With another `generator_score`."""
        return replace(self, stages=self.stages.handing(score))

    @property
    def is_features(self) -> bool:
        """Whether there are features of queries or items."""
        return self.query_features is not None or self.item_features is not None

    @property
    def is_towers(self) -> bool:
        """Whether both stages are two towers of features."""
        return self.is_features and self.stages.are_one

    @property
    def base(self) -> "Start":
        """What a factorisation starts from, where the stages are models of their own."""
        if self.stages.are_one:
            return self
        nothing = {"query_features": None, "item_features": None, "pair_features": None, "stages": Stages()}
        sizes = StartConfig(rank=self.sizes.rank)
        return replace(self, **nothing, sizes=sizes)  # type: ignore[arg-type]

    def _own_sizes(self) -> dict[str, int]:
        """The sizes that it has, with their defaults."""
        if self.is_towers:
            return TOWERS
        is_made = self.stages.are_one or "factorisation" in (self.stages.generator, self.stages.ranker)
        own = dict(RANK) if is_made and self.policy is None and self.query_embeddings is None else {}
        for stage in STAGES:
            if (size := self.stages.size(stage)) is not None:
                own |= {f"{stage}_width": size[0], f"{stage}_dimension": size[1]}
        return own

    def resolved(self, log: Feedback, *, posterior: bool) -> "Start":
        """With every size that it has filled in; the posterior of a log has the dimensions that its log decides.

        A log of few clicked items has no room for many dimensions: at most half as many as there are, of items or queries.
        Beyond its rank a matrix has no singular vectors that the same log would give twice.
        """
        sizes = {name: getattr(self.sizes, name) or size for name, size in self._own_sizes().items()}
        if posterior and "rank" in sizes:
            if self.sizes.rank is not None:
                raise ConfigError(
                    f"rank = {self.sizes.rank} is a size of a factorisation of the clicks, but training starts from the "
                    "posterior of the log. Leave it out, or start from the factorisation (initial = given)."
                )
            del sizes["rank"]
        elif "rank" in sizes:
            clicked = log.clicks > 0
            most = min(len(np.unique(log.query[clicked])), len(np.unique(log.item[clicked]))) // 2
            sizes["rank"] = min(sizes["rank"], max(most, 1))
        return replace(self, sizes=StartConfig(**sizes))

    def with_tables(self) -> "Start":
        """With its tables of features as frames: read, and checked, once."""
        tables = {
            f"{side}_features": features.read(source, f"{side}_id")
            for side, source in (("query", self.query_features), ("item", self.item_features))
            if source is not None
        }
        return replace(self, **tables)  # type: ignore[arg-type]

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        if not self.stages.are_one:
            if "factorisation" not in (self.stages.generator, self.stages.ranker):
                return self.stages.words
            return f"{self.stages.words}; factorisation: {self.base.words.removesuffix(', both stages')}"
        if self.policy is not None:
            return "a saved policy, both stages"
        if self.query_embeddings is not None:
            return "the given embeddings, both stages"
        s = self.sizes
        if self.is_towers:
            return (
                f"two towers of features: generator {s.generator_width} wide, {s.generator_dimension} dimensions; "
                f"re-ranker {s.ranker_width} wide, {s.ranker_dimension} dimensions"
            )
        if s.rank is None:
            return "the posterior of the log, with its memory, both stages"
        return f"matrix factorisation of the clicks, {s.rank} dimensions, both stages"


def initial_pair(start: Start, log: Feedback, theta: ArrayLike, *, K2: int, K: int, seed: int) -> TwoStagePolicy:
    """The pair before training, of a start that is resolved; `log` are the clicks of the part for training alone.

    Shapes: theta [K].
    """
    vocabulary = log.vocabulary
    generator: Scorer
    ranker: Scorer
    if start.policy is not None:
        return replace(start.policy, K2=K2, K=K)
    if start.query_embeddings is not None and start.item_embeddings is not None:
        generator = ranker = from_embeddings(start.query_embeddings, start.item_embeddings, vocabulary)
    elif start.is_towers:
        generator, ranker = (
            towers.from_features(
                start.query_features, start.item_features, vocabulary, width=getattr(start.sizes, f"{stage}_width"),
                dimension=getattr(start.sizes, f"{stage}_dimension"), seed=derive(seed, "start", stage) % 2**32,
            )
            for stage in ("generator", "ranker")
        )  # fmt: skip
    else:
        rank = start.sizes.rank or RANK["rank"]
        generator = ranker = from_clicks(log, theta, rank, seed=derive(seed, "start") % 2**32)
    return TwoStagePolicy(generator, ranker, K2, K, vocabulary)
