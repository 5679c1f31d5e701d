"""From a log to what training needs: propensities, clipping, weights of the documents, and the held-out judgement.

w[q, d] = sum_i c_i(d) / max(rho_0(d), clip)                                         (paper: cltr-obj-2s, propensity_def)

or what a reward model of the log expects (posterior), or both: the same for what the model leaves unexplained, and its promise
(doubly robust). The posterior is also where both stages start from (`informed`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import propensities
from tandemrank.offpolicy.estimators import query_folds
from tandemrank.offpolicy.logger import Lists
from tandemrank.offpolicy.propensities import Resolved
from tandemrank.offpolicy.reward import featured, posterior
from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.reward.tables import Tables
from tandemrank.policies.prior import vectors_of
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.policies.vectors import Vectors
from tandemrank.training import stopping
from tandemrank.training.config import LearningConfig
from tandemrank.training.documents import Weights
from tandemrank.training.loop import Criterion
from tandemrank.training.weights import RewardWeights, click_weights, direct_weights, doubly_robust_weights

ListMaker = Callable[[TwoStagePolicy], tuple[NDArray[np.int64], NDArray[np.int32]]]


@dataclass(frozen=True)
class TrainingData:
    """What a log says: weights for training, and the part that was held out for judging, if any, with its propensities.

    `propensities`: of what trains, then of what is held out. `posterior`: of what trains, where it is asked for.
    """

    weights: csr_matrix | Weights
    held_out: Feedback | None
    propensities: Resolved
    posterior: Posterior | None = None

    def criterion(self, config: LearningConfig, *, lists: ListMaker | None = None) -> Criterion | None:
        """The judgement that says when to stop, with early stopping; only held-out clicks enter, never the truth.

        `lists` makes the lists that are judged, by default the most likely ones of the held-out queries.
        """
        return None if config.training.early_stopping is None else self.judge(config, lists=lists)

    def judge(self, config: LearningConfig, *, lists: ListMaker | None = None) -> Criterion:
        """The self-normalised DCG of a policy's lists on the held-out clicks, which must be there."""
        if self.held_out is None:
            raise ConfigError("early stopping needs held-out clicks: give `prepare` a held-out part.")
        q = np.flatnonzero(self.held_out.impressions).astype(np.int64)
        show = lists or (lambda policy: (q, policy.most_likely(q)))
        judge = stopping.held_out_dcg(self.propensities.rho_0[1], self.held_out, config.theta)
        return lambda policy: judge(*show(policy))


def prepare(
    train_log: Feedback,
    config: LearningConfig,
    *,
    halves: Sequence[Feedback] | None = None,
    held_out: Feedback | None = None,
    logging_policy: TwoStagePolicy | None = None,
    lists: Callable[[], Lists] | None = None,
    vectors: Vectors | None = None,
    tables: Tables | None = None,
    seed: int = 0,
) -> TrainingData:
    """The weights of the documents by `train_log`, and `held_out`, which only judges, with its propensities.

    `halves` are its two parts by impression: the reward model of the doubly robust objective then learns from the one for
    the other, and else from some queries for the others. `lists` reads the lists of the log; it is called only for
    propensities that are fitted to them. `vectors` are the prior of the posterior, by default those of the logging policy;
    with `tables` features are.
    """
    parts = [train_log] if held_out is None else [train_log, held_out]
    if any(part.clicks.sum() == 0 for part in parts):
        came = " and ".join(
            f"{part.clicks.sum():g} {n}" for part, n in zip(parts, ("for training", "held out"), strict=False)
        )
        raise LogError(
            f"not enough clicks to learn from: {came}, in {sum(part.N for part in parts):g} impressions. Give a longer log."
        )
    weighted = config.objective != "posterior" or held_out is not None  # else no click is divided by its propensity
    samples, quantile = config.propensity_samples, config.clip_quantile
    found = propensities.resolve(
        parts, config.theta, kind=config.propensity, clip=config.clip,
        clip_quantile=propensities.CLIP_QUANTILE if quantile is None else quantile,
        logging_policy=logging_policy, lists=lists, samples=samples, seed=seed, rows=weighted,
        only_clicked=config.objective == "ips",
    )  # fmt: skip
    drew = vectors_of(found.logger, train_log.vocabulary)
    prior = vectors or drew

    def fitted(log: Feedback) -> Posterior:
        if tables is not None:
            return featured.fit(log, config.theta, tables, seed=seed)
        return posterior.fit(log, config.theta, vectors=prior, logger=drew, seed=seed)

    whole = fitted(train_log) if config.from_posterior or config.objective == "posterior" else None
    weights: csr_matrix | RewardWeights
    if config.objective == "ips":
        weights = click_weights(found.rho_0[0], train_log)
    elif config.objective == "posterior" and whole is not None:
        weights = direct_weights(train_log, whole)
    else:
        folds = query_folds(train_log, seed) if halves is None else [(halves[0], halves[1]), (halves[1], halves[0])]
        models = [(part, fitted(rest)) for part, rest in folds]
        weights = doubly_robust_weights(found.rho_0[0], train_log, config.theta, models)
    return TrainingData(weights, held_out, found, whole)
