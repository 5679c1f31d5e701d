"""From a log to a trained pair: one loop, to which Baseline, Independent and Joint are values.

- `config`: the switches
- `parts`: an own log in its parts: for training, for stopping, for valuing
- `data`: from a log to what training needs: propensities, clipping, weights
- `weights`: the estimators as weights of the documents; `documents`: what the loop asks of them
- `caution`: caution in the loop: weights that change as the exposures move
- `safe`: caution as a change of these weights
- `ranks`: the weights of the ranks
- `schedules`: Baseline, Independent and Joint as data; whether a phase begins from the mean of both stages
- `sparse`: the objective of a minibatch over very many items
- `steps`: how parameters move along their gradients
- `history`: how a training went, and where it stands
- `stopping`: when to stop, by held-out clicks
- `checkpoint`: where a training stands, on disk
- `loop`: the loop
- `team`: who trains which queries, one process or several; `ray_train`: several, on a Ray cluster
- `driver`: runs the phases of a method, each with its seed and checkpoint; a stage that is trained alone is trained once
- `gate`: what caution did, and production where nothing is surely better
- `informed`: pairs that start from the posterior of the log
- `knowledge`: what a start knows, as the prior of a posterior
- `staying`: pairs that stay by what each query was shown, where the log cannot speak of more
- `start`: where training starts without ratings
- `choice`: the method that held-out clicks choose, and a word where clicks are few
- `results`: what `learn` gives, as types
- `learning`: `learn`: from an own log to trained pairs and what each would be worth
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
