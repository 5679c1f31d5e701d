"""`TwoStagePolicy`: a candidate generator and a re-ranker, each Plackett-Luce on its scorer's scores."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from tandemrank._base import cluster, random
from tandemrank._base.arguments import checked, matrix
from tandemrank._base.cluster import Engine
from tandemrank._base.frames import Value, named
from tandemrank._base.ids import (
    Id,
    Ids,
    Vocabulary,
    checked_positions,
    id_series,
    in_batches,
    plain_ids,
    positions_of,
)
from tandemrank.clicks.models import check_examination
from tandemrank.errors import ConfigError, DataError, PolicyError
from tandemrank.gradients import race
from tandemrank.policies import candidates, features, storage
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import Scorer, checked_scores

if TYPE_CHECKING:
    from tandemrank.logs.titles import TitleSource

BATCH = 128
CANDIDATES = 500  # K2 where nothing says otherwise


def default_candidates(D: int, K: int) -> int:
    """K2 where nothing says otherwise: `CANDIDATES`, or all items if fewer; never below the length of a list."""
    return max(min(CANDIDATES, D), K)


@dataclass(frozen=True, repr=False)
class TwoStagePolicy:
    """Generator, re-ranker, K2 candidates, K shown. The one-stage policy is the case K2 = D.

    `trained_on`: the name (`logs.feedback.fingerprint`) of the log that it learnt from, which therefore cannot judge it.
    `about`: what `learn` says of it, for the card of the saved policy.
    """

    generator: Scorer
    ranker: Scorer
    K2: int
    K: int
    vocabulary: Vocabulary
    trained_on: str | None = field(default=None, compare=False, repr=False)
    about: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        Q, D = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
        stages = f"generator {self.generator.kind} picks {self.K2:,} of {D:,} items, re-ranker {self.ranker.kind} shows"
        if self.K2 == D:
            stages = f"one stage {self.ranker.kind}, of {D:,} items shows"
        return f"a policy for {Q:,} queries: {stages} {self.K}"

    def __post_init__(self) -> None:
        for name, kind in (("generator", Scorer), ("ranker", Scorer), ("vocabulary", Vocabulary)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(f"{name}: expected a {kind.__name__}; got {type(getattr(self, name)).__name__}.")
        for scorer in (self.generator, self.ranker):
            scorer.bind(self.vocabulary)
        Q, D = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
        for stage, scorer in (("generator", self.generator), ("ranker", self.ranker)):
            spec = scorer.spec()
            if (spec["Q"], spec["D"]) != (Q, D):
                raise PolicyError(
                    f"the {stage} scores {spec['Q']} queries and {spec['D']} items, but the vocabulary has {Q} and {D}."
                )
        if self.generator.needs_generator:
            raise PolicyError(f"a {self.generator.kind} needs a generator's scores: use it as the re-ranker.")
        object.__setattr__(self, "ranker", self.ranker.linked(self.generator))
        if not self.generator.scores_everything:
            raise PolicyError(
                f"a generator scores every item; a {self.generator.kind} scores candidates only. Use it as the re-ranker."
            )
        whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in (self.K, self.K2))
        if not (whole and 1 <= self.K <= self.K2 <= D):
            raise PolicyError(
                f"needed: 1 <= K <= K2 <= {D}, the number of items; got K = {self.K} (--list-length) and K2 = {self.K2} "
                "(--candidates)."
            )

    @property
    def is_large(self) -> bool:
        """Whether the re-ranker is asked about candidates only (`candidates`), and not about everything."""
        return candidates.is_large(self.generator, self.ranker)

    @property
    def exposes_sparsely(self) -> bool:
        """Whether exposures come from the sparse race, which looks at candidates and at what is asked for."""
        return candidates.exposes_sparsely(self.generator, self.ranker)

    def scores(self, q: ArrayLike) -> tuple[Tensor, Tensor]:
        """Both stages' scores.  Shapes: q [B] -> [B, D], [B, D]."""
        positions = torch.from_numpy(checked_positions(q, len(self.vocabulary.query_ids), "queries"))
        shape = len(positions), len(self.vocabulary.item_ids)
        s_c = checked_scores(self.generator(positions), shape, self.generator, "generator")
        if self.ranker is self.generator:
            return s_c, s_c
        return s_c, checked_scores(self.ranker(positions), shape, self.ranker, "re-ranker")

    def plain_scores(self, q: ArrayLike) -> tuple[Tensor, Tensor]:
        """The same without gradients, whatever a scorer returns: a view of its parameters too."""
        with torch.no_grad():
            s_c, s_r = self.scores(q)
        return s_c.detach(), s_r.detach()

    def parts(self, q: ArrayLike | None = None) -> Iterator[NDArray[np.int64]]:
        """Positions, a batch of queries at a time."""
        Q = len(self.vocabulary.query_ids)
        everything = np.arange(Q) if q is None else checked_positions(q, Q, "queries")
        return (everything[first : first + BATCH] for first in range(0, len(everything), BATCH))

    def batches(self, q: ArrayLike | None = None) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Positions and scores without gradients, a batch of queries at a time: memory is O(batch x D)."""
        for part in self.parts(q):
            s_c, s_r = self.plain_scores(part)
            yield part, s_c, s_r

    @checked
    def most_likely(self, q: ArrayLike | None = None, *, exclude: csr_matrix | None = None) -> NDArray[np.int32]:
        """The list shown if both stages take their highest scores, as positions.

        Pairs that `exclude` has an entry for are not available: the next ones move up, in both stages.
        Shapes: q [n]; exclude [Q, D] -> [n, K].
        """
        pairs = None if exclude is None else self._checked(exclude)
        lists = [np.empty((0, self.K), np.int32)]
        if self.is_large:
            lists += [
                candidates.most_likely(self, part, None if pairs is None else pairs[part]) for part in self.parts(q)
            ]
            return np.concatenate(lists)
        for part, s_c, s_r in self.batches(q):
            available = s_c if pairs is None else without(s_c, pairs[part])
            lists.append(race.most_likely(available, s_r, self.K2, self.K))
        return np.concatenate(lists)

    def _checked(self, exclude: csr_matrix) -> csr_matrix:
        """Pairs by rows, of the vocabulary's size."""
        pairs = matrix("exclude", exclude, drop_zeros=True)
        size = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
        if pairs.shape != size:
            raise PolicyError(
                f"pairs to exclude have the shape {pairs.shape}, but the policy has {size[0]} queries and {size[1]} items. "
                "Take them of the policy's vocabulary (`logs.pairs.pairs_of`)."
            )
        return pairs

    @checked
    def recommend(
        self,
        query_ids: Ids | Id | None = None,
        *,
        exclude: csr_matrix | pl.DataFrame | None = None,
        sample: bool = False,
        seed: int = 0,
        unknown: Literal["average", "refuse", "empty"] = "average",
        query_features: FeatureSource | None = None,
        item_features: FeatureSource | None = None,
        pair_features: FeatureSource | None = None,
        context: Mapping[str, Value] | None = None,
        titles: "TitleSource | Sequence[TitleSource] | None" = None,
    ) -> pl.DataFrame:
        """The most likely list in outside ids, of one query or of several: a row each, `query_id` and `items`, top first.

        `unknown`: what a query gets that the policy does not know: the list of the average query, where the policy has one and
        else a refusal; a refusal; or an empty list.

        `sample`: a drawn list instead, one for each row by the seed: what the next round of learning needs, and what the value
        of a pair is of (`MostLikely` values the others). Give every request a seed of its own.
        `exclude`: what must not be shown, as positions (`logs.pairs.pairs_of` has them from a log), or as a frame with a
        row per pair, `query_id` and `item_id`; ids that the policy does not know are no matter.
        `query_features`, `item_features`, `pair_features`: tables of queries, items and pairs that the policy has not seen,
        which are then known by their features. `context`: that of all these lists (`in_context`).
        `titles`: a table, or one of items and one of queries, with `item_id` or `query_id` and `title`: two columns more,
        `query_title` and `titles`; whoever has none keeps the id.
        A list is shorter than K where fewer items are available to the query, and empty where none is.
        """
        larger = extended(self, query_features=query_features, item_features=item_features, pair_features=pair_features)
        larger = larger if context is None else larger.in_context(context)
        if larger is not self:
            return larger.recommend(
                query_ids, exclude=exclude, sample=sample, seed=seed, unknown=unknown, titles=titles
            )
        known = self.vocabulary.query_ids
        ids = known.alias("query_id") if query_ids is None else id_series("query_id", _several(query_ids))
        if not len(ids):
            ids = ids.cast(known.dtype)
        pairs = self._pairs(exclude) if isinstance(exclude, pl.DataFrame) else exclude
        if unknown not in ("average", "refuse", "empty"):
            raise ConfigError(f"unknown must be average, refuse or empty; got {unknown!r}.")
        if sample and pairs is not None:
            raise PolicyError(
                "drawn lists take no pairs to exclude. Ask for the most likely lists, or without exclude."
            )
        at = self.vocabulary.queries(ids) if unknown == "refuse" else positions_of(known, ids, "query", missing="mark")
        there = at >= 0
        shown = np.full((len(ids), self.K), -1, np.int32)
        keys = random.random_keys(seed, random.Stream.LISTS, np.arange(len(ids)))
        shown[there] = self.sample(at[there], keys[there]) if sample else self.most_likely(at[there], exclude=pairs)
        if unknown == "average" and not there.all():
            other = self._average(ids)
            rows = np.zeros((~there).sum(), np.int64)
            shown[~there] = other.sample(rows, keys[~there]) if sample else other.most_likely([0])
        found = self._frame(ids, shown)
        return found if titles is None else _titled(found, titles)

    def _average(self, ids: pl.Series) -> "TwoStagePolicy":
        """The policy for one query that it does not know; where it has no answer, those of some ids are refused by name."""
        known = self.vocabulary.query_ids
        try:
            return self.strangers(pl.Series([0 if known.dtype.is_integer() else ""], dtype=known.dtype))
        except PolicyError:
            self.vocabulary.queries(ids)
            raise

    def _frame(self, ids: pl.Series, shown: NDArray[np.int32]) -> pl.DataFrame:
        """Lists in outside ids, each up to where it ends.  Shapes: ids [n]; shown [n, K]."""
        items = self.vocabulary.item_ids.gather(np.maximum(shown, 0).ravel())
        whole = items.reshape(shown.shape).cast(pl.List(items.dtype)) if len(ids) else items.cast(pl.List(items.dtype))
        long = pl.Series("long", (shown >= 0).sum(1))
        frame = pl.DataFrame([ids.alias("query_id"), whole.alias("items"), long])
        return frame.select("query_id", pl.col("items").list.head("long"))

    def _pairs(self, frame: pl.DataFrame) -> csr_matrix:
        """The positions of a frame's pairs.  Shapes: -> sparse [Q, D]."""
        if not {"query_id", "item_id"} <= set(frame.columns):
            raise PolicyError(f"pairs to exclude have the columns query_id and item_id; got {frame.columns}.")
        ids = self.vocabulary
        q = positions_of(ids.query_ids, frame["query_id"], "query", missing="mark", owner="the policy")
        d = positions_of(ids.item_ids, frame["item_id"], "item", missing="mark", owner="the policy")
        known = (q >= 0) & (d >= 0)
        return csr_matrix(
            (np.ones(known.sum(), np.float32), (q[known], d[known])), shape=(len(ids.query_ids), len(ids.item_ids))
        )

    @checked
    def sample(
        self, q: ArrayLike, keys: NDArray[np.uint64], progress: Callable[[int], None] | None = None
    ) -> NDArray[np.int32]:
        """One drawn list for each (query, key), as positions: the sampler of `clicks.simulate`; `progress` hears how many are.

        Shapes: q [n], keys [n] -> [n, K]; -1 where too few items are available.
        """
        q = checked_positions(q, len(self.vocabulary.query_ids), "queries")
        keys = _whole_numbers("keys", keys)
        if keys.shape != q.shape:
            raise PolicyError(f"keys: expected one key per query, {len(q)}; got the shape {keys.shape}.")
        shown = np.empty((len(q), self.K), np.int32)
        done = 0
        for part, chosen, rows in in_batches(q, BATCH):
            shown[chosen] = self.draw(part, rows, keys[chosen])
            done += len(chosen)
            if progress:
                progress(done)
        return shown

    def draw(self, q: NDArray[np.int64], rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The same for a batch of queries and any number of lists of each.  Shapes: q [B]; rows, keys [n] -> [n, K]."""
        if self.is_large:
            return candidates.draw(self, q, rows=rows, keys=keys)
        return race.draw(*self.plain_scores(q), self.K2, self.K, rows=rows, keys=keys)

    @checked
    def exposure(
        self,
        q: ArrayLike,
        item: ArrayLike,
        theta: ArrayLike,
        *,
        samples: int = 100,
        seed: int = 0,
        engine: Engine = "local",
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """rho_cr of (query, item) pairs, and its standard error, by the race.  Shapes: q, item [n] -> [n], [n].

        Queries with the same scores share their races, so a policy that does not know its users costs one query. The engine
        ray shares the queries out over a cluster: the same numbers.
        """
        q = checked_positions(q, len(self.vocabulary.query_ids), "queries")
        item = checked_positions(item, len(self.vocabulary.item_ids), "items")
        if len(q) != len(item):
            raise PolicyError(f"pairs have one query and one item each; got {len(q)} queries and {len(item)} items.")
        _generator(seed)
        curve = torch.from_numpy(check_examination(theta)).float()
        order, rho, error = np.argsort(q, kind="stable"), np.empty(len(q)), np.empty(len(q))
        distinct, row = np.unique(q[order], return_inverse=True)
        parts, cuts = [], self.cuts(-(-len(distinct) // BATCH), engine)
        for start, stop in cuts:
            own, bounds = distinct[start * BATCH : stop * BATCH], [start * BATCH, stop * BATCH]
            rows = slice(*np.searchsorted(row, bounds))
            policy, places = (self, own) if len(cuts) == 1 else (self.of_queries(own), np.arange(len(own)))
            parts.append((policy, start, places, row[rows] - start * BATCH, item[order[rows]]))
        found = cluster.mapped(_exposures, parts, curve, samples, seed)
        rho[order], error[order] = (np.concatenate(x) for x in zip(*found, strict=True))
        return rho, error

    def _exposure(
        self,
        q: NDArray[np.int64],
        rows: NDArray[np.int64],
        item: NDArray[np.int64],
        theta: Tensor,
        samples: int,
        generator: torch.Generator,
    ) -> tuple[Tensor, Tensor]:
        """The same for a batch of queries.  Shapes: q [B]; rows, item [n] -> [n], [n]."""
        D = len(self.vocabulary.item_ids)
        if self.exposes_sparsely:
            first, kind = candidates.distinct(self, q)
            wanted, inverse = np.unique(kind[rows] * D + item, return_inverse=True)
            pairs = _pattern(wanted, len(first), D)
            found = candidates.exposure(self, q[first], theta, pairs, samples=samples, generator=generator)
        else:
            s_c, s_r = self.plain_scores(q)
            unique, row_of = _unique_rows(s_c, s_r)
            wanted, inverse = np.unique(row_of[rows] * D + item, return_inverse=True)
            found = race.exposure(
                s_c[unique], s_r[unique], theta, self.K2, samples=samples, generator=generator,
                documents=_pattern(wanted, len(unique), D),
            )  # fmt: skip
        return found[0][inverse], found[1][inverse]

    @checked
    def utility(self, weights: csr_matrix, theta: ArrayLike, *, samples: int = 4, seed: int = 0) -> NDArray[np.float64]:
        """sum_d rho_cr(d) w[q, d] of every query with a weight, by the race.  Shapes: weights [Q, D] -> [Q]."""
        weights = matrix("weights", weights)
        value = np.zeros(weights.shape[0])
        generator = _generator(seed)
        curve = torch.from_numpy(check_examination(theta)).float()
        for part in self.parts(np.flatnonzero(np.diff(weights.indptr))):
            value[part] = self.batch_utility(part, weights[part], curve, samples, generator)
        return value

    def batch_utility(
        self, q: NDArray[np.int64], w: csr_matrix, theta: Tensor, samples: int, generator: torch.Generator
    ) -> NDArray[np.float64]:
        """The same for a batch of queries.  Shapes: q [B]; w [B, D]; theta [K] -> [B]."""
        if self.is_large:
            return candidates.utility(self, q, w, theta, samples=samples, generator=generator)
        s_c, s_r = self.plain_scores(q)
        found: NDArray[np.float64] = (
            race.utility(s_c, s_r, w, theta, self.K2, samples=samples, generator=generator).double().numpy()
        )
        return found

    def cuts(self, batches: int, engine: Engine) -> list[tuple[int, int]]:
        """How batches of queries are shared out (`cluster.cut`); a policy that cannot be cut stays here."""
        try:
            if engine == "ray":
                self.of_queries(np.zeros(1, np.int64))
        except PolicyError:
            engine = "local"
        return cluster.cut(batches, engine)

    def of_queries(self, q: NDArray[np.int64]) -> "TwoStagePolicy":
        """The policy for some of its queries, in order, and no others.  Shapes: q [n]."""
        generator = self.generator.of_queries(q)
        ranker = generator if self.ranker is self.generator else self.ranker.of_queries(q)
        ids = Vocabulary(self.vocabulary.query_ids.gather(q), self.vocabulary.item_ids)
        return replace(self, generator=generator, ranker=ranker, vocabulary=ids)

    def strangers(self, query_ids: pl.Series, features: pl.DataFrame | None = None) -> "TwoStagePolicy":
        """The policy for queries that it has not seen, and no others: by a table of their features, a row for each, or else as
        the average query."""
        ids = Vocabulary(query_ids, self.vocabulary.item_ids)
        ranker = self.ranker.strangers(features, ids)
        generator = ranker if self.generator is self.ranker else self.generator.after(self.ranker, ranker, ids)
        return replace(self, generator=generator, ranker=ranker, vocabulary=ids)

    def with_queries(self, query_ids: pl.Series, features: pl.DataFrame | None = None) -> "TwoStagePolicy":
        """The policy for its own queries, and after them for `strangers`."""
        new = self.strangers(query_ids, features)
        own = plain_ids(self.vocabulary.query_ids)
        ids = Vocabulary(pl.concat([own.alias("query_id"), query_ids.alias("query_id")]), self.vocabulary.item_ids)
        ranker = self.ranker.joined(new.ranker, ids)
        generator = ranker if self.generator is self.ranker else self.generator.joined(new.generator, ids)
        return replace(self, generator=generator, ranker=ranker, vocabulary=ids)

    @property
    def context_columns(self) -> tuple[str, ...]:
        """The columns of a context that it was learned with."""
        return self.ranker.context_columns or self.generator.context_columns

    @checked
    def in_context(self, context: Mapping[str, Value]) -> "TwoStagePolicy":
        """The policy in a context, values by the names of columns: `{"device": "phone"}`.

        A value that is not given, or that the log did not have, changes nothing: it stands for the average over the log's.
        """
        values = named(context, self.context_columns)
        if all(value is None for value in values.values()):
            return self
        Q = len(self.vocabulary.query_ids)
        return self.in_contexts(np.arange(Q), pl.DataFrame([values] * Q, schema=dict.fromkeys(values, pl.String)), None)

    def in_contexts(
        self, base: NDArray[np.int64], contexts: pl.DataFrame, query_ids: pl.Series | None
    ) -> "TwoStagePolicy":
        """The policy for queries in a context each, a row of the table, under ids of their own; `base`: the place of each
        query's own.  Shapes: base [n]; contexts [n, C]."""
        ids = self.vocabulary if query_ids is None else Vocabulary(query_ids, self.vocabulary.item_ids)
        known = contexts.select(name for name in self.context_columns if name in contexts.columns)
        table = known.with_columns(
            pl.lit(None, pl.String).alias(n) for n in self.context_columns if n not in known.columns
        )
        ranker = self.ranker.in_contexts(base, table)
        generator = ranker if self.generator is self.ranker else self.generator.in_contexts(base, table)
        return replace(self, generator=generator, ranker=ranker, vocabulary=ids)

    @checked
    def save(self, path: str | Path) -> Path:
        """Writes the folder `path` in one piece (`storage`)."""
        stages: dict[storage.Stage, Scorer] = {"generator": self.generator, "ranker": self.ranker}
        return storage.save(
            path, stages, self.vocabulary, K2=self.K2, K=self.K, trained_on=self.trained_on, about=self.about
        )

    def copy(self) -> "TwoStagePolicy":
        """The same policy with weights of its own, which may move."""
        return TwoStagePolicy(
            copy.deepcopy(self.generator), copy.deepcopy(self.ranker), self.K2, self.K, self.vocabulary
        )


def _several(ids: Ids | Id) -> Ids:
    """Ids, of which there may be one."""
    return [ids] if isinstance(ids, int) else [ids] if isinstance(ids, str) else ids


def _titled(lists: pl.DataFrame, titles: "TitleSource | Sequence[TitleSource]") -> pl.DataFrame:
    """Lists with the titles of their queries and items beside them."""
    from tandemrank.logs.titles import read_titles  # a server loads a policy without the readers of logs

    known = read_titles(*(titles if isinstance(titles, list | tuple) else [titles]))
    queries = [known.queries.of(query).title or str(query) for query in lists["query_id"]]
    items = [[known.items.of(item).title or str(item) for item in some] for some in lists["items"].to_list()]
    return lists.with_columns(
        pl.Series("query_title", queries, pl.String), pl.Series("titles", items, pl.List(pl.String))
    )


def _exposures(
    policy: TwoStagePolicy,
    number: int,
    q: NDArray[np.int64],
    rows: NDArray[np.int64],
    item: NDArray[np.int64],
    theta: Tensor,
    samples: int,
    seed: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Exposures of pairs of some queries, in batches from this number on, each with random numbers of its own.

    Shapes: q [B]; rows, item [n], rows in order -> [n], [n].
    """
    rho, error = np.empty(len(item)), np.empty(len(item))
    for start in range(0, len(q), BATCH):
        own = slice(*np.searchsorted(rows, [start, start + BATCH]))
        generator = _generator(random.derive(seed, number + start // BATCH))
        found = policy._exposure(q[start : start + BATCH], rows[own] - start, item[own], theta, samples, generator)
        rho[own], error[own] = (x.double().numpy() for x in found)
    return rho, error


def _generator(seed: int) -> torch.Generator:
    if not 0 <= seed < 2**63:
        raise ConfigError(f"seed: expected a whole number from 0 to 2^63 - 1; got {seed}.")
    return torch.Generator().manual_seed(seed)


def _whole_numbers(name: str, values: ArrayLike) -> NDArray[np.uint64]:
    """Keys as an array of them; refuses anything but whole numbers.  Shapes: [n] -> [n]."""
    try:
        found = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, tensors with a gradient
        found = np.asarray(None)
    if found.size and found.dtype.kind not in "iu":
        raise ConfigError(f"{name}: expected an array of whole numbers; got {type(values).__name__}.")
    return found.astype(np.uint64)


def extended(
    policy: TwoStagePolicy,
    *,
    query_features: FeatureSource | None = None,
    item_features: FeatureSource | None = None,
    pair_features: FeatureSource | None = None,
) -> TwoStagePolicy:
    """The policy for more queries, items and pairs, known by their features alone.

    The new ids come after the old ones, which keep their positions and, up to rounding, their scores.
    """
    if item_features is not None:
        policy = _with_items(policy, _new_rows(item_features, "item_id", policy.vocabulary.item_ids))
    if query_features is not None:
        new = _new_rows(query_features, "query_id", policy.vocabulary.query_ids)
        if len(new):
            policy = policy.with_queries(new["query_id"], new)
    if pair_features is not None:
        ranker = policy.ranker.more_pairs(pair_features, policy.vocabulary)
        generator = ranker if policy.generator is policy.ranker else policy.generator
        policy = replace(policy, generator=generator, ranker=ranker)
    return policy


def _new_rows(source: FeatureSource, id_column: str, known: pl.Series) -> pl.DataFrame:
    """The rows of a table of features whose ids are not known."""
    frame = features.read(source, id_column)
    ids, own = frame[id_column], plain_ids(known)
    if ids.dtype != own.dtype:
        raise DataError(
            f"column {id_column}: expected ids of {own.dtype}, as the policy has; got {ids.dtype}. Convert them."
        )
    return frame.filter(~ids.is_in(own.implode()))


def _with_items(policy: TwoStagePolicy, new: pl.DataFrame) -> TwoStagePolicy:
    if not len(new):
        return policy
    own = plain_ids(policy.vocabulary.item_ids)
    ids = Vocabulary(policy.vocabulary.query_ids, pl.concat([own.alias("item_id"), new["item_id"]]))
    ranker = policy.ranker.more_items(new, ids)
    generator = ranker if policy.generator is policy.ranker else policy.generator.after(policy.ranker, ranker, ids)
    return replace(policy, generator=generator, ranker=ranker, vocabulary=ids)


def without(s_c: Tensor, pairs: csr_matrix) -> Tensor:
    """The generator's scores with some pairs not available, -inf.  Shapes: s_c, pairs [B, D] -> [B, D]."""
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    return s_c.index_put((torch.from_numpy(rows), torch.from_numpy(pairs.indices.astype(np.int64))), NOT_AVAILABLE)


NOT_AVAILABLE = torch.tensor(-torch.inf)


def _unique_rows(s_c: Tensor, s_r: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each kind, and for every row the number of its kind, by the bytes of both scores."""
    both = np.ascontiguousarray(np.concatenate([s_c.numpy(), s_r.numpy()], 1))
    as_bytes = both.view(np.dtype((np.void, both.dtype.itemsize * both.shape[1]))).ravel()
    _, first, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, inverse


def _pattern(pairs: NDArray[np.int64], rows: int, D: int) -> csr_matrix:
    """A CSR pattern of sorted, distinct row * D + item."""
    indptr = np.searchsorted(pairs, np.arange(rows + 1) * D)
    return csr_matrix((np.ones(len(pairs), np.float32), pairs % D, indptr), shape=(rows, D))


@checked
def load(path: str | Path, *, models: Iterable[type[nn.Module]] = ()) -> TwoStagePolicy:
    """The policy in the folder `path`; a folder that is damaged or of another version is refused.

    `models`: classes of one's own that it may be made of; those that were defined in this process are known already.
    """
    saved = storage.load(path, models)
    try:
        return TwoStagePolicy(**saved)
    except PolicyError as error:
        raise storage.damaged(path, error) from error
