"""Two towers: gradients, saving, training from clicks, and queries and items that were never seen."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError, PolicyError
from tandemrank.experiments.evaluation import ndcg
from tandemrank.gradients import race
from tandemrank.policies import towers, two_stage
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.towers import TwoTowers
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.schedules import schedule_of

Q, D, TASTES = 60, 40, 3
THETA = [1.0, 0.5, 0.3]


def world(Q: int = Q, D: int = D, seed: int = 0) -> tuple[pl.DataFrame, pl.DataFrame, csr_matrix]:
    """Queries and items with tastes, a noise column and a country; a query likes what matches its taste and country."""
    rng = np.random.default_rng(seed)
    tastes = rng.normal(size=(Q, TASTES)), rng.normal(size=(D, TASTES))
    countries = rng.integers(3, size=Q), rng.integers(3, size=D)
    match = tastes[0] @ tastes[1].T + 2.0 * (countries[0][:, None] == countries[1])
    liked = match >= np.sort(match, axis=1)[:, [-5]]
    queries, items = (
        pl.DataFrame(
            {id_column: [f"{id_column[0]}{i}" for i in range(len(x))]}
            | {f"t{f}": 3 + 10 * x[:, f] for f in range(TASTES)}
            | {"noise": rng.normal(size=len(x)), "country": [f"c{i}" for i in c]}
        )
        for id_column, x, c in (("query_id", tastes[0], countries[0]), ("item_id", tastes[1], countries[1]))
    )
    return queries, items, csr_matrix(liked.astype(np.float32))


def renamed(frame: pl.DataFrame) -> pl.DataFrame:
    """The same features for others."""
    return frame.with_columns(("new " + pl.col(frame.columns[0])).alias(frame.columns[0]))


def pair(queries: pl.DataFrame, items: pl.DataFrame, *, ids: bool = True) -> TwoStagePolicy:
    vocabulary = Vocabulary(queries["query_id"], items["item_id"])
    generator = towers.from_features(queries, items, vocabulary, width=8, dimension=4, ids=ids, seed=1)
    ranker = towers.from_features(queries, items, vocabulary, width=32, dimension=8, ids=ids, seed=2)
    return TwoStagePolicy(generator, ranker, 12, 3, vocabulary)


def trained(policy: TwoStagePolicy, liked: csr_matrix, epochs: int = 40) -> TwoStagePolicy:
    return train(policy, liked, THETA, TrainingConfig(epochs=epochs, minibatch=10), seed=3).policy


def judged(policy: TwoStagePolicy, liked: csr_matrix) -> float:
    q = np.arange(liked.shape[0])
    return float(np.nanmean(ndcg(policy.most_likely(q), q, liked)))


def test_the_score_is_its_formula() -> None:
    queries, items, _ = world(6, 5)
    queries, items = (
        f.with_columns(kind=pl.Series(["y", "x", "z", "x", "y", "z"][: len(f)])) for f in (queries, items)
    )
    model = towers.from_features(
        queries, items, Vocabulary(queries["query_id"], items["item_id"]), width=3, dimension=2
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(weight))))
    sides = []
    for tower, frame in ((model.queries, queries), (model.items, items)):
        weights = {name: w.detach().double().numpy() for name, w in tower.named_parameters()}
        numbers = frame.select("t0", "t1", "t2", "noise").to_numpy()
        x = (numbers - numbers.mean(0)) / numbers.std(0)
        values = [
            frame.group_by(column).len().sort(["len", column], descending=[True, False])[column].to_list()
            for column in ("country", "kind")
        ]
        country = [1 + values[0].index(value) for value in frame["country"]]
        kind = [
            len(values[0]) + 1 + 1 + values[1].index(value) for value in frame["kind"]
        ]  # after all of the country's
        of_categories = weights["table"][country] + weights["table"][kind]
        hidden = np.maximum((x @ weights["first"] + of_categories) / 6**0.5 + weights["first_bias"], 0)
        sides.append(16 / 3 * hidden @ weights["second"] + weights["second_bias"] + 0.3 * weights["own"])
    scores = model(torch.arange(6)).detach().numpy()
    assert np.allclose(scores, sides[0] @ sides[1].T, rtol=1e-4, atol=1e-4)
    assert np.allclose(model(torch.tensor([4, 1])).detach().numpy(), scores[[4, 1]], atol=1e-5)


def test_joint_training_of_what_begins_at_random_begins_as_stacking() -> None:
    policy = pair(*world()[:2])
    phases = schedule_of("joint", "tandem", policy.generator, policy.ranker)
    assert [phase.key for phase in phases] == ["generator among K2", "ranker for the generator", "both"]
    assert [phase.share for phase in phases] == [0.5] * 3  # as many epochs per stage as in the other methods


def test_training_starts_near_the_uniform_policy() -> None:
    queries, items, _ = world(300, 200)
    scores = [s.detach().numpy() for s in pair(queries, items).scores(range(300))]
    for s in scores:
        assert 0.03 < s.std() < 0.3  # 0.1 is meant; a small tower varies
        assert np.abs(s).max() < 2
    again = towers.from_features(queries, items, Vocabulary(queries["query_id"], items["item_id"]), seed=7)
    other = towers.from_features(queries, items, Vocabulary(queries["query_id"], items["item_id"]), seed=8)
    same = towers.from_features(queries, items, Vocabulary(queries["query_id"], items["item_id"]), seed=7)
    q = torch.arange(300)
    assert torch.equal(again(q), same(q))
    assert not torch.equal(again(q), other(q))


def test_the_gradient_of_every_weight_by_finite_differences() -> None:
    queries, items, _ = world(5, 7)
    model = towers.from_features(
        queries, items, Vocabulary(queries["query_id"], items["item_id"]), width=3, dimension=2
    )
    model = model.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    direction = torch.randn(3, 7, generator=generator, dtype=torch.float64)
    q = torch.tensor([4, 0, 2])

    def value() -> torch.Tensor:
        return (model(q) * direction).sum()

    value().backward()
    for name, weight in model.named_parameters():
        toward = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            weight += 1e-6 * toward
            above = value()
            weight -= 2e-6 * toward
            below = value()
            weight += 1e-6 * toward
        assert weight.grad is not None
        assert (above - below) / 2e-6 == pytest.approx(float((weight.grad * toward).sum()), rel=1e-5, abs=1e-7), name


def test_the_race_moves_every_weight_of_both_stages() -> None:
    queries, items, liked = world()
    policy = pair(queries, items)
    s_c, s_r = policy.scores(range(Q))
    generator = torch.Generator().manual_seed(0)
    race.utility(s_c, s_r, liked, torch.tensor(THETA), 12, samples=4, generator=generator).sum().backward()
    for scorer in (policy.generator, policy.ranker):
        for name, weight in scorer.named_parameters():
            assert weight.grad is not None, name
            assert weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("ids", [True, False])
def test_training_learns_and_is_the_same_bit_by_bit(ids) -> None:
    queries, items, liked = world()
    start = pair(queries, items, ids=ids)
    found = trained(start, liked)
    once, twice = (trained(start, liked, epochs=3) for _ in range(2))
    assert judged(start, liked) < 0.35
    assert judged(found, liked) > 0.75
    for a, b in zip(once.scores(range(Q)), twice.scores(range(Q)), strict=True):
        assert torch.equal(a, b)


def test_saving_keeps_the_policy_and_its_encoders(tmp_path) -> None:
    queries, items, liked = world()
    policy = trained(pair(queries, items), liked, epochs=2)
    loaded = two_stage.load(policy.save(tmp_path / "policy"))
    for kept, again in (
        (policy, loaded),
        (
            two_stage.extended(policy, item_features=renamed(items)),
            two_stage.extended(loaded, item_features=renamed(items)),
        ),
    ):
        for x, y in zip(kept.scores(range(Q)), again.scores(range(Q)), strict=True):
            assert torch.equal(x, y)
    assert isinstance(loaded.generator, TwoTowers)
    assert loaded.generator.queries.encoder == policy.generator.queries.encoder


def test_new_queries_and_items_are_scored_by_their_features() -> None:
    queries, items, liked = world(160, 90, seed=5)
    seen = pair(queries[:120], items[:60])
    policy = trained(seen, csr_matrix(liked[:120, :60]), epochs=15)
    larger = two_stage.extended(policy, query_features=queries[120:], item_features=items[60:])
    assert larger.vocabulary.query_ids.to_list() == queries["query_id"].to_list()
    assert larger.vocabulary.item_ids.to_list() == items["item_id"].to_list()
    assert (larger.K2, larger.K) == (policy.K2, policy.K)
    for before, after in zip(policy.scores(range(120)), larger.scores(range(160)), strict=True):
        assert torch.allclose(before, after[:120, :60], rtol=1e-5, atol=1e-5)
        assert torch.isfinite(after).all()
    # Whoever is new has liked items among the new ones near the top, far more often than by chance.
    new = two_stage.extended(policy, query_features=queries[120:], item_features=items[60:]).ranker
    scores = new(torch.arange(120, 160)).detach().numpy()[:, 60:]
    wanted = liked.toarray()[120:, 60:] > 0
    place = (scores[:, :, None] < scores[:, None, :]).mean(2)  # 0: best, 1: worst, 0.5: chance
    assert place[wanted].mean() < 0.25


def test_an_item_with_the_features_of_another_scores_like_it_but_for_what_was_learnt_of_that_one() -> None:
    queries, items, liked = world()
    policy = trained(pair(queries, items, ids=False), liked, epochs=3)
    twins = renamed(items)
    larger = two_stage.extended(policy, item_features=twins)
    for s in larger.scores(range(Q)):
        assert torch.allclose(s[:, :D], s[:, D:], atol=1e-6)
    with_ids = trained(pair(queries, items), liked, epochs=3)
    ranker = two_stage.extended(with_ids, item_features=twins).ranker
    own = ranker.items.own.detach()
    assert own[:D].abs().sum() > 0
    assert not own[D:].any()
    difference = ranker.queries().detach() @ (0.3 * own[:D]).T
    s = ranker(torch.arange(Q)).detach()
    assert torch.allclose(s[:, :D] - difference, s[:, D:], atol=1e-5)


def test_an_old_id_takes_its_new_features_and_keeps_what_was_learnt() -> None:
    queries, items, liked = world()
    policy = trained(pair(queries, items), liked, epochs=2)
    swapped = items[:2].with_columns(item_id=pl.Series([items["item_id"][1], items["item_id"][0]]))
    larger = two_stage.extended(policy, item_features=swapped)
    before, after = policy.ranker.items, larger.ranker.items
    assert larger.vocabulary.item_ids.to_list() == items["item_id"].to_list()
    assert torch.equal(after.numeric[[1, 0]], before.numeric[:2])
    assert torch.equal(after.numeric[2:], before.numeric[2:])
    assert torch.equal(after.own, before.own)
    same = two_stage.extended(policy, query_features=queries, item_features=items)
    for a, b in zip(policy.scores(range(Q)), same.scores(range(Q)), strict=True):
        assert torch.equal(a, b)


def test_the_embedding_of_a_side_without_features_is_what_was_learnt_of_it_as_it_is() -> None:
    """f(q) = u_q: the factor 0.3 is for what comes on top of features."""
    queries, items, _ = world(6, 5)
    model = towers.from_features(None, items, Vocabulary(queries["query_id"], items["item_id"]), width=3, dimension=2)
    u = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.queries.own.copy_(u)
    assert torch.equal(model.queries(), u)
    assert torch.equal(model.queries(torch.tensor([4, 1])), u[[4, 1]])
    assert torch.allclose(model(torch.arange(6)), u @ model.items().T)


def test_a_side_without_features_is_known_by_its_ids() -> None:
    queries, items, liked = world()
    vocabulary = Vocabulary(queries["query_id"], items["item_id"])
    model = towers.from_features(None, items, vocabulary, width=16, dimension=8)
    start = TwoStagePolicy(model, model, 12, 3, vocabulary)
    assert judged(trained(start, liked, epochs=40), liked) > 0.75
    assert two_stage.extended(start, item_features=renamed(items)).ranker.spec()["D"] == 2 * D
    with pytest.raises(PolicyError, match="trained without query features, so it cannot score a new query"):
        two_stage.extended(start, query_features=renamed(queries))


def test_refusals() -> None:
    queries, items, _ = world()
    vocabulary = Vocabulary(queries["query_id"], items["item_id"])
    with pytest.raises(ConfigError, match="two towers need features of the items"):
        towers.from_features(None, None, vocabulary)
    with pytest.raises(ConfigError, match="two towers need features of the items"):
        towers.from_features(queries, None, vocabulary, ids=False)
    with pytest.raises(ConfigError, match="a width and a dimension of 1 or more; 0 and 32 came"):
        towers.from_features(queries, items, vocabulary, width=0)
    with pytest.raises(DataError, match=r"expected rows for ids of the log .* got rows for none of them"):
        towers.from_features(queries, items.with_columns(item_id="x" + pl.col("item_id")), vocabulary)
    factors = MatrixFactorisation(np.zeros((Q, 2)), np.zeros((D, 2)))
    policy = TwoStagePolicy(factors, factors, 12, 3, vocabulary)
    with pytest.raises(
        PolicyError, match=r"generator is of the kind matrix-factorisation, which cannot score .* not seen"
    ):
        two_stage.extended(policy, item_features=items)
    numbered = items.with_columns(item_id=pl.Series(range(D)))
    with pytest.raises(DataError, match="column item_id: the policy's ids are String; Int64 came"):
        two_stage.extended(pair(queries, items), item_features=numbered)
    with pytest.raises(DataError, match=r"trained with the column t1 \(numbers\), which is not among"):
        two_stage.extended(pair(queries, items), item_features=items.drop("t1"))
