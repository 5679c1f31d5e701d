"""The belief as the scores of a stage, and the generator nearest to it: formulas by hand, strangers, saving."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

import believing
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.models import FeatureModel, Network
from tandemrank.beliefs.scorer import FLAT, BeliefSpread, Believed, generator_of
from tandemrank.errors import PolicyError
from tandemrank.policies.two_stage import TwoStagePolicy, extended, load


def by_hand(scorer, q: int, d: int) -> float:
    """score = sharpness l, l = s over the root of its spread, over that of the mean item; or as it is remembered."""
    v_q, v_d = float(scorer.query_spread[q]), scorer.item_spread.numpy()
    mean = np.sqrt(1 + FLAT * (scorer.around**2 + v_q * v_d.mean()))
    memory = scorer.memory
    own = slice(memory.first[q], memory.first[q + 1])
    if d in memory.item[own]:
        return scorer.sharpness * float(memory.value[own][memory.item[own] == d][0]) * mean
    s = float(scorer.queries[q] @ scorer.items[d])
    return scorer.sharpness * s / np.sqrt(1 + FLAT * (scorer.around**2 + v_q * v_d[d])) * mean


def test_the_scores_are_their_formula() -> None:
    scorer = believing.believed()
    every = scorer(torch.arange(6)).numpy()
    wanted = [[by_hand(scorer, q, d) for d in range(8)] for q in range(6)]
    assert every == pytest.approx(np.array(wanted), rel=1e-4, abs=1e-4)
    assert len(scorer.value)


def _of_network() -> Believed:
    """Beliefs with a network as f."""
    plain = believing.believed(entries=False)
    f = plain.f
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = Network(f.model.sizes).requires_grad_(False)
        torch.nn.init.normal_(network.out[2].weight)
    other = FeatureModel(network, f.query, f.item, f.pairs)
    keep = [*range(5), 22]  # without the columns of the product
    spread = BeliefSpread(0.7, plain.query_spread.numpy(), plain.item_spread.numpy())
    nobody = plain._nobody()
    names = ("query", "item", "by_query", "by_item")
    short = replace(nobody, f=(5, 5), **{name: getattr(nobody, name)[..., keep] for name in names})
    return Believed(plain.queries.numpy()[:, keep], plain.items.numpy()[:, keep], spread, plain.memory, short, other)


def test_a_model_that_is_no_product_is_added_at_the_pairs() -> None:
    scorer = _of_network()
    other = scorer.f
    q, items = torch.arange(6), torch.arange(8).expand(6, -1)
    assert torch.allclose(scorer(q), scorer.score(q, items), atol=1e-5)
    s = scorer.queries @ scorer.items.T + torch.from_numpy(other.matrix(q.numpy()).astype(np.float32))
    assert torch.allclose(scorer(q), scorer.sharpness * s * scorer._flat(q, scorer.item_spread), atol=1e-4)
    new = scorer.strangers(believing.queries(3, first=50), Vocabulary([50, 51, 52], range(8)))
    assert new(torch.arange(3)).shape == (3, 8)
    assert not torch.allclose(new(torch.arange(3))[0], new(torch.arange(3))[1])


def test_the_nearest_generator_of_enough_dimensions_has_the_re_rankers_order() -> None:
    """Up to the spread of single queries, which a product does not have: here it is the same for all items."""
    ranker = believing.believed()
    ranker.item_spread[:] = 0.4
    generator = generator_of(ranker, 30)
    q = torch.arange(6)
    a, b = generator(q).detach(), ranker(q)
    scale = ranker.scale(q) / np.sqrt(1 + FLAT * (ranker.around**2 + 0.4))
    centred = [x - x.mean(1, keepdim=True) for x in (a * scale[:, None] / scale.mean(), b)]
    assert np.corrcoef(centred[0].ravel(), centred[1].ravel())[0, 1] > 0.98
    assert torch.equal(generator.item, ranker.item)


def test_fewer_dimensions_are_the_nearest_by_what_matters() -> None:
    ranker = believing.believed(entries=False)
    q = torch.arange(6)
    errors = []
    for rank in (1, 2, 4, 8):
        a, b = generator_of(ranker, rank)(q).detach(), ranker(q)
        errors.append(float((a - b - (a - b).mean(1, keepdim=True)).square().mean()))
    assert errors == sorted(errors, reverse=True)


def test_a_policy_is_the_same_after_saving(tmp_path) -> None:
    policy = believing.policy()
    loaded = load(policy.save(tmp_path / "policy"))
    for ours, theirs in zip(policy.scores(range(6)), loaded.scores(range(6)), strict=True):
        assert torch.equal(ours, theirs)
    new = believing.queries(2, first=70)
    ours, theirs = (p.strangers(new["query_id"], new).scores(range(2)) for p in (policy, loaded))
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])


def test_a_query_with_the_features_of_another_scores_like_it_but_for_what_was_seen_of_that_one() -> None:
    """Features of query 2 under a new id: f and the opinion are its own, the vector what features suggest, memory nobody's."""
    policy = believing.policy()
    row = believing.queries().filter(pl.col("query_id") == 2).with_columns(query_id=pl.lit(99, pl.Int64))
    new = policy.strangers(row["query_id"], row)
    assert new.vocabulary.query_ids.to_list() == [99]
    ranker, old = new.ranker, policy.ranker
    f = slice(*old.nobody.f)
    assert torch.allclose(ranker.queries[0, f], old.queries[2, f], atol=1e-5)
    numbers = torch.from_numpy(old._side(0).of_table(row, 1).numbers)
    suggested = torch.zeros(believing.F)
    suggested[0] = 0.25 * (numbers.sum() + 1)
    assert torch.allclose(ranker.queries[0, : believing.F], suggested)
    assert not len(ranker.value)
    without = policy.strangers(pl.Series([99]))
    assert not torch.allclose(without.ranker.queries[0, f], ranker.queries[0, f])


