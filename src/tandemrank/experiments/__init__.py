"""Where the truth is known: data sets, the paper's experiment, its table.

- `synthetic`: the embedded synthetic world
- `datasets`: ratings become a `Task`: synthetic, MovieLens, own ratings
- `config`: the experiment's switches and presets
- `world`: a task, its production policy and the log of its clicks
- `evaluation`: NDCG, recall, expected clicks; paired differences
- `trainer`: three ways to learn from one log, and the references
- `peers`: what a practitioner would pick instead, tuned on held-out clicks
- `cells`: what a grid is made of
- `records`: the record of a finished cell
- `grid`: tables of experiments, resumable, on local processes or on Ray
- `table`: from records to the table
- `paper`: Table 1 of the paper
- `simulation`: a log of the production policy, as files
- `judging`: how good saved policies truly are
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
