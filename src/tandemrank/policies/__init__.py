"""What scores items and shows lists: scorers, features, and the two stages as one policy.

- `scorers`: what scores items: matrix factorisation, given scores
- `features`: tables of features as numbers, and the encoder that remembers how
- `ahead`: scores that look ahead, over sessions
- `memory`: what is remembered of single pairs; any scorer with a memory, and a light generator with a list of each query, whose
  vectors of what it has not seen come from the scores of its re-ranker
- `contexts`: what a context changes in the scores of a stage
- `candidates`: a policy whose re-ranker sees candidates only, for any number of items; exact retrieval
- `hybrid`: hybrid retrieval, a weighted sum of given retrievers' scores
- `own`: models of one's own: `Ranker`, `Generator`, and modules as f, saved by their constructor's arguments
- `storage`: saved policies: a folder that is checked before it is believed
- `two_stage`: `TwoStagePolicy`: both stages as one
- `outside`: any outside system as a policy, from its scores
"""

from tandemrank._base import modules_of

__getattr__ = modules_of(__name__)
