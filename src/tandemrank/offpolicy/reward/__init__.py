"""Reward models: what an examined (query, item) is worth, from the log alone.

- `model`: the interface of all; `storage`: how they are saved
- `item_rate`: click rates by item, by query and by pair
- `posterior`: the posterior with memory: hierarchical Bayes, clicks and non-clicks, each pair's own showings
- `featured`: the posterior for queries and items without history: features as the prior mean of both sides
- `tables`: these features as numbers
- `memory`: what a pair's own showings say; `noise`: how noisy clicks are
- `levels`: how relevant items are on the whole; `space`: how queries may differ; `steps`: the steps of the fit
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
