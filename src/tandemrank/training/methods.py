"""`tr.train`: one method, from a policy and from data that `prepare` made of a log."""

from collections.abc import Callable

from tandemrank._base.arguments import checked
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.checkpoint import Progress
from tandemrank.training.config import TrainingConfig
from tandemrank.training.data import TrainingData
from tandemrank.training.driver import Methods, check_methods
from tandemrank.training.learning import believed_policy
from tandemrank.training.loop import Trained


@checked
def train(
    start: TwoStagePolicy,
    log: TrainingData,
    config: TrainingConfig | None = None,
    *,
    method: str = "joint",
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Trained:
    """Trains both stages of a policy by one method (`schedules`) on what a log says; the policy itself stays as it is.

    `log`: what `training.data.prepare` makes of a log, or `log(N)` of `experiments.paper`. `config`: by default the switches
    that the data came with. A log of one's own goes to `learn`, which also chooses the method and values the result.
    """
    [chosen] = check_methods([method])
    believed = None
    if log.beliefs is not None:
        believed = believed_policy(log.beliefs, start.vocabulary, K2=start.K2, K=start.K)
    switches = config or log.config.training
    driver = Methods(start, believed, log.weights, log.theta[: start.K], switches, seed=seed)
    return driver.train(chosen, progress=progress)
