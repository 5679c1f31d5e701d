"""TandemRank: learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.

The names below are the public API. Each is imported when it is first used, so `import tandemrank` itself is instant; the
modules are described in docs/design.md, the symbols in docs/notation.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ClickModel",
    "Comparison",
    "Estimate",
    "Evaluation",
    "ExperimentConfig",
    "Feedback",
    "GivenScores",
    "GridConfig",
    "Impressions",
    "Learned",
    "LearningConfig",
    "MatrixFactorisation",
    "Scorer",
    "Start",
    "StartConfig",
    "TandemRankError",
    "Task",
    "Trained",
    "TrainingConfig",
    "TwoStagePolicy",
    "TwoTowers",
    "Value",
    "Vocabulary",
    "__version__",
    "clicks",
    "compare",
    "errors",
    "estimate",
    "evaluate",
    "experiments",
    "gradients",
    "learn",
    "load",
    "logs",
    "offpolicy",
    "policies",
    "prepare",
    "reports",
    "train",
    "training",
    "validate",
]

# Where a name of the API lives; what is not here is a package of its own.
_HOME = {
    "ClickModel": "clicks.models",
    "Comparison": "offpolicy.values",
    "Estimate": "offpolicy.estimators",
    "Evaluation": "experiments.evaluation",
    "ExperimentConfig": "experiments.config",
    "Feedback": "logs.feedback",
    "GivenScores": "policies.scorers",
    "GridConfig": "experiments.cells",
    "Impressions": "logs.impressions",
    "Learned": "training.learning",
    "LearningConfig": "training.config",
    "MatrixFactorisation": "policies.scorers",
    "Scorer": "policies.scorers",
    "Start": "training.start",
    "StartConfig": "training.start",
    "TandemRankError": "errors",
    "Task": "experiments.datasets",
    "Trained": "training.loop",
    "TrainingConfig": "training.config",
    "TwoStagePolicy": "policies.two_stage",
    "TwoTowers": "policies.towers",
    "Value": "offpolicy.values",
    "Vocabulary": "_base.ids",
    "compare": "offpolicy.valuation",
    "estimate": "offpolicy.valuation",
    "evaluate": "experiments.evaluation",
    "learn": "training.learning",
    "load": "policies.two_stage",
    "prepare": "training.data",
    "train": "training.loop",
    "validate": "logs.validation",
}

if TYPE_CHECKING:
    from tandemrank import clicks, errors, experiments, gradients, logs, offpolicy, policies, reports, training
    from tandemrank._base.ids import Vocabulary
    from tandemrank.clicks.models import ClickModel
    from tandemrank.errors import TandemRankError
    from tandemrank.experiments.cells import GridConfig
    from tandemrank.experiments.config import ExperimentConfig
    from tandemrank.experiments.datasets import Task
    from tandemrank.experiments.evaluation import Evaluation, evaluate
    from tandemrank.logs.feedback import Feedback
    from tandemrank.logs.impressions import Impressions
    from tandemrank.logs.validation import validate
    from tandemrank.offpolicy.estimators import Estimate
    from tandemrank.offpolicy.valuation import compare, estimate
    from tandemrank.offpolicy.values import Comparison, Value
    from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
    from tandemrank.policies.towers import TwoTowers
    from tandemrank.policies.two_stage import TwoStagePolicy, load
    from tandemrank.training.config import LearningConfig, TrainingConfig
    from tandemrank.training.data import prepare
    from tandemrank.training.learning import Learned, learn
    from tandemrank.training.loop import Trained, train
    from tandemrank.training.start import Start, StartConfig
else:
    # Not seen by a type checker, to which every name that is not above stays an error.

    def __getattr__(name: str) -> object:
        """Imports a public name at its first use (PEP 562)."""
        if name not in __all__:
            raise AttributeError(f"module 'tandemrank' has no attribute {name!r}")
        if name in _HOME:
            value = getattr(import_module(f"tandemrank.{_HOME[name]}"), name)
        else:
            value = import_module(f"tandemrank.{name}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names."""
        return sorted(__all__)
