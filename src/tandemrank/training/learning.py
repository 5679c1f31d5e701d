"""A log of one's own, no ratings anywhere: from the log to trained pairs and what each would be worth if it were live.

    log -> (used, held out, judged) -> start -> training, each method -> off-policy values on `judged`

The log's impressions are parted in three. Training sees the first part, the second says when to stop (it is empty where
training has a fixed end), and the third, which neither has seen, values what came out: on its own training clicks every pair
looks better than it is. Production, which
drew the log, needs no estimate: its value is the clicks an impression that the third part shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl

from tandemrank._base.ids import Vocabulary, plain_ids
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.logs import counting, reading
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sources import Source
from tandemrank.logs.sums import merge, renamed, total, unpacked
from tandemrank.offpolicy.lists import read_lists
from tandemrank.offpolicy.propensities import Kind
from tandemrank.offpolicy.valuation import Question, estimate_all
from tandemrank.offpolicy.values import PRODUCTION, Comparison, Value, compare_values
from tandemrank.policies import features, towers
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LearningConfig
from tandemrank.training.data import TrainingData, prepare
from tandemrank.training.history import Progress
from tandemrank.training.loop import Trained, train
from tandemrank.training.schedules import Method
from tandemrank.training.start import Start, from_clicks, from_embeddings
from tandemrank.training.stopping import chosen_epochs


@dataclass(frozen=True)
class Parts:
    """The log, parted by impression: two halves for training, what says when to stop, what values the result."""

    used: tuple[Feedback, Feedback]
    held_out: Feedback
    judged: Feedback

    @cached_property
    def seen(self) -> Feedback:
        """All but what is judged."""
        return merge([*self.used, self.held_out])

    @cached_property
    def whole(self) -> Feedback:
        """All of the log."""
        return merge([self.seen, self.judged])


@dataclass(frozen=True)
class Difference:
    """How many more clicks per impression `method` would get than `against`."""

    method: str
    against: str
    comparison: Comparison

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        found = self.comparison
        return {
            "method": self.method, "against": self.against, "value": found.difference,
            "standard_error": found.standard_error, "interval": found.interval,
            "share_of_wins": found.share_of_wins, "verdict": found.verdict,
        }  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """What came of a log: for each method the trained pair, its history and its value; production; the differences.

    `config` is complete: what was left to the log is filled in. `propensity` says which kind was used, `why` the reason.
    """

    config: LearningConfig
    start: str
    log: dict[str, float]
    propensity: Kind
    why: str
    trained: dict[Method, Trained]
    values: dict[Method, Value]
    production: Value
    differences: tuple[Difference, ...]

    @property
    def policy(self) -> TwoStagePolicy:
        """The pair of the first method."""
        return next(iter(self.trained.values())).policy

    def summary(self) -> dict[str, Any]:
        """Everything but the pairs themselves, as plain names and values."""
        return {
            "log": self.log,
            "start": self.start,
            "propensities": self.propensity,
            "why": self.why,
            "production": self.production.summary(),
            "methods": [
                {
                    "method": method,
                    **value.summary(),
                    "epochs": len(self.trained[method].history),
                    "chosen": chosen_epochs(self.trained[method].history),
                    "history": [epoch._asdict() for epoch in self.trained[method].history],
                }
                for method, value in self.values.items()
            ],
            "differences": [difference.summary() for difference in self.differences],
        }


def learn(
    log: Source,
    config: LearningConfig | None = None,
    *,
    methods: Sequence[Method] | None = None,
    start: Start | None = None,
    logging_policy: TwoStagePolicy | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Method, Progress], None] | None = None,
) -> Learned:
    """Trains both stages from a click log alone, by each method, and values what came out on impressions nobody saw.

    `log`: files, folders, patterns, a frame of polars or pandas. Without `methods` it is `config.training.method`. What
    `config` does not set comes from the log: `shown` is its longest list, `candidates` at most its items. Without a
    `logging_policy` the policy to start from is taken for it, unless the log has propensities. With `checkpoints`, a
    folder, every epoch is saved there as METHOD/checkpoint.safetensors, and `resume` goes on from it.
    """
    config, start = config or LearningConfig(), start or Start()
    names = check_methods(methods or [config.training.method])
    parts = _read(log, config, start, seed)
    config, start = _resolved_config(config, parts), _feasible_rank(start, parts)
    clicks = prepare(
        parts.used, config, held_out=parts.held_out if config.apart else None,
        logging_policy=_logger(logging_policy, start, parts, config),
        lists=lambda: read_lists(log, parts.judged.vocabulary, config.shown), seed=seed,
    )  # fmt: skip
    pair = _initial_pair(start, parts, config, seed)
    trained = {
        method: train(
            pair, clicks.weights, config.theta, config.training.model_copy(update={"method": method}),
            criterion=clicks.criterion(config, seed), seed=seed,
            checkpoint=None if checkpoints is None else Path(checkpoints) / method / "checkpoint.safetensors",
            resume=resume, progress=_of_method(progress, method),
        )
        for method in names
    }  # fmt: skip
    *found, production = _valued([one.policy for one in trained.values()], parts, clicks, config, seed)
    values = dict(zip(trained, found, strict=True))
    differences = _differences(values, production)
    used = clicks.propensities
    taken = used.kind == "exact" and logging_policy is None
    why = "the policy to start from is taken for the one that drew the log" if taken else used.reason
    return Learned(config, start.words, _described(parts), used.kind, why, trained, values, production, differences)


def check_methods(methods: Sequence[str]) -> list[Method]:
    """The methods, each once; refuses what is none."""
    if wrong := [method for method in methods if method not in get_args(Method)]:
        raise ConfigError(f"a method is one of {', '.join(get_args(Method))}; got {wrong[0]!r}.")
    return list(dict.fromkeys(methods))  # type: ignore[arg-type]


def _of_method(
    progress: Callable[[Method, Progress], None] | None, method: Method
) -> Callable[[Progress], None] | None:
    return None if progress is None else lambda state: progress(method, state)


def _read(log: Source, config: LearningConfig, start: Start, seed: int) -> Parts:
    """The log in its parts, in the vocabulary of the policy to start from, or in the log's own with the features' ids."""
    counting.check_shares(config.apart, config.judged)
    half = (1 - config.apart - config.judged) / 2
    K = config.shown if "shown" in config.model_fields_set else None
    known = None if start.policy is None else start.policy.vocabulary
    found = reading.read_parts(log, (half, config.apart, config.judged), seed=seed, vocabulary=known, K=K)
    if start.query_features is not None or start.item_features is not None:
        own = found[0].vocabulary
        larger = Vocabulary(
            _with_table(own.query_ids, start.query_features, "query_id"),
            _with_table(own.item_ids, start.item_features, "item_id"),
        )
        found = tuple(_renamed(part, larger) for part in found)
    rest, half_of_it, held_out, judged = found
    for what, clicks in (
        ("training", rest.clicks.sum() + half_of_it.clicks.sum()),
        ("stopping", held_out.clicks.sum()),
        ("valuing what was trained", judged.clicks.sum()),
    ):
        if clicks == 0 and (what != "stopping" or config.apart > 0):
            N = sum(part.N for part in found)
            raise LogError(
                f"not enough clicks to learn from: none for {what}, of {N:g} impressions. Give a longer log."
            )
    return Parts((rest, half_of_it), held_out, judged)


def _with_table(ids: pl.Series, source: FeatureSource | None, id_column: str) -> pl.Series:
    """The ids of the log and of a table of features, sorted."""
    if source is None:
        return ids
    own, more = plain_ids(ids), features.read(source, id_column)[id_column]
    if own.dtype != more.dtype:
        raise DataError(
            f"column {id_column}: {own.dtype} in the log, {more.dtype} in the features. Convert them to the same type."
        )
    return pl.concat([own.rename(id_column), more]).unique().sort()


def _renamed(part: Feedback, vocabulary: Vocabulary) -> Feedback:
    sums, impressions = renamed(part, vocabulary)
    return unpacked(total([sums]), vocabulary, impressions)


def _resolved_config(config: LearningConfig, parts: Parts) -> LearningConfig:
    """The configuration with what the log decides: K, the longest list; K2, at most all items."""
    log, given = parts.whole, config.model_fields_set
    shown = config.shown if "shown" in given else int(log.rank.max()) + 1
    candidates = config.candidates if "candidates" in given else max(min(config.candidates, log.D), shown)
    if candidates > log.D:
        raise ConfigError(
            f"{candidates} candidates, but there are only {log.D} items. Ask for fewer candidates, or give the features "
            "of more items."
        )
    if candidates < shown:
        raise ConfigError(f"{candidates} candidates are fewer than the {shown} places of a list. Ask for more of them.")
    return config.model_copy(update={"shown": shown, "candidates": candidates})


def _logger(given: TwoStagePolicy | None, start: Start, parts: Parts, config: LearningConfig) -> TwoStagePolicy | None:
    """The policy that drew the log: the one given, else that to start from, unless the log has propensities itself."""
    if given is None and (config.propensity == "exact" or parts.judged.logged is None):
        return start.policy
    return given


def _described(parts: Parts) -> dict[str, float]:
    """What the log is, in numbers."""
    log = parts.whole
    return {
        "impressions": log.N,
        "queries": int((log.impressions > 0).sum()),
        "items": len(np.unique(log.item)),
        "pairs": len(np.unique(log.query * np.int64(log.D) + log.item)),
        "clicks": float(log.clicks.sum()),
        "places": int(log.rank.max()) + 1,
        "used": sum(part.N for part in parts.used),
        "held_out": parts.held_out.N,
        "judged": parts.judged.N,
    }


def _feasible_rank(start: Start, parts: Parts) -> Start:
    """A log of few clicked items has no room for the dimensions: at most half as many as there are, of items or queries.

    Beyond its rank a matrix has no singular vectors that the same log would give twice.
    """
    used = merge(parts.used)
    clicked = used.clicks > 0
    most = min(len(np.unique(used.query[clicked])), len(np.unique(used.item[clicked]))) // 2
    rank = min(start.sizes.rank, max(most, 1))
    return replace(start, sizes=start.sizes.model_copy(update={"rank": rank}))


def _initial_pair(start: Start, parts: Parts, config: LearningConfig, seed: int) -> TwoStagePolicy:
    """The pair before training. The clicks of the part for training alone may enter it."""
    vocabulary, sizes = parts.judged.vocabulary, start.sizes
    if start.policy is not None:
        generator, ranker = start.policy.generator, start.policy.ranker
    elif start.query_embeddings is not None and start.item_embeddings is not None:
        generator = ranker = from_embeddings(start.query_embeddings, start.item_embeddings, vocabulary)
    elif start.query_features is not None or start.item_features is not None:
        generator, ranker = (
            towers.from_features(
                start.query_features, start.item_features, vocabulary, width=width, dimension=dimension, seed=own
            )
            for width, dimension, own in (
                (sizes.generator_width, sizes.generator_dimension, seed),
                (sizes.ranker_width, sizes.ranker_dimension, seed + 1),
            )
        )
    else:
        used = merge(parts.used)
        generator = ranker = from_clicks(used, config.theta, sizes.rank, seed=seed)
    return TwoStagePolicy(generator, ranker, config.candidates, config.shown, vocabulary)


def _valued(
    policies: Sequence[TwoStagePolicy], parts: Parts, clicks: TrainingData, config: LearningConfig, seed: int
) -> tuple[Value, ...]:
    """The doubly robust value of every pair on the judged part, and production's; the reward model learns from the others."""
    # A policy that was fitted to the log is used as the one that drew it: sums have no lists to fit another to.
    used = clicks.propensities
    asked = Question(
        examination=config.theta, propensity="exact" if used.kind == "fitted" else used.kind, logging_policy=used.logger,
        reward_log=parts.seen, seed=seed,
    )  # fmt: skip
    return estimate_all([*policies, PRODUCTION], parts.judged, asked)


def _differences(values: dict[Method, Value], production: Value) -> tuple[Difference, ...]:
    """Every method less production and less the methods after it."""
    sides: dict[str, Value] = {str(method): value for method, value in values.items()}
    names = list(sides)
    pairs: list[tuple[str, str]] = [(method, PRODUCTION) for method in names]
    pairs += [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    sides[PRODUCTION] = production
    return tuple(Difference(a, b, compare_values(sides[a], sides[b])) for a, b in pairs)
