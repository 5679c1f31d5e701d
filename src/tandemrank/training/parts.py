"""An own log in its two parts: one trains, and one, which training has not seen, values what came out. Where a reward is
learned in place of clicks, what a click on each item is worth by the first, and the second in detail."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.cluster import Engine
from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.beliefs.worth import item_worth
from tandemrank.errors import DataError, LogError
from tandemrank.logs import reading
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.counting import WHOLE, Split
from tandemrank.logs.details import Details, read_details
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.reading import LogParts
from tandemrank.logs.sources import Source
from tandemrank.logs.sums import merge
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import EVALUATION_SHARE, LearningConfig
from tandemrank.training.start import Start

Floats = NDArray[np.float64]
TIMES = 8  # parts of what trains, oldest first, in a log that has times


@dataclass(frozen=True)
class Rewards:
    """What a click on each item is worth, and the part of the log that values.  Shapes: worth [D]."""

    name: str
    worth: Floats
    evaluation: Details


@dataclass(frozen=True)
class Parts:
    """The log, split by impression: for training, for valuing.

    `first`: the first impressions of the log one by one, of all parts, which a logging policy can be fitted to.
    `train_times`: the impressions that train in up to `TIMES` parts of equal numbers, oldest first, where the log says when
    they were; what values is then the last of the log. One part where it does not. `in_context`: the same by queries in their
    context, where there is one. `split`: which impressions train and which value; `rewards`: what clicks were worth, where that
    is learned.
    """

    train: Feedback
    evaluation: Feedback
    first: Impressions
    train_times: tuple[Feedback, ...] = ()
    by_time: bool = False
    in_context: "ContextParts | None" = None
    split: Split = WHOLE
    rewards: Rewards | None = None

    @cached_property
    def shown(self) -> NDArray[np.int64]:
        """The pairs of what each query was shown, q D + d: by the impressions that train, or, to a query that came in none
        of them, by those that value the result. What was shown is no secret; what was clicked stays one.  Shapes: -> [n]."""
        late = self.train.impressions[self.evaluation.query] == 0
        parts = (self.train.query, self.train.item), (self.evaluation.query[late], self.evaluation.item[late])
        pairs = [query * np.int64(self.train.D) + item for query, item in parts]
        found: NDArray[np.int64] = np.unique(np.concatenate(pairs))
        return found

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of all parts."""
        return self.evaluation.vocabulary

    @property
    def list_length(self) -> int:
        """The longest list."""
        return max(int(part.rank.max(initial=0)) for part in self.all()) + 1

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """How often each query came at least, in all parts: a weight of 100 is one impression.  Shapes: -> [Q]."""
        return times_of(self.all())

    def all(self) -> tuple[Feedback, ...]:
        """Every impression once."""
        return self.train, self.evaluation


@dataclass(frozen=True)
class ContextParts:
    """A log by queries in their context: for training, oldest first, and for valuing."""

    contexts: Contexts
    train_times: tuple[Feedback, ...]
    evaluation: Feedback

    @cached_property
    def train(self) -> Feedback:
        """For training, as a whole."""
        return merge(self.train_times)


def times_of(parts: Sequence[Feedback]) -> NDArray[np.float64]:
    """How often each query came at least, in all parts: a weight of 100 is one impression.  Shapes: -> [Q]."""
    heaviest = max(part.heaviest for part in parts)
    return np.asarray(np.sum([part.impressions for part in parts], axis=0), np.float64) / heaviest


@dataclass(frozen=True)
class LogFacts:
    """What a log is, in numbers, and how many of its impressions each part has; `pairs` of a query and an item.

    `by_time`: the impressions that value are the last ones. `period`: its first and last time in Unix seconds, if known.
    """

    impressions: float
    queries: int
    items: int
    pairs: int
    clicks: float
    list_length: int
    train: float
    evaluation: float
    by_time: bool = False
    period: tuple[float, float] | None = None


def facts_of(parts: Parts) -> LogFacts:
    """The numbers of a log."""
    logs, D = parts.all(), len(parts.vocabulary.item_ids)
    pairs = np.unique(np.concatenate([log.query * np.int64(D) + log.item for log in logs]))
    return LogFacts(
        impressions=sum(log.N for log in logs),
        queries=int((np.sum([log.impressions for log in logs], axis=0) > 0).sum()),
        items=len(np.unique(pairs % D)),
        pairs=len(pairs),
        clicks=float(sum(log.clicks.sum() for log in logs)),
        list_length=parts.list_length,
        train=parts.train.N,
        evaluation=parts.evaluation.N,
        by_time=parts.by_time,
        period=parts.split.period,
    )


