"""Beliefs: what a log says of the relevance of every item to every query, and how sure that is.

- `model`: the interface of all reward models
- `posterior`: the posterior with memory: hierarchical Bayes, clicks and non-clicks, each pair's own showings
- `item_rate`: click rates by item, by query and by pair
- `memory`: what a pair's own showings say, and how noisy clicks are
- `levels`: how relevant items are on the whole; `space`: how queries may differ; `steps`: the steps of the fit
- `vectors`: the vectors of a policy, as the prior of a posterior
- `features`: what models of features see; `models`: f, their kinds; `model_fit`: how they are fitted and chosen
- `scorer`: the posterior as the scores of a stage
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
