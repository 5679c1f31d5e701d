"""TandemRank: learn and judge both stages of a ranking system, the candidate generator and the re-ranker, from click logs.

    validate(log)          is it fit, and what can it answer?    examine(log)             how much do users look at each rank?
    estimate(policy, log)  what would a policy be worth, live?   compare(new, old, log)   and against another, or production?
    learn(log)             both stages from the clicks           decide(policies, log)    ship, canary or do not, and why
    load(folder)           a saved policy                        evaluate(policy, relevance, theta)   its worth by the truth
    read(files)            a log, read once                      train(policy, data)      given stages, by one method

The names below are the public API. Each is imported when it is first used, so `import tandemrank` itself is instant; the
packages are described in docs/explanation/design.md, the symbols in docs/reference/notation.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Where a name of the API lives.
_HOME = {
    # verbs
    "compare": "offpolicy.valuation",
    "decide": "decisions.decision",
    "estimate": "offpolicy.valuation",
    "estimate_candidates": "offpolicy.how_many",
    "evaluate": "experiments.evaluation",
    "examine": "clicks.examination",
    "learn": "training.learning",
    "load": "policies.two_stage",
    "read": "logs.log",
    "simulate": "clicks.simulation",
    "train": "training.methods",
    "validate": "logs.validation",
    # a policy and what it is made of
    "Generator": "policies.own",
    "GivenScores": "policies.scorers",
    "Hybrid": "policies.hybrid",
    "MatrixFactorisation": "policies.scorers",
    "Ranker": "policies.own",
    "Server": "serving.engine",
    "Shadow": "logs.details",
    "TwoStagePolicy": "policies.two_stage",
    "Vocabulary": "_base.ids",
    "buffer": "policies.own",
    # configurations
    "ExperimentConfig": "experiments.config",
    "GridConfig": "experiments.config",
    "LearningConfig": "training.config",
    "Start": "training.start",
    "TrainingConfig": "training.config",
    # results
    "Comparison": "offpolicy.comparison",
    "Decision": "decisions.decision",
    "Evaluation": "experiments.evaluation",
    "ExaminationCurve": "clicks.examination",
    "Log": "logs.sources",
    "Learned": "training.results",
    "Validation": "logs.validation",
    "Value": "offpolicy.values",
}
_PACKAGES = (
    "beliefs",
    "clicks",
    "decisions",
    "errors",
    "experiments",
    "gradients",
    "logs",
    "offpolicy",
    "policies",
    "reports",
    "serving",
    "sessions",
    "training",
)

__all__ = sorted([*_HOME, *_PACKAGES, "__version__"])

if TYPE_CHECKING:
    from tandemrank import beliefs as beliefs
    from tandemrank import clicks as clicks
    from tandemrank import decisions as decisions
    from tandemrank import errors as errors
    from tandemrank import experiments as experiments
    from tandemrank import gradients as gradients
    from tandemrank import logs as logs
    from tandemrank import offpolicy as offpolicy
    from tandemrank import policies as policies
    from tandemrank import reports as reports
    from tandemrank import serving as serving
    from tandemrank import sessions as sessions
    from tandemrank import training as training
    from tandemrank._base.ids import Vocabulary as Vocabulary
    from tandemrank.clicks.examination import ExaminationCurve as ExaminationCurve
    from tandemrank.clicks.examination import examine as examine
    from tandemrank.clicks.simulation import simulate as simulate
    from tandemrank.decisions.decision import Decision as Decision
    from tandemrank.decisions.decision import decide as decide
    from tandemrank.experiments.config import ExperimentConfig as ExperimentConfig
    from tandemrank.experiments.config import GridConfig as GridConfig
    from tandemrank.experiments.evaluation import Evaluation as Evaluation
    from tandemrank.experiments.evaluation import evaluate as evaluate
    from tandemrank.logs.details import Shadow as Shadow
    from tandemrank.logs.log import read as read
    from tandemrank.logs.sources import Log as Log
    from tandemrank.logs.validation import Validation as Validation
    from tandemrank.logs.validation import validate as validate
    from tandemrank.offpolicy.comparison import Comparison as Comparison
    from tandemrank.offpolicy.how_many import estimate_candidates as estimate_candidates
    from tandemrank.offpolicy.valuation import compare as compare
    from tandemrank.offpolicy.valuation import estimate as estimate
    from tandemrank.offpolicy.values import Value as Value
    from tandemrank.policies.hybrid import Hybrid as Hybrid
    from tandemrank.policies.own import Generator as Generator
    from tandemrank.policies.own import Ranker as Ranker
    from tandemrank.policies.own import buffer as buffer
    from tandemrank.policies.scorers import GivenScores as GivenScores
    from tandemrank.policies.scorers import MatrixFactorisation as MatrixFactorisation
    from tandemrank.policies.two_stage import TwoStagePolicy as TwoStagePolicy
    from tandemrank.policies.two_stage import load as load
    from tandemrank.serving.engine import Server as Server
    from tandemrank.training.config import LearningConfig as LearningConfig
    from tandemrank.training.config import TrainingConfig as TrainingConfig
    from tandemrank.training.learning import learn as learn
    from tandemrank.training.methods import train as train
    from tandemrank.training.results import Learned as Learned
    from tandemrank.training.start import Start as Start
else:
    # Not seen by a type checker, to which every name that is not above stays an error.

    def __getattr__(name: str) -> object:
        """Imports a public name at its first use (PEP 562)."""
        if name in _HOME:
            value = getattr(import_module(f"tandemrank.{_HOME[name]}"), name)
        elif name in _PACKAGES:
            value = import_module(f"tandemrank.{name}")
        else:
            raise AttributeError(f"module 'tandemrank' has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """The public names."""
        return __all__
