"""Where the truth is known: data sets, the paper's experiment, its table.

- `synthetic`: the embedded synthetic world
- `ratings`: ratings become a `Task`
- `movielens`: MovieLens, read or downloaded
- `datasets`: data sets by name or path
- `config`: the experiment's switches and presets
- `world`: a task, its production policy and the clicks on its lists
- `simulated_log`: such a log as files
- `evaluation`: NDCG, recall, expected clicks; paired differences of policies
- `trainer`: a log ready for training, three ways to learn from it, and the references
- `cells`: what a grid is made of
- `results`: what experiments come to, as types, and as JSON
- `store`: the folder of a grid: claimed, locked, its finished cells
- `grid`: tables of experiments, resumable, on local processes or on Ray
- `table`: from finished cells to the table
- `stage_models`: two models for two stages that know different things
- `study`: settings, cells and table of the study of two models; `when_joint`: its trainings: when it pays to train stages for
  each other
- `paper`: Table 1 of the paper
- `live_loop`: the circle: a server, users over HTTP, training, the gate, a live verdict
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
