"""What a policy knows, as the prior of a posterior: the vectors of a factorisation, without its memory."""

from tandemrank._base.ids import Vocabulary, positions_of, same_ids
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.policies.vectors import Vectors


def base_of(stage: Scorer) -> Scorer:
    """A scorer without its memory, if it has one."""
    return stage.base if isinstance(stage, Remembering) else stage


def vectors_of(policy: TwoStagePolicy | None, vocabulary: Vocabulary) -> Vectors | None:
    """The vectors of a policy's re-ranker in a vocabulary: the prior of a posterior.

    None where it is no factorisation, or does not know every id.  Shapes: -> [Q, F], [D, F].
    """
    scorer = None if policy is None else base_of(policy.ranker)
    if policy is None or not isinstance(scorer, MatrixFactorisation):
        return None
    queries, items = (x.detach().numpy() for x in (scorer.queries, scorer.items))
    own = policy.vocabulary
    if not same_ids(own, vocabulary):
        q = positions_of(own.query_ids, vocabulary.query_ids, "query", missing="mark")
        d = positions_of(own.item_ids, vocabulary.item_ids, "item", missing="mark")
        if min(q.min(initial=0), d.min(initial=0)) < 0:
            return None
        queries, items = queries[q], items[d]
    return Vectors(queries, items)
