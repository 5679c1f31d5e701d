"""Beliefs: what a log says of the relevance of every item to every query, and how sure that is.

- `model`: the interface of all reward models
- `counts`: the sums of a log by pair, rank and time, and the distinct kinds of evidence in them
- `grades`: graded relevance and the bit; `noise`: how noisy the clicks on a bit are
- `levels`: how relevant items are on the whole; `choice`: what production's own choice says
- `space`: how queries may differ; `steps`: the steps of vectors; `chunks`: compiled loops in threads
- `features`, `models`: f over what is known of queries and items; `model_fit`: how f is fitted and chosen
- `regression`: what features suggest of the vectors of queries and items
- `turns`: one belief with constants that were chosen; `fitting`: the choice; `belief`: what comes of it
- `sharing`: the fit on a Ray cluster
- `contexts`: what the context of an impression changes
- `vectors`: the vectors of a policy, as the prior of a belief
- `scorer`: the beliefs as the scores of a stage; `exploring`: the same raised by what is not known
- `worth`: what a click on an item is worth, where values are learned
- `judgements`: the beliefs of what a log showed as judgements, in files that other tools take
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
