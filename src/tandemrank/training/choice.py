"""Which method: chosen on held-out clicks (`auto`); and what to know before training."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tandemrank.logs.description import ENOUGH_CLICKS
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import contradiction
from tandemrank.offpolicy.verdicts import curve_words
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LearningConfig
from tandemrank.training.schedules import Method

AUTO = "auto"


@dataclass(frozen=True)
class Tried:
    """One method that was tried, and its score on held-out clicks."""

    method: Method
    judgement: float


@dataclass(frozen=True)
class Choice:
    """What held-out clicks said of every method that was tried; the first of the best was taken."""

    method: Method
    tried: tuple[Tried, ...]


def choose(policies: Mapping[Method, TwoStagePolicy], judge: Callable[[TwoStagePolicy], float]) -> Choice:
    """The method whose most likely lists have the best score on held-out clicks."""
    each = tuple(Tried(method, judge(policy)) for method, policy in policies.items())
    best = max(each, key=lambda one: np.nan_to_num(one.judgement, nan=-np.inf))
    return Choice(best.method, each)


def before_training(log: Feedback, config: LearningConfig) -> Iterator[str]:
    """What to know of a log before training on it: clicks that are too few, a curve that it contradicts."""
    if (clicks := float(log.clicks.sum())) < ENOUGH_CLICKS:
        yield (
            f"clicks are few: {clicks:,.0f} for training, and at least {ENOUGH_CLICKS} are needed; with fewer, chance decides "
            "which items were clicked."
        )
    if not log.weighted and (found := contradiction(log, config.theta)) is not None:
        yield f"{curve_words(found)}."
