"""How a log is asked about a pair: the switches of `estimate`, `compare` and `decide`, refused by name where they are wrong."""

from dataclasses import dataclass
from typing import Literal, get_args

from numpy.typing import ArrayLike

from tandemrank._base.cluster import Engine, check_engine
from tandemrank.clicks.models import check_examination
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.names import MODELLED, Asked, Clip, Curve, Estimator
from tandemrank.offpolicy.reward.model import RewardModel
from tandemrank.policies.two_stage import TwoStagePolicy

RewardSource = Literal["posterior", "item-rate"] | RewardModel
REWARDS = ("posterior", "item-rate")


MOST_DRAWS = 10**7


@dataclass(frozen=True)
class Question:
    """How to ask: the keywords of `estimate` and `compare`.

    - `examination`: the curve theta, the chance that a rank is looked at: "reciprocal" 1/k, "dcg" 1/log2(k+1), or a number
      for each rank, as `examine` finds them.
    - `estimator`: see `offpolicy.estimators`; "direct" and "doubly_robust" use a reward model, cross-fitted. "auto" takes the
      one with the least measured error (docs/decisions.md): "doubly_robust" where propensities are counted, or a reward model
      or a log for it is given; else "ips" where they are fitted, corrected by what the log shows (`calibration`), and
      "beta_ips" where they are known, exact or logged.
    - `propensity`: "auto" takes the best there is a source for: "exact" if the `logging_policy` is given, "logged" if the
      log has a column of them, "frequency" if the logger always shows the same, or queries are few and their items shown
      often, else "fitted" to the lists of the log.
    - `clip`: propensities are raised to it: "none", "quantile", "paper", or a number; without it "quantile" for the estimator
      "clipped" and for fitted propensities, and "none" for the others.
    - `reward_log`: impressions that are not in the log, for the reward model to learn from, in the same vocabulary; without
      it the log itself is cut into folds. Where lists hardly vary frequencies are counted there, and corrected here.
    - `fitted_lists`: lists per query that the `logging_policy` was fitted to, if it was: are they enough?
    - `samples` of the race for each exposure, `replicates` of the bootstrap, `level` of interval and bound.
    - `independent`: what a bound takes one by one: "impressions", the default where every list was drawn anew, for a bound
      about the log's own impressions; "queries" for one about other queries like them, whatever the impressions of one have
      in common.
    - `engine`: what reads the log, as in `logs.read`; the same bits either way.
    - `reward`: the reward model, "item-rate", "posterior" (clicks and non-clicks, with memory), or one that was fitted to other
      impressions in the vocabulary of the log.
    """

    examination: Curve | ArrayLike = "reciprocal"
    estimator: Estimator = "auto"
    propensity: Asked = "auto"
    logging_policy: TwoStagePolicy | None = None
    clip: Clip | None = None
    reward_log: Feedback | None = None
    samples: int = 20
    replicates: int = 1000
    level: float = 0.95
    seed: int = 0
    engine: Engine = "local"
    fitted_lists: float | None = None
    reward: RewardSource = "item-rate"
    independent: Independent | None = None

    def __post_init__(self) -> None:
        """Refuses by name what a switch does not take."""
        if not isinstance(self.examination, str):
            object.__setattr__(self, "examination", check_examination(self.examination))
        elif self.examination not in get_args(Curve):
            raise ConfigError(
                f"examination must be {' or '.join(get_args(Curve))}, or a number for each rank; {self.examination!r} came."
            )
        check_engine(self.engine)
        if not isinstance(self.reward, RewardModel) and self.reward not in REWARDS:
            raise ConfigError(f"reward must be one of {', '.join(REWARDS)}, or a reward model; {self.reward!r} came.")
        if self.reward != "item-rate" and self.estimator not in ("auto", *MODELLED):
            raise ConfigError(
                f"the estimator {self.estimator} uses no reward model: leave `reward` out, or take {' or '.join(MODELLED)}."
            )
        if self.independent not in (None, *get_args(Independent)):
            raise ConfigError(f"independent must be {' or '.join(get_args(Independent))}; {self.independent!r} came.")
        if self.seed < 0 or max(self.samples, self.replicates) > MOST_DRAWS:
            raise ConfigError(
                f"needed: seed >= 0, samples and replicates <= {MOST_DRAWS:,}; got {self.seed}, {self.samples}, "
                f"{self.replicates}."
            )
        if self.samples < 1 or self.replicates < 100 or not 0.01 <= self.level < 1:
            raise ConfigError(
                f"needed: samples >= 1, replicates >= 100, 0.01 <= level < 1; got {self.samples}, {self.replicates}, "
                f"{self.level}."
            )
