"""What a log says, ready for training: propensities, beliefs, weights of the documents."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import nn

from tandemrank._base.cluster import Engine
from tandemrank.beliefs.belief import Beliefs
from tandemrank.beliefs.contexts import ContextLog, in_contexts
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.sharing import fit_on_ray
from tandemrank.beliefs.space import Vectors
from tandemrank.beliefs.vectors import vectors_of
from tandemrank.clicks.models import CellCurve
from tandemrank.errors import LogError
from tandemrank.logs.description import ENOUGH_CLICKS
from tandemrank.logs.feedback import Feedback, by_rank
from tandemrank.logs.pairs import contradiction
from tandemrank.offpolicy import propensities
from tandemrank.offpolicy.logger import Lists
from tandemrank.offpolicy.propensities import Resolved
from tandemrank.offpolicy.verdicts import curve_words
from tandemrank.policies.two_stage import TwoStagePolicy, default_candidates
from tandemrank.training.config import LearningConfig
from tandemrank.training.weights import Weights, belief_weights, click_weights


@dataclass(frozen=True)
class TrainingData:
    """What a log says: weights for training, lists of each query, its curve by rank, propensities, the switches, and the
    beliefs where they are used."""

    weights: csr_matrix | Weights
    impressions: NDArray[np.float64]
    theta: NDArray[np.float64]
    propensities: Resolved
    config: LearningConfig
    beliefs: Beliefs | None = None


@dataclass(frozen=True, kw_only=True)
class Besides:
    """What beliefs know besides the sums of a log.

    `vectors`: their prior, by default those of the logging policy; `features` of queries and items; `model`: the user's own f;
    `times`: the parts of the log, oldest first, where it has an order; `contexts`: the same by queries in their context.
    """

    vectors: Vectors | None = None
    features: Features | None = None
    model: nn.Module | None = None
    times: Sequence[Feedback] = ()
    contexts: ContextLog | None = None


NOTHING = Besides()


def prepare(
    train_log: Feedback,
    config: LearningConfig,
    besides: Besides = NOTHING,
    *,
    needs_beliefs: bool,
    logging_policy: TwoStagePolicy | None = None,
    lists: Callable[[], Lists] | None = None,
    seed: int = 0,
    engine: Engine = "local",
) -> TrainingData:
    """The weights of the documents by `train_log`.

    `lists` reads the lists of the log; it is called only for propensities that are fitted to them. The engine ray fits the
    beliefs by all nodes of a cluster.
    """
    if train_log.clicks.sum() == 0:
        raise LogError(f"expected clicks to learn from; got none, in {train_log.N:g} impressions. Give a longer log.")
    used = propensities.resolve(
        train_log,
        config.theta,
        kind=config.propensity,
        clip=config.clip,
        logging_policy=logging_policy,
        lists=lists,
        seed=seed,
        # Where beliefs are the objective, no click is divided by its propensity.
        wanted="clicked" if config.objective == "ips" else "none",
        engine=engine,
    )
    impressions, theta = train_log.impressions.astype(np.float64), by_rank(train_log, config.theta)
    clicks = train_log.by_own_propensity() if used.kind == "logged" else train_log
    if config.objective == "ips" and not needs_beliefs:
        return TrainingData(click_weights(used.rho_0, clicks), impressions, theta, used, config)
    drew = vectors_of(used.logger, train_log.vocabulary)
    counts = Counts.of([part.less(config.offset) for part in besides.times or [train_log]], config.theta)
    fitted = partial(
        fit_on_ray if engine == "ray" else fit,
        features=besides.features,
        production=besides.vectors or drew,
        model=besides.model or config.model,
        seed=seed,
    )
    beliefs = fitted(counts)
    if besides.contexts is not None:
        again = partial(fitted, chosen=beliefs.chosen)
        beliefs = in_contexts(beliefs, besides.contexts, config.theta, again, seed)
    by_clicks, K2 = config.objective == "ips", config.candidates or default_candidates(train_log.D, config.K)
    weights = click_weights(used.rho_0, clicks) if by_clicks else belief_weights(train_log, beliefs, K2)
    return TrainingData(
        weights=weights, impressions=impressions, theta=theta, propensities=used, config=config, beliefs=beliefs
    )


def before_training(log: Feedback, config: LearningConfig) -> Iterator[str]:
    """What to know of a log before training on it: clicks that are too few, a curve that it contradicts."""
    if (clicks := float(log.clicks.sum())) < ENOUGH_CLICKS:
        yield (
            f"clicks are few: {clicks:,.0f} for training, and at least {ENOUGH_CLICKS} are needed; with fewer, chance decides "
            "which items were clicked."
        )
    if (
        not isinstance(config.examination, CellCurve)
        and not log.weighted
        and (found := contradiction(log, config.theta)) is not None
    ):
        yield f"{curve_words(found)}."
