"""From a log to both stages: one loop, to which Baseline, Independent, Stacking and Joint are values.

- `learning`: `learn`: read -> believe -> build -> train -> value; refuses switches that would have no effect
- `config`: the switches, and which cannot be combined
- `parts`: an own log in its parts: for training, for valuing (`logs.counting` splits it)
- `data`: what a log says, ready for training: propensities, beliefs, weights
- `weights`: what training maximises: weights of the documents, and of the ranks
- `start`: what `learn` may start from besides the clicks
- `choosing`: whether training the generator pays, by what the beliefs expect
- `schedules`: the methods as data; whether a phase begins from the mean of both stages
- `driver`: runs the phases of a method, each with its seed and checkpoint; a stage that is trained alone is trained once
- `methods`: `train`: one method from a policy
- `loop`: the loop, its learning rates falling; `objective`: what a minibatch improves; `steps`: how parameters move
- `checkpoint`: where a training stands, its epochs so far, and all of it on disk
- `team`: who trains which queries, one process or several; `ray_train`: several, on a Ray cluster
- `valuing`: what was learned, valued; the gate; policies that keep what each query was shown
- `rewards`: what clicks are worth, where that is learned
- `results`: what `learn` gives, as types
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
