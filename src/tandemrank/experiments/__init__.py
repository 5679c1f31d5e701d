"""Where the truth is known: data sets, the paper's experiment, its table.

- `synthetic`: the embedded synthetic world
- `datasets`: data sets by name or path; MovieLens, read or downloaded; own ratings
- `config`: the experiment's switches and presets, and the cells of a grid
- `world`: a task, its production policy and the clicks on its lists, also as files
- `evaluation`: NDCG, recall, expected clicks; means, and paired differences of policies
- `trainer`: a log ready for training, the methods that learn from it, and the references
- `results`: what experiments come to, as types, and as JSON
- `grid`: grids of experiments, resumable, on local processes or on Ray, and their table; Table 1 of the paper
- `stage_models`: two models for two stages that know different things
- `study`: when it pays to train such stages for each other
- `qrels`: policies by graded judgements
- `live_loop`: the live loop: a server, users over HTTP, learning, the gate, a live verdict
"""

from typing import TYPE_CHECKING, Any

from tandemrank._base import modules_of

if TYPE_CHECKING:
    from tandemrank.experiments.trainer import PaperWorld

__getattr__ = modules_of(__name__)


def paper(
    data: str = "ml-1m", *, K2: int = 500, preset: str = "tandem", seed: int = 0, **switches: Any
) -> "PaperWorld":
    """The paper's experiment by hand: `start`, the policy that methods train; `log(N)`, clicks on production's lists; `truth`.

    `data` as in the command `table`, such as the zip of MovieLens-1M; `preset`: "tandem", or "paper", its literal reading,
    which takes far longer; `switches` of an experiment (docs/explanation/experiment.md) by their names.
    """
    from tandemrank.experiments.trainer import paper_world

    return paper_world(data, K2, preset, seed, switches)