def test_the_generator_follows_its_re_ranker_to_what_neither_has_seen() -> None:
    """Of enough dimensions it has all that the re-ranker has but a constant of each query, of new queries and items, too."""
    policy = believing.policy(Q=40, D=30, K2=9)
    policy = replace(policy, generator=generator_of(policy.ranker, 30))
    larger = extended(policy, query_features=believing.queries(45), item_features=believing.items(33))
    s_c, s_r = (s.numpy() for s in larger.plain_scores(range(45)))
    of_new = [np.corrcoef(a, b)[0, 1] for a, b in zip(s_c[40:], s_r[40:], strict=True)]
    a, b = (s[:40] - s[:40, :30].mean(1, keepdims=True) for s in (s_c, s_r))
    assert min(of_new) > 0.99
    assert np.corrcoef(a[:, 30:].ravel(), b[:, 30:].ravel())[0, 1] > 0.98
    assert np.abs(a[:, 30:] - b[:, 30:]).mean() < 0.2 * b.std()
    assert abs(s_c.std() / s_r.std() - 1) < 0.2


def test_where_f_is_no_product_the_generator_has_its_scores_too() -> None:
    """Also of queries and items that were not seen."""
    scorer = _of_network()
    ids = Vocabulary(range(6), range(8))
    policy = TwoStagePolicy(generator_of(scorer, 8), scorer, 5, 3, ids)
    larger = extended(policy, query_features=believing.queries(8), item_features=believing.items(9))
    s_c, s_r = (s.numpy() for s in larger.plain_scores(range(8)))
    assert min(np.corrcoef(a, b)[0, 1] for a, b in zip(s_c[:, :8], s_r[:, :8], strict=True)) > 0.97


def test_more_queries_and_items_come_after_the_known_ones_which_keep_their_scores() -> None:
    policy = believing.policy(Q=40, D=30, K2=9)
    larger = extended(policy, query_features=believing.queries(42), item_features=believing.items(33))
    assert (len(larger.vocabulary.query_ids), len(larger.vocabulary.item_ids)) == (42, 33)
    for ours, theirs in zip(policy.scores(range(40)), larger.scores(range(40)), strict=True):
        assert torch.allclose(ours, theirs[:, :30], atol=1e-3)
    assert np.isfinite(larger.scores(range(42))[1].numpy()).all()
    again = extended(larger, query_features=believing.queries(42))
    assert len(again.vocabulary.query_ids) == 42


def test_one_stage_has_strangers_too(tmp_path) -> None:
    ranker = believing.believed()
    ids = believing.policy().vocabulary
    policy = load(TwoStagePolicy(ranker, ranker, 8, 3, ids).save(tmp_path / "one"))
    table = believing.queries(2, first=9)
    assert policy.strangers(table["query_id"], table).most_likely().shape == (2, 3)
    assert extended(policy, item_features=believing.items(9)).most_likely().shape == (6, 3)


def test_features_that_are_not_known_are_refused() -> None:
    policy = believing.policy()
    wrong = believing.queries(2, first=9).drop("age")
    with pytest.raises(Exception, match="age"):
        policy.strangers(wrong["query_id"], wrong)
    plain = believing.believed()
    plain.f = None
    with pytest.raises(PolicyError, match="leave them out"):
        plain.strangers(believing.queries(2), Vocabulary([8, 9], range(8)))


def test_recommend_answers_who_has_features(tmp_path) -> None:
    policy = believing.policy(Q=40, D=30, K2=9)
    new = believing.queries(42)
    found = policy.recommend([3, 40, 41], query_features=new)
    wanted = policy.strangers(new["query_id"][40:], new[40:]).most_likely()
    assert found["items"].to_list()[1:] == wanted.tolist()
    assert found["items"].to_list()[0] == policy.recommend([3])["items"].to_list()[0]
    # Without features the average query answers.
    assert (
        policy.recommend([40])["items"].to_list() == policy.recommend([99])["items"].to_list() != [wanted[0].tolist()]
    )
    new.write_parquet(tmp_path / "queries.parquet")
    again = policy.recommend([40], query_features=tmp_path / "queries.parquet", item_features=believing.items(33))
    assert again["items"].list.len().to_list() == [3]
