"""What clicks of the past say about a pair that was not live.

- `names`: the names of what is chosen among
- `propensities`: propensities of every kind and their clipping: the only place that chooses either (logged ones are pooled in
  `logs.feedback`)
- `logger`: the logging policy fitted to its lists, for logs that have no propensities
- `calibration`: a fitted logging policy against its log: propensities corrected by groups of pairs, and by clicked ones
- `estimate`: a value as a ratio of sums over queries
- `estimators`: the estimators: arrays in, an `Estimate` out
- `catalogue`: the estimators by their names, called with what a log says
- `folds`: parts of a log by query, for cross-fitting
- `reward`: reward models: what an examined item is worth to a query
- `uncertainty`: the bootstrap over queries
- `bounds`: lower bounds of a value or of a difference, for any number of queries
- `impression_bound`: a tighter one about the log's own impressions, where each list was drawn anew
- `certainty`: what a difference is at least, for whoever acts on it
- `sequential`: the same at every moment of a stream: live traffic in two arms
- `exposure`: how a pair spreads the attention of a log's queries over the items
- `identification`: the worst and the best case of what the log never showed
- `diagnostics`: what a value rests on: support by stage, weights
- `verdicts`: may it be believed: the rules and the words
- `sensitivity`: a value under other examination curves
- `frequency`: whom a pair helps: differences by how often a query came
- `values`: the typed results, `Value` and `Comparison`, made from arrays
- `question`: how a log is asked: the switches of `estimate`, `compare` and `decide`
- `valuation`: `estimate` and `compare`: what a pair would be worth, from a log
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
