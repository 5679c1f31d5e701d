"""`Question`: how a log is asked about a policy. `estimate`, `compare` and `decide`, functions and commands, share it."""

from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, get_args

from numpy.typing import ArrayLike

from tandemrank._base.arguments import of_kind
from tandemrank._base.cluster import Engine, check_engine
from tandemrank.beliefs.model import RewardModel
from tandemrank.clicks.examination import ExaminationCurve
from tandemrank.clicks.models import CellCurve, check_examination
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.estimators import Estimator
from tandemrank.offpolicy.logger import Asked, FittedLogger
from tandemrank.policies.two_stage import TwoStagePolicy

Curve = Literal["reciprocal", "dcg"]
LOWEST_LEVEL, HIGHEST_LEVEL = 0.5, 0.999999

MOST_DRAWS = 10**7  # samples: more is a slip


@dataclass(frozen=True)
class Question:
    """How to ask a log: the argument that `estimate`, `compare` and `decide` share; each takes its fields as keywords, too.

    - `examination`: the curve theta, the chance that a rank is looked at: "reciprocal" 1/k, "dcg" 1/log2(k+1), a number
      for each rank, or a `CellCurve` by more than the rank, as `examine` finds them.
    - `estimator`: see `offpolicy.estimators`. "auto" takes the one with the least measured error (docs/results/promises.md):
      "doubly_robust" where a reward model is given; else "beta_ips" where propensities are known, exact or logged, and "ips"
      where they are counted or fitted (then corrected by what the log shows, `calibration`).
    - `propensity`: "auto" takes the best there is a source for: "exact" if the `logging_policy` is given, "logged" if the
      log has a column of them, "frequency" if the logger always shows the same, or queries are few and their items shown
      often, else "fitted" to the lists of the log. A `logging_policy` that was fitted before is a `FittedLogger`.
    - `other_log`: impressions of the same logger that are not in the log, in the same vocabulary: fitted propensities are
      checked by them, and where lists hardly vary frequencies are counted there and corrected here.
    - `samples` of the race for each exposure, `level` of interval and bound.
    - `independent`: what a bound takes one by one: "impressions", the default where every list was drawn anew, for a bound
      about the log's own impressions; "queries" for one about other queries like them, whatever the impressions of one have
      in common.
    - `engine`: what reads the log, as in `logs.read`; the same bits either way.
    - `reward_column`: what is counted in place of clicks: the column of the log with what clicked items were worth.
    - `reward`: a reward model, such as the beliefs of `learn`, that was fitted to other impressions in the vocabulary of the
      log; "doubly_robust" needs one.
    """

    examination: Curve | CellCurve | ArrayLike = "reciprocal"
    estimator: Estimator = "auto"
    propensity: Asked = "auto"
    logging_policy: TwoStagePolicy | FittedLogger | None = None
    other_log: Feedback | None = None
    samples: int = 20
    level: float = 0.95
    seed: int = 0
    engine: Engine = "local"
    reward: RewardModel | None = None
    independent: Independent | None = None
    reward_column: str | None = None

    def __post_init__(self) -> None:
        """Refuses by name what a switch does not take."""
        if isinstance(self.examination, ExaminationCurve):
            object.__setattr__(self, "examination", self.examination.curve)
        if isinstance(self.examination, CellCurve):
            pass
        elif not isinstance(self.examination, str):
            object.__setattr__(self, "examination", check_examination(self.examination))
        elif self.examination not in get_args(Curve):
            raise ConfigError(
                f"examination must be {' or '.join(get_args(Curve))}, or a number for each rank; got {self.examination!r}."
            )
        for name in ("estimator", "propensity", "engine"):
            of_kind(name, getattr(self, name), str)
        of_kind("reward_column", self.reward_column, str, None)
        check_engine(self.engine)
        if self.estimator not in get_args(Estimator):
            raise ConfigError(f"estimator must be one of {', '.join(get_args(Estimator))}; got {self.estimator!r}.")
        self._check_sources()
        if self.independent not in (None, *get_args(Independent)):
            raise ConfigError(f"independent must be {' or '.join(get_args(Independent))}; got {self.independent!r}.")
        for name, least in (("samples", 1), ("seed", 0)):
            value = getattr(self, name)
            most = 2**63 - 1 if name == "seed" else MOST_DRAWS
            if not isinstance(value, Integral) or not least <= int(value) <= most:
                raise ConfigError(f"{name} must be a whole number, {least} to {most}; got {value!r}.")
        # Beyond these a share of 1 - level, divided among several policies and sides, is lost in rounding.
        if not isinstance(self.level, Real) or not LOWEST_LEVEL <= self.level <= HIGHEST_LEVEL:
            raise ConfigError(f"level must be a number from {LOWEST_LEVEL} to {HIGHEST_LEVEL}; got {self.level!r}.")

    def _check_sources(self) -> None:
        """Refuses a reward model, a logging policy or another log that is none, or that the estimator does not use."""
        if not isinstance(self.reward, RewardModel | None):
            raise ConfigError(f"reward must be a reward model, as the beliefs of `learn` are; got {self.reward!r:.60}.")
        if self.estimator == "completed" and self.propensity not in ("auto", "frequency"):
            raise ConfigError(
                f"the estimator completed counts what was shown: leave propensity out; got {self.propensity!r}."
            )
        if self.reward is not None and self.estimator not in ("auto", "doubly_robust", "completed"):
            raise ConfigError(
                f"the estimator {self.estimator} uses no reward model: leave `reward` out, or take doubly_robust."
            )
        if self.reward is None and self.estimator == "doubly_robust":
            raise ConfigError("doubly_robust needs a reward model: give `reward`, or take another estimator.")
        if not isinstance(self.logging_policy, TwoStagePolicy | FittedLogger | None):
            raise ConfigError(
                f"logging_policy must be a TwoStagePolicy or a FittedLogger; got {self.logging_policy!r}. Load a saved policy "
                "first."
            )
        if not isinstance(self.other_log, Feedback | None):
            raise ConfigError(f"other_log must be Feedback, as `logs.read` gives it; got {self.other_log!r}.")

    @classmethod
    def of(cls, question: "Question | None", switches: dict[str, Any]) -> "Question":
        """The question with some of its fields as keywords."""
        names = {field.name for field in fields(cls)}
        if unknown := sorted(switches.keys() - names):
            raise ConfigError(f"unknown keyword {unknown[0]!r}; a question has {', '.join(sorted(names))}.")
        return replace(question or cls(), **switches)
