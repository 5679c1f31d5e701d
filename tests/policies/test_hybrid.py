"""Hybrid retrieval: the weighted sum by hand, its gradient by enumeration, weights from clicks, what is refused."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
import tandemrank as tr
from tandemrank.errors import ConfigError, DataError
from tandemrank.gradients import race
from text_world import THETA, House, TextWorld
from worlds import seeded

IDS = tr.Vocabulary(pl.Series(["a", "b"]), pl.Series(list(range(5))))
# Item 3 is found by nobody, item 9 and query c are not in the vocabulary, and dense has one score for all of b.
TABLE = pl.DataFrame(
    {
        "query_id": ["a", "a", "a", "a", "b", "b", "c", "a"],
        "item_id": [2, 0, 4, 1, 1, 0, 0, 9],
        "bm25": [2.0, 4.0, 3.0, None, 5.0, 1.0, 1.0, 7.0],
        "dense": [0.5, 0.0, None, 1.0, 0.3, 0.3, 1.0, 9.0],
    }
)
# (score - lowest) / (highest - lowest) of what was found; found by one alone: the other counts as 0.
Z = {"a": {0: (1.0, 0.0), 1: (0.0, 1.0), 2: (0.0, 0.5), 4: (0.5, 0.0)}, "b": {0: (0.0, 1.0), 1: (1.0, 1.0)}}


def by_hand(query: str, share: float, sharpness: float) -> list[float]:
    found = Z[query]
    return [
        sharpness * (share * found[d][0] + (1 - share) * found[d][1]) if d in found else -math.inf for d in range(5)
    ]


def bound(generator: tr.Generator) -> tr.Generator:
    generator.bind(IDS)
    return generator


def test_the_score_is_the_weighted_sum_of_normalised_scores() -> None:
    hybrid = bound(tr.Hybrid(TABLE, {"dense": 3, "bm25": 1}, sharpness=8.0))
    expected = torch.tensor([by_hand(query, 0.25, 8.0) for query in "ab"])
    torch.testing.assert_close(hybrid(torch.tensor([0, 1])), expected)
    items = torch.tensor([[4, 0], [3, 1]])
    torch.testing.assert_close(hybrid.score(torch.tensor([0, 1]), items), expected.gather(1, items))
    assert hybrid.shares == pytest.approx({"bm25": 0.25, "dense": 0.75})


def test_the_gradient_by_the_weights_is_that_of_the_enumerated_utility() -> None:
    hybrid, theta, K2 = bound(tr.Hybrid(TABLE, sharpness=3.0)), [1.0, 0.4], 2
    w, r = [0.2, 1.0, 0.4, 0.0, 0.7], [0.1, 0.5, 0, 1, 0.3]
    s = hybrid(torch.zeros(4000, dtype=torch.int64))
    value = race.utility(
        s, torch.tensor([r]).expand(4000, 5), csr_matrix(np.tile(w, (4000, 1))), torch.tensor(theta), K2,
        samples=1, generator=seeded(0),
    )  # fmt: skip

    def exact(logit: float) -> float:
        share = 1 / (1 + math.exp(-logit))
        return enumeration.utility(by_hand("a", share, 3.0), r, w, theta, K2)[0]

    found = value.detach()
    assert float(found.mean()) == pytest.approx(exact(0.0), abs=5 * float(found.std()) / 4000**0.5)
    value.mean().backward()
    slope = (exact(1e-4) - exact(-1e-4)) / 2e-4
    assert hybrid.level.grad[0] / 10 == pytest.approx(slope, abs=0.01)  # weights move ten times as fast
    assert abs(slope) > 0.1
    assert hybrid.level.grad.sum() == pytest.approx(0, abs=1e-5)  # shares: only their differences count


def test_it_is_saved_with_its_table(tmp_path) -> None:
    names = pl.DataFrame({"query_id": ["a", "b"], "kind": ["x", None]})
    for scores in (TABLE, str(tmp_path / "scores.parquet")):
        TABLE.write_parquet(tmp_path / "scores.parquet")
        hybrid = tr.Hybrid(scores, {"bm25": 0.9, "dense": 0.1}, query_features=names)
        policy = tr.TwoStagePolicy(hybrid, House(np.zeros((2, 5))), 3, 2, IDS)
        with torch.no_grad():
            hybrid.by_feature += torch.randn(hybrid.by_feature.shape, generator=seeded(1))
        policy.save(tmp_path / "policy")
        again = tr.load(tmp_path / "policy", models=[House])
        q = torch.tensor([0, 1])
        torch.testing.assert_close(again.generator(q), hybrid(q), rtol=0, atol=0)
        assert again.generator.shares == hybrid.shares


def test_a_query_that_the_table_does_not_have_is_answered_as_the_average_one() -> None:
    """Queries a and b are in the log, c in the table alone, and d nowhere. Item 3 was found for nobody."""
    own = tr.TwoStagePolicy(
        tr.Hybrid(TABLE.filter(pl.col("item_id") < 9), sharpness=8.0), House(np.zeros((2, 5))), 3, 2, IDS
    )
    mean = {d: [sum(Z[q].get(d, (0.0, 0.0))[j] for q in "ab") for j in (0, 1)] for d in (0, 1, 2, 4)}
    mean[0] = [x + 1 for x in mean[0]]  # query c found item 0 alone, by both
    expected = [8 * sum(mean[d]) / 2 / 3 if d in mean else -math.inf for d in range(5)]
    new = own.generator.strangers(None, tr.Vocabulary(pl.Series(["d", "c"]), IDS.item_ids))
    found = new(torch.tensor([0, 1])).tolist()
    assert found[0] == pytest.approx(expected, abs=1e-5)
    assert found[1] == [8.0, *[-math.inf] * 4]
    torch.testing.assert_close(
        own.generator.joined(new, tr.Vocabulary(pl.Series(["a", "b", "d"]), IDS.item_ids))(torch.tensor([2, 0])),
        torch.stack([new(torch.tensor([0]))[0], own.generator(torch.tensor([0]))[0]]),
    )


def test_retrievers_may_be_functions() -> None:
    class Functions(tr.Hybrid):
        names = ("near", "even")

        def retrieve(self, q):
            d = torch.arange(5.0).expand(len(q), -1)
            return torch.stack([-(d - q[:, None]).abs(), torch.where(d % 2 == 0, d, torch.nan)], 2)

    found = bound(Functions(weights={"near": 1, "even": 1}, sharpness=2.0))(torch.tensor([0]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.75, 0.5 + 0.5, 0.25, 0.0 + 1.0]]))


def test_weights_by_query_features_are_learned() -> None:
    """Half of the queries want what bm25 finds, the other half what dense finds, and a column of features says which."""
    rng, (Q, D) = np.random.default_rng(0), (60, 30)
    s = rng.random((2, Q, D))
    kind = np.arange(Q) % 2
    R = np.where(kind[:, None] == 0, s[0], s[1]) ** 6
    q, d = (x.ravel() for x in np.meshgrid(np.arange(Q), np.arange(D), indexing="ij"))
    table = pl.DataFrame({"query_id": q, "item_id": d, "bm25": s[0].ravel(), "dense": s[1].ravel()})
    features = pl.DataFrame({"query_id": np.arange(Q), "asks": ["name", "topic"] * (Q // 2)})
    ids = tr.Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
    start = tr.TwoStagePolicy(tr.Hybrid(table, query_features=features), House(4 * R), 5, 3, ids)
    found = tr.training.loop.train(start, csr_matrix(R), [1.0, 0.5, 0.3], method="baseline").policy.generator
    shares = found.weights(torch.arange(Q))[:, 0].detach().numpy()
    assert shares[kind == 0].min() > 0.75
    assert shares[kind == 1].max() < 0.25


def test_weights_learned_from_clicks_are_near_the_best_and_surely_better_than_todays() -> None:
    world = TextWorld(seed=0)
    live = world.policy(world.hybrid(0.05, sharpness=20.0))  # dense nearly alone, with some variation
    new = tr.learn(
        world.log(live, 12_000, seed=1), tr.LearningConfig(candidates=10), generator=world.hybrid(0.05),
        logging_policy=live,
    ).policy  # fmt: skip
    best = max(world.value(world.policy(world.hybrid(share), new.ranker)) for share in np.arange(0.1, 1, 0.1))
    today = world.policy(world.hybrid(0.05), new.ranker)
    assert world.value(new) > best - 0.02
    assert world.value(today) < best - 0.05
    found = tr.compare(new, today, world.log(live, 40_000, seed=2), logging_policy=live, examination=THETA)
    assert 0 < found.lower_bound < world.value(new) - world.value(today)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: tr.Hybrid(TABLE.drop("bm25", "dense")), "a column of scores for each retriever"),
        (lambda: tr.Hybrid(), "a column of scores for each retriever"),
        (lambda: tr.Hybrid(TABLE.drop("item_id")), "column item_id"),
        (lambda: tr.Hybrid(TABLE.with_columns(dense=pl.lit("x"))), "column dense: expected the scores"),
        (lambda: tr.Hybrid(TABLE.with_columns(dense=pl.lit(math.inf))), "row 0, column dense"),
        (lambda: tr.Hybrid(pl.concat([TABLE, TABLE[:1]])), "row 8, column item_id: expected one row for each"),
        (lambda: tr.Hybrid(TABLE, {"bm25": 1}), "expected one for each of bm25, dense; got bm25"),
        (lambda: tr.Hybrid(TABLE, {"bm25": 1, "dense": -1}), "0 or more"),
        (lambda: tr.Hybrid(TABLE, sharpness=0), "sharpness"),
        (lambda: bound(tr.Hybrid(TABLE.with_columns(item_id=pl.lit(77)).unique("query_id"))), "got none among 3 rows"),
        (lambda: bound(tr.Hybrid(TABLE.with_columns(pl.col("item_id").cast(pl.String)))), "item ids are integers"),
    ],
)
def test_what_is_no_table_of_retrievers_is_refused(change, words) -> None:
    with pytest.raises((ConfigError, DataError, tr.errors.InputError), match=words):
        change()
