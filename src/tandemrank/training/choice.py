"""Which method, and with the generator's score or without: chosen on held-out clicks (`auto`); and what to know before training
where clicks are few."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tandemrank.errors import ConfigError
from tandemrank.logs.description import ENOUGH_CLICKS
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import contradiction
from tandemrank.offpolicy.verdicts import curve_words
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.stages import Score, Stages
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import EarlyStopping, LearningConfig
from tandemrank.training.schedules import Method, are_same

AUTO = "auto"
WITH_SCORE: tuple[Method, ...] = ("joint", "stacking")  # that a re-ranker can be handed the generator's score in
FEW = (
    10  # clicked items per query below which training for each other gained in some worlds, not in all (docs/stages.md)
)


@dataclass(frozen=True)
class Tried:
    """One pair that was tried: its method, its `generator_score`, and its validation score on held-out clicks."""

    method: Method
    generator_score: Score
    judgement: float


@dataclass(frozen=True)
class Choice:
    """What held-out clicks said of every pair that was tried; the first of the best was taken."""

    method: Method
    generator_score: Score
    tried: tuple[Tried, ...]


def is_auto(methods: Sequence[str], config: LearningConfig, stages: Stages) -> bool:
    """Whether the method or the `generator_score` is to be chosen; refuses what leaves more than one pair, or nothing to
    choose, and caution, which has a gate of its own."""
    by_method, by_score = AUTO in methods, stages.generator_score == AUTO
    if not (by_method or by_score):
        return False
    if by_method and len(set(methods)) > 1:
        raise ConfigError("the method auto tries all others itself: give it alone.")
    if config.safe is not None:
        what = "the method auto" if by_method else "generator_score = auto"
        raise ConfigError(f"{what} and safe cannot be had together: give safe training a method and a generator_score.")
    if by_score and not by_method and (len(set(methods)) > 1 or methods[0] not in WITH_SCORE):
        raise ConfigError(
            f"generator_score = auto chooses one pair of one method: {' or '.join(WITH_SCORE)}, or auto; "
            f"{', '.join(methods)} came."
        )
    return True


def held_out_share(config: LearningConfig, *, auto: bool) -> float:
    """The share of the impressions that choose, where nothing else asks for some."""
    return config.held_out_share or (EarlyStopping().held_out_share if auto else 0.0)


def tried(generator: Scorer, ranker: Scorer) -> list[Method]:
    """The methods that these two stages can be trained by and that may differ, Joint first: it is taken where all are alike."""
    if ranker.needs_generator:
        return list(WITH_SCORE)
    if are_same(generator, ranker):
        return ["joint", "independent", "baseline"]
    return ["joint", "stacking", "independent", "baseline"]


def choose(pairs: Mapping[tuple[Method, Score], TwoStagePolicy], judge: Callable[[TwoStagePolicy], float]) -> Choice:
    """The pair whose most likely lists have the best validation score on held-out clicks."""
    each = tuple(Tried(method, score, judge(pair)) for (method, score), pair in pairs.items())
    best = max(each, key=lambda one: np.nan_to_num(one.judgement, nan=-np.inf))
    return Choice(best.method, best.generator_score, each)


def before_training(log: Feedback, config: LearningConfig) -> Iterator[str]:
    """What to know of a log before training on it: clicks that are too few, a curve that it contradicts."""
    if (clicks := float(log.clicks.sum())) < ENOUGH_CLICKS:
        yield (
            f"clicks are few: {clicks:,.0f} for training, and at least {ENOUGH_CLICKS} are needed; with fewer, chance decides "
            "which items were clicked."
        )
    if not log.weighted and (found := contradiction(log, config.theta)) is not None:
        yield f"{curve_words(found)}."


def few_clicks(log: Feedback, generator: Scorer, ranker: Scorer, methods: Sequence[Method]) -> str | None:
    """What to know before training, where the stages are two models and clicks are few; None where there is nothing to say."""
    if "joint" not in methods or are_same(generator, ranker):
        return None
    clicked = log.clicks > 0
    pairs = np.unique(log.query[clicked] * np.int64(log.D) + log.item[clicked])
    queries = len(np.unique(pairs // log.D))
    each = len(pairs) / max(queries, 1)
    if each >= FEW:
        return None
    return (
        f"clicks are few: {each:.1f} clicked items per query, of {queries:,} queries with clicks. Below about {FEW} training "
        "the stages for each other gained in some worlds and not in others. --method auto and --generator-score auto, which "
        "may gain more, let held-out clicks choose."
    )
