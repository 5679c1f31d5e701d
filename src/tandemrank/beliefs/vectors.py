"""Vectors of queries and items: what a factorisation knows, as the prior of a belief."""

from torch import Tensor

from tandemrank._base.ids import Vocabulary, positions_of, same_ids
from tandemrank.beliefs.space import Vectors
from tandemrank.policies.memory import base_of
from tandemrank.policies.two_stage import TwoStagePolicy


def vectors_of(policy: TwoStagePolicy | None, vocabulary: Vocabulary) -> Vectors | None:
    """The vectors of a policy's re-ranker in a vocabulary.

    None where it has none, or does not know every id.  Shapes: -> [Q, F], [D, F].
    """
    if policy is None:
        return None
    scorer = base_of(policy.ranker)
    found = [getattr(scorer, name, None) for name in ("queries", "items")]
    if not all(isinstance(x, Tensor) for x in found):
        return None
    queries, items = (x.detach().numpy() for x in found if isinstance(x, Tensor))
    own = policy.vocabulary
    if not same_ids(own, vocabulary):
        q = positions_of(own.query_ids, vocabulary.query_ids, "query", missing="mark")
        d = positions_of(own.item_ids, vocabulary.item_ids, "item", missing="mark")
        if min(q.min(initial=0), d.min(initial=0)) < 0:
            return None
        queries, items = queries[q], items[d]
    return Vectors(queries, items)
