"""From a log to both stages: one loop, to which Baseline, Independent, Stacking and Joint are values.

- `learning`: `learn`: read -> believe -> build -> train -> value; refuses switches that would have no effect
- `config`: the switches, and which cannot be combined
- `start`: what `learn` may start from besides the clicks, and both stages before training
- `parts`: an own log in its parts: for training, for valuing (`logs.counting` splits it); its rewards, where these are learned
- `data`: what a log says, ready for training: propensities, beliefs, weights
- `weights`: what training maximises: weights of the documents, and of the ranks
- `schedules`: the methods as data; whether a phase begins from the mean of both stages
- `methods`: runs a method, phase by phase, each with its seed and checkpoint; `train`: one; which is expected to pay
- `loop`: the loop, its learning rates falling; `objective`: what a minibatch improves; `steps`: how parameters move
- `checkpoint`: where a training stands, its epochs so far, and all of it on disk
- `team`: who trains which queries, one process or several; `ray_train`: several, on a Ray cluster
- `valuing`: what was learned, valued; the gate; policies that keep what each query was shown
- `results`: what `learn` gives, as types
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
