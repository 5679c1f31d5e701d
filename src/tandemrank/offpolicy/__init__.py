"""What clicks of the past say about a policy that was not live.

- `estimators`: the estimators: arrays in, an `Estimate` out; parts of a log by query, for cross-fitting
- `propensities`: propensities of every kind and their clipping: the only place that chooses either (logged ones are summed in
  `logs.feedback`)
- `logger`: the logging policy fitted to its lists, for logs that have no propensities
- `calibration`: a fitted logging policy against its log: propensities corrected by groups of pairs, and by clicked ones
- `examined`: how the ranks of a policy are examined, where that depends on more than the rank
- `exposure`: how a policy spreads the attention of a log's queries over the items
- `uncertainty`: the noise over impressions, of races and of fits; other examination curves
- `bounds`: lower bounds of a value or of a difference, for any number of queries: over queries, or over the log's impressions
- `sequential`: the same at every moment of a stream: live traffic in two arms
- `diagnostics`: what a value rests on: support by stage, weights; the worst and the best case of what the log never showed
- `verdicts`: may it be believed: the rules and the words
- `question`: how a log is asked: the argument that `estimate`, `compare` and `decide` share
- `rewards`: values by what clicked items were worth, in place of clicks
- `whole_lists`: a reward of the whole list, by the pseudo-inverse, for few items
- `shadows`: the lists that another system would have shown, beside those that were
- `evidence`: what a log says, whatever the policy: its curve, propensities, estimator, reward models
- `values`: the typed result `Value`, with interval and bound
- `strangers`: queries and items of a log that a policy does not know, valued as it would answer them
- `comparison`: the paired difference of two values, what it is surely at least, and by how often a query came
- `valuation`: `estimate` and `compare`: what a policy would be worth, from a log
- `how_many`: how many candidates: value against K2, cost, and what each stage loses
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
