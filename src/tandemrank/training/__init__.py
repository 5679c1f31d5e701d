"""From a log to a trained pair: one loop, to which Baseline, Independent and Joint are values.

- `config`: the switches
- `data`: from a log to what training needs: propensities, clipping, weights
- `weights`: the estimators as weights of the documents
- `safe`: caution as a change of these weights
- `schedules`: Baseline, Independent and Joint as data
- `steps`: how parameters move along their gradients
- `history`: how a training went, and where it stands
- `stopping`: when to stop, by held-out clicks
- `loop`: the loop, and its checkpoints
- `start`: where training starts without ratings
- `learning`: `learn`: from an own log to trained pairs and what each would be worth
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