def read_parts(
    log: Source,
    config: LearningConfig,
    start: Start,
    seed: int,
    *,
    lists: int = 0,
    logging_policy: TwoStagePolicy | None = None,
    engine: Engine = "local",
) -> Parts:
    """The log in its parts, in the vocabulary of the policy to start from, of the one that drew it, or of the log and
    the features.

    It is read once, its first `lists` impressions included. The last impressions value; in a log without times, chance says
    which, by the seed and the share alone.
    """
    share = config.evaluation_share or EVALUATION_SHARE
    policy = start.policy or logging_policy
    known = None if policy is None else policy.vocabulary
    found = reading.read_parts(
        log,
        (share,),
        times=TIMES,
        lists=lists,
        seed=seed,
        vocabulary=None if config.context else known,
        K=config.list_length,
        engine=engine,
        by=config.by,
        context=config.context,
    )
    whole, contexts = found, None
    if config.context:
        contexts = Contexts.of(found.train[0].vocabulary, config.context, known)
        found = found.without_contexts(contexts)
    if start.query_features is not None or start.item_features is not None:
        own = found.train[0].vocabulary
        larger = Vocabulary(
            _with_table(own.query_ids, start.query_features, "query_id"),
            _with_table(own.item_ids, start.item_features, "item_id"),
        )
        found = found.in_vocabulary(larger)
        contexts = None if contexts is None else contexts.in_vocabulary(larger)
    [evaluation] = found.held_out
    parts = Parts(
        train=merge(found.train) if len(found.train) > 1 else found.train[0],
        evaluation=evaluation,
        first=found.first,
        train_times=found.train,
        by_time=found.by_time,
        in_context=None if contexts is None else _in_context(whole, contexts),
        split=found.split,
    )
    _refuse_without_clicks(parts)
    return parts


def _in_context(found: LogParts, contexts: Contexts) -> ContextParts:
    """The parts by queries in their context, with the items that the contexts know."""
    ids = Vocabulary(found.train[0].vocabulary.query_ids, contexts.vocabulary.item_ids)
    whole = found.in_vocabulary(ids)
    return ContextParts(contexts, whole.train, whole.held_out[0])


def _refuse_without_clicks(parts: Parts) -> None:
    for part, what in ((parts.train, "training"), (parts.evaluation, "valuing what was trained")):
        if part.clicks.sum() == 0:
            N = sum(one.N for one in parts.all())
            raise LogError(
                f"not enough clicks to learn from: none for {what}, of {N:g} impressions. Give a longer log."
            )


def _with_table(ids: pl.Series, table: object, id_column: str) -> pl.Series:
    """The ids of the log and of a table of features that was read, sorted."""
    if not isinstance(table, pl.DataFrame):
        return ids
    own, more = plain_ids(ids), table[id_column]
    if own.dtype != more.dtype:
        raise DataError(
            f"column {id_column}: {own.dtype} in the log, {more.dtype} in the features. Convert them to the same type."
        )
    if not more.is_in(own.implode()).any():
        raise DataError(
            f"column {id_column}: expected features of ids of the log (first: {own[0]!r}); got rows for none of them (first: "
            f"{more[0]!r}). Check that both come from the same data."
        )
    return pl.concat([own.rename(id_column), more]).unique().sort()


def read_rewards(
    log: Source, name: str, split: Split, vocabulary: Vocabulary, numbers: NDArray[np.floating]
) -> Rewards:
    """Of the same parts of a log as its clicks. `numbers`: of the items' features.  Shapes: numbers [D, J]."""

    def trains(impressions: NDArray[np.int64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = split.part(impressions) < split.train
        return found

    train = read_details(log, reward=name, vocabulary=vocabulary, chosen=trains)
    rest = read_details(log, reward=name, vocabulary=vocabulary, chosen=lambda n: ~trains(n))
    rows, v = train.rows, train.reward
    assert v is not None
    gained, clicks, squares = (
        np.bincount(rows.item, x * rows.clicks, rows.D).astype(np.float64) for x in (v, np.ones_like(v), v * v)
    )
    return Rewards(name, item_worth(gained, clicks, squares, numbers), rest)
