"""TandemRank: learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.

The names below are the public API. Each is imported when it is first used, so `import tandemrank` itself is instant; the
modules are described in docs/design.md, the symbols in docs/notation.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "ClickModel",
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
    "Vocabulary",
    "__version__",
    "clicks",
    "datasets",
    "errors",
    "evaluate",
    "evaluation",
    "experiments",
    "features",
    "feedback",
    "grid",
    "learn",
    "learning",
    "logs",
    "objectives",
    "own_logs",
    "plackett_luce",
    "policies",
    "prepare",
    "race",
    "reinforce",
    "report",
    "scorers",
    "starts",
    "towers",
    "train",
    "training",
    "validation",
    "workflows",
]

# Where a name of the API lives; what is not here is a module of its own.
_HOME = {
    "ClickModel": "clicks",
    "Estimate": "objectives",
    "Evaluation": "evaluation",
    "ExperimentConfig": "experiments",
    "Feedback": "feedback",
    "GivenScores": "scorers",
    "GridConfig": "grid",
    "Impressions": "clicks",
    "Learned": "own_logs",
    "LearningConfig": "learning",
    "MatrixFactorisation": "scorers",
    "Scorer": "scorers",
    "Start": "own_logs",
    "StartConfig": "own_logs",
    "TandemRankError": "errors",
    "Task": "datasets",
    "Trained": "training",
    "TrainingConfig": "training",
    "TwoStagePolicy": "policies",
    "TwoTowers": "towers",
    "Vocabulary": "vocabulary",
    "evaluate": "evaluation",
    "learn": "own_logs",
    "prepare": "learning",
    "train": "training",
}

if TYPE_CHECKING:
    from tandemrank import (
        clicks,
        datasets,
        errors,
        evaluation,
        experiments,
        features,
        feedback,
        grid,
        learning,
        logs,
        objectives,
        own_logs,
        plackett_luce,
        policies,
        race,
        reinforce,
        report,
        scorers,
        starts,
        towers,
        training,
        validation,
        workflows,
    )
    from tandemrank.clicks import ClickModel, Impressions
    from tandemrank.datasets import Task
    from tandemrank.errors import TandemRankError
    from tandemrank.evaluation import Evaluation, evaluate
    from tandemrank.experiments import ExperimentConfig
    from tandemrank.feedback import Feedback
    from tandemrank.grid import GridConfig
    from tandemrank.learning import LearningConfig, prepare
    from tandemrank.objectives import Estimate
    from tandemrank.own_logs import Learned, Start, StartConfig, learn
    from tandemrank.policies import TwoStagePolicy
    from tandemrank.scorers import GivenScores, MatrixFactorisation, Scorer
    from tandemrank.towers import TwoTowers
    from tandemrank.training import Trained, TrainingConfig, train
    from tandemrank.vocabulary import Vocabulary
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
