"""What scores items and shows lists: scorers, features, and the two stages as one policy.

- `scorers`: what scores items: matrix factorisation, given scores; truncated SVD
- `features`: tables of features as numbers, and the encoder that remembers how
- `tower`: one side of them; `towers`: two towers: scores by features, also of queries and items never seen
- `linear`: scores linear in the features of the items, with popularity or without
- `pairs`: features of pairs, and what is done where they are missing
- `cross`: a cross network over features of query, item and pair, for candidates only
- `trees`: gradient-boosted trees over the same, grown on the race's gradient
- `stacked`: a re-ranker that is handed the generator's score
- `stages`: which model each stage is: any generator with any re-ranker
- `memory`: what is remembered of single pairs that were shown; `remembering`: a scorer with a memory
- `candidates`: a pair whose re-ranker sees candidates only, for any number of items
- `retrieval`: the items with the highest generator scores, exactly
- `storage`: saved policies: a folder that is checked before it is believed
- `two_stage`: `TwoStagePolicy`: both stages as one
- `vectors`: vectors of queries and items; `prior`: those of a policy that is a factorisation
- `outside`: any outside system as a policy, from its scores
"""

from tandemrank._base.lazy import modules_of

__getattr__ = modules_of(__name__)
