"""Queries and items that the log has not seen, answered by every kind of policy that `learn` makes, wherever one is asked."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

import featured
import tandemrank as tr
from featured import NEW, RELEVANCE, D, K
from tandemrank.errors import PolicyError
from tandemrank.experiments import evaluation
from tandemrank.experiments.datasets import Task
from tandemrank.policies.two_stage import extended

METHODS = ("beliefs", "independent", "baseline", "stacking", "joint")
KINDS = (*METHODS, "one stage", "production kept", "staying", "excluding", "own ranker", "hybrid")
LATE = 7  # an item that appeared in the middle of the log
NEW_QUERY, NEW_ITEM = (featured.table(side, slice(-1, None)) for side in ("query", "item"))
FEATURES = NEW_QUERY.drop("query_id").row(0, named=True)
# Of a retriever that knows all items, also the new one, and the queries of the log.
RETRIEVED = pl.DataFrame(
    [(q, d, float((7 * q + 3 * d) % 11)) for q in range(len(RELEVANCE) - 1) for d in (*range(D), NEW)],
    schema=["query_id", "item_id", "words"],
    orient="row",
)


class Plain(tr.Ranker):
    """Knows items by their ids, and queries not at all."""

    def prepare(self):
        self.level = nn.Parameter(torch.zeros(len(self.vocabulary.item_ids)))

    def score(self, q, items):
        return self.level[items]


def learned(log: pl.DataFrame, config: dict, **more: object) -> tr.Learned:
    start = tr.Start(query_features=featured.table("query"), item_features=featured.table("item"))
    return tr.learn(log, tr.LearningConfig(**{"candidates": 12, **config}), start=start, **more)


@pytest.fixture(scope="module")
def policies() -> dict[str, tr.TwoStagePolicy]:
    log, short = featured.log(2500, late=LATE), featured.log(400)
    found = learned(log, {"model": "network", "training": {"epochs": 1}}, methods=list(METHODS))
    f = found.beliefs.chosen.f
    assert ("network" in f.words, f.of_new) == (True, (True, True))
    same = short.with_columns(items=pl.lit([1, 2, 3, 4]))  # lists never vary
    others = {
        "one stage": learned(short, {"model": "none", "candidates": D}),
        "production kept": learned(short, {"model": "none", "safe": True}),
        "staying": learned(same, {"model": "none"}),
        "excluding": learned(short, {"model": "none", "exclude": "clicked"}),
        "own ranker": learned(short, {"model": "none"}, ranker=Plain(), method="baseline"),
        "hybrid": learned(short, {"model": "none"}, generator=tr.Hybrid(RETRIEVED)),
    }
    assert others["production kept"].gates["beliefs"].kept_production
    assert others["staying"].trained["beliefs"].stays
    return {m: one.policy for m, one in found.trained.items()} | {name: one.policy for name, one in others.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_recommend_answers_a_new_query_and_takes_a_new_item(kind, policies) -> None:
    policy = policies[kind]
    found = policy.recommend([NEW, 3], query_features=NEW_QUERY, item_features=NEW_ITEM)
    known = policy.recommend([3])["items"].to_list()[0]
    new, old = found["items"].to_list()
    assert len(set(new)) == K
    assert old == known or NEW in old
    larger = extended(policy, item_features=NEW_ITEM)
    q, items = torch.tensor([3]), torch.arange(D)[None]
    assert torch.allclose(larger.ranker.score(q, items), policy.ranker.score(q, items), atol=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_serve_estimate_and_evaluate_answer_a_new_query(kind, policies) -> None:
    policy = policies[kind]
    server = tr.Server(policy, seed=1)
    by_features, unknown = server.rank(NEW, query_features=FEATURES), server.rank(NEW)
    takes = bool(policy.ranker.query_columns)
    assert by_features.source == ("features" if takes else "popular")
    assert unknown.source == "popular"
    assert len(by_features.items) == len(unknown.items) == K
    log = featured.log(300, seed=9).with_columns(
        query_id=pl.when(pl.col("query_id") < 9).then(NEW).otherwise("query_id")
    )
    log = log.with_columns(
        items=pl.col("items").list.eval(pl.when(pl.element() == 5).then(NEW).otherwise(pl.element()))
    )
    value = tr.estimate(extended(policy, item_features=NEW_ITEM), log, propensity="frequency", samples=4)
    assert any("the policy does not know, valued as the average query" in reason for reason in value.reasons)
    known = tr.estimate(extended(policy, query_features=NEW_QUERY), log, propensity="frequency", samples=4)
    assert not any("queries that the policy does not know" in reason for reason in known.reasons)
    ids = tr.Vocabulary([3, 4, NEW], [*range(D), NEW])
    truth = csr_matrix(RELEVANCE[[3, 4, -1]].astype(np.float32))
    tables = {"query_features": NEW_QUERY, "item_features": NEW_ITEM}
    found = evaluation.judge(
        {kind: policy},
        Task("t", truth, truth, ids),
        evaluation.Truth(truth, 1 / np.arange(1, K + 1), np.arange(3)),
        features=tables,
    )
    assert found.policies[0].ndcg.n == 3
    assert found.notes == (
        f"{kind} has not seen 1 queries (answered by their features, else as the average query) and 1 items (known by their "
        "features, else never shown).",
    )


@pytest.mark.parametrize("kind", METHODS)
def test_features_find_what_is_relevant_to_a_new_query(kind, policies) -> None:
    """Behind a generator of 12 of 40 items: the best list has .80, one by chance .32."""
    [shown] = policies[kind].recommend([NEW], query_features=NEW_QUERY)["items"].to_list()
    assert RELEVANCE[-1, shown].mean() > 0.7


@pytest.mark.parametrize("kind", METHODS)
def test_a_new_item_is_shown_by_its_belief_and_one_that_came_late_as_its_showings_say(kind, policies) -> None:
    """The generator does not leave it out for being new: it has the place that the re-ranker gives it. Who is likely to like it
    is drawn it now and then (of ten fits with other seeds, for .0015 to .064 of the lists), and others never."""
    larger = extended(policies[kind], item_features=NEW_ITEM)
    for d, often in ((D, 0.001), (LATE, 0.2)):
        order = np.argsort(RELEVANCE[:-1, d])
        few, many = (np.sort(q) for q in (order[:40], order[-40:]))
        before = [(s[:, :D] > s[:, [d]]).sum(1).double().mean() for s in larger.plain_scores(many)]
        assert before[0] < min(before[1] + 3, larger.K2)
        theta = np.ones(K)  # exposure is then the chance of being shown
        rho = [larger.exposure(q, np.full(40, d), theta, samples=40)[0].mean() for q in (few, many)]
        assert rho[1] > often
        assert rho[0] < 0.05 * rho[1]


def test_an_own_model_keeps_its_weights_and_gives_new_items_their_mean(policies) -> None:
    policy = policies["own ranker"]
    with torch.no_grad():
        policy.ranker.level[:] = torch.arange(D)
    larger = extended(policy, item_features=NEW_ITEM, query_features=NEW_QUERY)
    assert larger.ranker.level.tolist() == [*range(D), (D - 1) / 2]

    class Table(tr.Ranker):
        def __init__(self, rows):
            super().__init__()
            self.rows = rows

        def prepare(self):
            self.x = tr.buffer([self.rows[str(item)] for item in self.vocabulary.item_ids])

        def score(self, q, items):
            return self.x[items]

    given = Table({str(d): float(d) for d in range(D)})
    own = tr.TwoStagePolicy(policy.generator, given, policy.K2, K, policy.vocabulary)
    with pytest.raises(
        PolicyError, match=r"a Table cannot score what it has not seen: KeyError: '900'\. Its constructor"
    ):
        extended(own, item_features=NEW_ITEM)


def test_features_of_a_side_that_had_none_are_refused(policies) -> None:
    found = tr.learn(featured.log(500), tr.LearningConfig(candidates=12, model="none"))
    with pytest.raises(PolicyError, match="learned without features of queries: leave them out"):
        found.policy.recommend([NEW], query_features=NEW_QUERY)
    with pytest.raises(PolicyError, match="learned without features of items: leave them out"):
        found.policy.recommend([3], item_features=NEW_ITEM)
