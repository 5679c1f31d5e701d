"""Scorers and the two-stage policy: lists, samples, exposure, saving and loading."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import coo_matrix, csc_matrix, csr_array, csr_matrix

import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, InputError, PolicyError
from tandemrank.gradients import _bridge, race
from tandemrank.policies import two_stage
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

S = [[0.5, -1.0, 1.5, 0.0, 0.3], [0.0, 0.0, 1.0, 2.0, -1.0]]
R = [[0.0, 1.0, -0.5, 0.8, 0.1], [1.0, 0.5, 0.0, -1.0, 2.0]]
THETA = [1.0, 0.5]
IDS = Vocabulary(pl.Series(["a", "b"]), pl.Series([10, 20, 30, 40, 50]))


def small() -> TwoStagePolicy:
    return TwoStagePolicy(GivenScores(S), GivenScores(R), 3, 2, IDS)


def random_mf(Q: int = 7, D: int = 9, seed: int = 0) -> MatrixFactorisation:
    rng = np.random.default_rng(seed)
    return MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(D, 3)))


class CandidatesOnly(MatrixFactorisation):
    """A factorisation that refuses to score everything."""

    kind = "candidates-only"
    scores_everything = False
    forward = Scorer.forward


def test_a_generator_scores_every_item() -> None:
    users, items = np.ones((2, 3), np.float32), np.ones((4, 3), np.float32)
    vocabulary = Vocabulary(pl.Series(range(2)), pl.Series(range(4)))
    heavy = CandidatesOnly(users, items)
    with pytest.raises(PolicyError, match="a generator scores every item; a candidates-only scores candidates only"):
        TwoStagePolicy(heavy, heavy, 2, 1, vocabulary)
    with pytest.raises(PolicyError, match="scores the candidates of a generator only"):
        heavy(torch.arange(2))


def test_most_likely_takes_the_K2_highest_then_the_K_highest_of_them() -> None:
    # Query 0: candidates {2, 0, 4}; of them by the ranker 4 (0.1), 0 (0.0). Query 1: {3, 2, 0} (tie 0 and 1), then 0, 2.
    assert small().most_likely().tolist() == [[4, 0], [0, 2]]


def test_most_likely_agrees_with_a_sort_on_many_random_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    s, r = (torch.randn(50, 300, generator=generator) for _ in range(2))
    s[:5, 20:] = -torch.inf
    found = race.most_likely(s, r, 40, 7)
    for q in range(50):
        best = [d for d in s[q].argsort(descending=True)[:40].tolist() if s[q, d] > -torch.inf]
        assert found[q].tolist() == sorted(best, key=lambda d: -r[q, d])[:7]


def test_recommend_speaks_outside_ids() -> None:
    frame = small().recommend(["b", "a"])
    assert frame.to_dicts() == [{"query_id": "b", "items": [10, 30]}, {"query_id": "a", "items": [50, 10]}]
    with pytest.raises(InputError, match=r"1 unknown query id \(first: 'c'\)"):
        small().recommend(["c"])
    others = small().recommend(["c", "b", "d", "b"], unknown="empty")
    assert others["query_id"].to_list() == ["c", "b", "d", "b"]
    assert others["items"].to_list() == [[], [10, 30], [], [10, 30]]
    assert small().recommend(["c"], unknown="empty", sample=True)["items"].to_list() == [[]]
    with pytest.raises(ConfigError, match="unknown must be average, refuse or empty; got 'emty'"):
        small().recommend(["c"], unknown="emty")


@pytest.mark.parametrize("sample", [False, True])
def test_recommend_answers_a_query_that_it_does_not_know_as_the_average_one(sample: bool) -> None:
    rng = np.random.default_rng(0)
    scorer = MatrixFactorisation(rng.normal(size=(3, 2)), rng.normal(size=(6, 2)))
    policy = TwoStagePolicy(scorer, scorer, 4, 2, Vocabulary(pl.Series(["a", "b", "c"]), pl.Series(range(6))))
    asked = ["b", "x", "a", "y"]
    both = policy.with_queries(pl.Series(["x", "y"]))
    found, expected = (one.recommend(asked, sample=sample, seed=3) for one in (policy, both))
    assert found.equals(expected)


def test_recommend_leaves_out_what_it_must_not_repeat() -> None:
    """Without 50, query a has the candidates {30, 10, 40}; without these, {20, 50}: the next ones move up in both stages."""
    pair = small()
    pairs = pl.DataFrame({"query_id": ["a", "z", "b"], "item_id": [50, 10, 999]})
    assert pair.recommend(["a", "b"], exclude=pairs)["items"].to_list() == [[40, 10], [10, 30]]
    positions = csr_matrix(np.array([[1, 0, 1, 1, 0], [1, 1, 1, 1, 1]]))
    assert pair.recommend(["a", "b"], exclude=positions)["items"].to_list() == [[20, 50], []]
    with pytest.raises(PolicyError, match=r"the shape \(2, 4\), but the policy has 2 queries and 5 items"):
        pair.recommend(exclude=csr_matrix((2, 4)))
    with pytest.raises(PolicyError, match="columns query_id and item_id"):
        pair.recommend(exclude=pl.DataFrame({"query": ["a"]}))


def test_sample_follows_the_exposure_of_enumeration_whatever_the_order() -> None:
    n = 30_000
    keys = _bridge.keys_for(n, torch.Generator().manual_seed(1))
    q = np.arange(n) % 2
    lists = small().sample(q, keys)
    for user in range(2):
        for d, rho in enumerate(enumeration.exposure(S[user], R[user], THETA, 3)):
            seen = ((lists[q == user] == d) * np.array(THETA)).sum(1)
            assert abs(seen.mean() - rho) < 5 * seen.std() / (n / 2) ** 0.5
    order = np.random.default_rng(0).permutation(n)
    assert np.array_equal(small().sample(q[order], keys[order]), lists[order])


def test_every_query_is_drawn_from_its_own_scores_in_every_batch(monkeypatch) -> None:
    """Query q likes item q far more than all others; batches of three queries, asked for in any order and more than once."""
    monkeypatch.setattr(two_stage, "BATCH", 3)
    ids = Vocabulary(pl.Series(range(5)), pl.Series(range(6)))
    scorer = GivenScores(60 * np.eye(5, 6, dtype=np.float32))
    q, heard = np.array([3, 0, 4, 1, 3, 2, 0]), []
    drawn = TwoStagePolicy(scorer, scorer, 3, 1, ids).sample(q, np.arange(7, dtype=np.uint64), heard.append)
    assert drawn[:, 0].tolist() == q.tolist()
    assert heard == [4, 7]  # queries 0 to 2 have four lists, 3 and 4 three


def test_given_scores_are_those_of_the_queries_that_are_asked_for() -> None:
    dense = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    sparse = csr_matrix(dense * (dense > -0.5))
    for q in ([2], [3, 1], [1, 1, 0]):
        found = GivenScores(sparse)(torch.tensor(q)).detach().numpy()
        assert np.array_equal(found, np.where(dense > -0.5, dense, -np.inf)[q])


def test_exposure_of_pairs_agrees_with_enumeration() -> None:
    q, item = np.array([1, 0, 1, 0]), np.array([4, 0, 0, 3])
    rho, error = small().exposure(q, item, THETA, samples=2000)
    exact = [enumeration.exposure(S[u], R[u], THETA, 3) for u in range(2)]
    for i in range(4):
        assert abs(rho[i] - exact[q[i]][item[i]]) < 5 * error[i]


def test_utility_is_exposure_times_weights() -> None:
    weights = csr_matrix(np.array([[0, 2.0, 0, 1.0, 0], [0, 0, 0, 0, 0]]))
    value = small().utility(weights, THETA, samples=4000)
    exact = enumeration.utility(S[0], R[0], [0, 2.0, 0, 1.0, 0], THETA, 3)[0]
    assert value[0] == pytest.approx(exact, rel=0.05)
    assert value[1] == 0


def test_given_scores_sparse_means_absent_is_not_available() -> None:
    scorer = GivenScores(csr_matrix(([1.0, 2.0], ([0, 0], [1, 3])), shape=(2, 4)))
    inf = -np.inf
    assert scorer(torch.tensor([1, 0])).tolist() == [[inf] * 4, [inf, 1.0, inf, 2.0]]
    with pytest.raises(PolicyError, match="NaN"):
        GivenScores([[1.0, np.nan]])


@pytest.mark.parametrize("scorer", [random_mf(2, 5), GivenScores(S), GivenScores(csr_matrix(np.eye(2, 5)))])
def test_save_and_load_is_the_same_policy(tmp_path, scorer) -> None:
    policy = TwoStagePolicy(scorer, GivenScores(R), 3, 2, IDS)
    loaded = two_stage.load(policy.save(tmp_path / "policy"))
    assert loaded.recommend().equals(policy.recommend())
    assert (loaded.K2, loaded.K) == (3, 2)
    for a, b in zip(policy.scores([0, 1]), loaded.scores([0, 1]), strict=True):
        assert torch.equal(a, b)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy"]


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(PolicyError, match="1 <= K <= K2 <= 5"):
        TwoStagePolicy(GivenScores(S), GivenScores(R), 2, 3, IDS)
    with pytest.raises(PolicyError, match="1 <= K <= K2 <= 5"):
        TwoStagePolicy(GivenScores(S), GivenScores(R), 6, 3, IDS)
    for K2, K in ((3, 2.5), (3.0, 2), (3, True), ("3", 2), (3, None)):
        with pytest.raises(PolicyError, match="1 <= K <= K2 <= 5"):
            TwoStagePolicy(GivenScores(S), GivenScores(R), K2, K, IDS)
    with pytest.raises(PolicyError, match="the generator scores 7 queries and 9 items"):
        TwoStagePolicy(random_mf(), GivenScores(R), 3, 2, IDS)
    with pytest.raises(PolicyError, match="embeddings must be"):
        MatrixFactorisation(np.zeros((2, 3)), np.zeros((4, 2)))


def test_a_copy_has_weights_of_its_own() -> None:
    policy = TwoStagePolicy(random_mf(2, 5), random_mf(2, 5), 3, 2, IDS)
    other = policy.copy()
    with torch.no_grad():
        other.generator.items.zero_()
    assert policy.generator.items.abs().sum() > 0


def some_available() -> TwoStagePolicy:
    """Query "a" has items 20 and 40, "b" has none."""
    scores = csr_matrix(([1.0, 2.0], ([0, 0], [1, 3])), shape=(2, 5))
    return TwoStagePolicy(GivenScores(scores), GivenScores(scores), 3, 3, IDS)


def test_a_query_with_few_items_has_a_short_list_and_one_with_none_an_empty_one() -> None:
    frame = some_available().recommend(["b", "a", "b"])
    assert frame["items"].to_list() == [[], [40, 20], []]
    assert frame.schema == {"query_id": pl.String, "items": pl.List(pl.Int64)}
    assert some_available().recommend(["b"])["items"].to_list() == [[]]


def test_no_queries_have_no_lists() -> None:
    policy = small()
    for nothing in ([], pl.Series([], dtype=pl.String), np.array([])):
        frame = policy.recommend(nothing)
        assert frame.shape == (0, 2)
        assert frame.schema == {"query_id": pl.String, "items": pl.List(pl.Int64)}
    assert policy.most_likely([]).shape == (0, 2)
    assert policy.sample([], np.empty(0, np.uint64)).shape == (0, 2)
    assert [x.shape for x in policy.exposure([], [], THETA)] == [(0,), (0,)]
    assert [x.shape for x in policy.scores([])] == [(0, 5), (0, 5)]
    assert list(policy.batches([])) == []


@pytest.mark.parametrize("ids", [[1.5], [1.0], [True], [None]])
def test_recommend_never_rounds_an_id(ids) -> None:
    numbered = TwoStagePolicy(GivenScores(S), GivenScores(R), 3, 2, Vocabulary(pl.Series([1, 2]), IDS.item_ids))
    assert len(numbered.recommend([1])) == 1
    with pytest.raises(InputError, match="query ids are integers or strings"):
        numbered.recommend(ids)


@pytest.mark.parametrize("q", [[-1], [2], [0, 5], [0.5], [1.0], [True], ["a"], [[0]]])
def test_positions_that_are_none_are_refused(q) -> None:
    policy, key = small(), np.zeros(len(q), np.uint64)
    for ask in (
        policy.scores,
        policy.most_likely,
        lambda q: policy.sample(q, key),
        lambda q: policy.exposure(q, [0] * len(q), THETA),
        lambda q: list(policy.batches(q)),
    ):
        with pytest.raises(PolicyError, match="positions of queries"):
            ask(q)
    with pytest.raises(PolicyError, match="positions of items"):
        policy.exposure([0], [5], THETA)
    with pytest.raises(PolicyError, match="one key per query"):
        policy.sample([0, 1], np.zeros(1, np.uint64))
    with pytest.raises(PolicyError, match="one query and one item each"):
        policy.exposure([0, 1], [0], THETA)


def test_given_scores_of_every_sparse_form_mean_the_same() -> None:
    """What comes twice is added up, a stored zero is a score, a matrix by columns is not taken for one by rows."""
    twice = csr_matrix(([0.5, 0.5, 2.0, 0.0], [1, 1, 3, 0], [0, 3, 4]), shape=(2, 4))
    inf = -np.inf
    expected = [[inf, 1.0, inf, 2.0], [0.0, inf, inf, inf]]
    for form in (lambda x: x, csc_matrix, coo_matrix, csr_array):
        assert GivenScores(form(twice))(torch.arange(2)).tolist() == expected
    square = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert GivenScores(csc_matrix(square))(torch.arange(2)).tolist() == square.tolist()
    with pytest.raises(PolicyError, match="NaN"):
        GivenScores(csr_matrix(([np.nan], [0], [0, 1, 1]), shape=(2, 4)))


def test_utility_takes_weights_of_every_sparse_form() -> None:
    twice = csr_matrix(([1.0, 1.0, 1.0], [1, 1, 3], [0, 3, 3]), shape=(2, 5))
    once = csr_matrix(twice.toarray())
    for form in (lambda x: x, csc_matrix, csr_array):
        assert np.array_equal(small().utility(form(twice), THETA), small().utility(once, THETA))


def test_drawn_lists_in_outside_ids_depend_on_the_seed_alone() -> None:
    scores = np.zeros((2, 5), np.float32)
    pair = TwoStagePolicy(
        GivenScores(scores), GivenScores(scores), 5, 3, Vocabulary(pl.Series(["a", "b"]), pl.Series(list("vwxyz")))
    )
    drawn = pair.recommend(["a", "b"] * 20, sample=True, seed=7)
    assert drawn.equals(pair.recommend(["a", "b"] * 20, sample=True, seed=7))
    assert not drawn.equals(pair.recommend(["a", "b"] * 20, sample=True, seed=8))
    assert drawn["items"].n_unique() > 20
    assert all(len(set(items)) == 3 for items in drawn["items"])
    with pytest.raises(PolicyError, match="drawn lists take no pairs to exclude"):
        pair.recommend(["a"], sample=True, exclude=csr_matrix((2, 5)))


def test_arrays_of_every_make_are_taken_and_ids_are_distinct() -> None:
    rng = np.random.default_rng(0)
    items, queries = rng.normal(size=(5, 2)), rng.normal(size=(3, 2))
    ids = Vocabulary(pl.Series(range(3)), pl.Series(range(5)))
    makes = (
        items[::-1].copy()[::-1],
        np.asfortranarray(items),
        items.tolist(),
        torch.tensor(items, requires_grad=True),
    )
    lists = []
    for made in makes:
        scorer = MatrixFactorisation(queries[::-1], made)
        policy = TwoStagePolicy(scorer, scorer, 5, 2, ids)
        lists.append(policy.recommend()["items"].to_list())
        drawn = [policy.recommend(sample=True, seed=seed)["items"].to_list() for seed in (3, np.int64(3))]
        assert drawn[0] == drawn[1]
        scores = GivenScores((queries @ items.T)[::-1, ::-1])
        assert TwoStagePolicy(scores, scores, 5, 2, ids).recommend()["items"].list.len().to_list() == [2] * 3
    assert all(found == lists[0] for found in lists)
    for wrong in ([7, 7, 8], [1.5, 2.0, 3.0], [1, None, 2]):
        with pytest.raises(InputError, match="item_ids: expected"):
            Vocabulary(pl.Series(range(3)), pl.Series(wrong))
    with pytest.raises(PolicyError, match="expected scores as an array of numbers"):
        GivenScores([["a", "b"]])
