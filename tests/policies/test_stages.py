"""Which model each stage is: what each scores, by hand; what they are made of; what is refused."""

import builtins
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError, PolicyError, TandemRankError
from tandemrank.policies import linear, pairs, trees, two_stage
from tandemrank.policies.cross import CrossNetwork
from tandemrank.policies.linear import LinearScores
from tandemrank.policies.memory import Memory
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.stacked import Stacked
from tandemrank.policies.stages import Known, Stages, build, low_rank
from tandemrank.policies.trees import Trees
from tandemrank.policies.two_stage import TwoStagePolicy

RNG = np.random.default_rng(5)
Q, D = 4, 6
USERS, ITEMS = (RNG.normal(size=(n, 3)).astype(np.float32) for n in (Q, D))
IDS = Vocabulary(pl.Series([10, 11, 12, 13]), pl.Series([f"i{d}" for d in range(D)]))
TABLE = pl.DataFrame({"item_id": [f"i{d}" for d in range(D)], "x": RNG.normal(size=D), "kind": list("aabbcc")})
PAIRS = pl.DataFrame(
    {"query_id": [12, 10, 99], "item_id": ["i5", "i1", "i0"], "a": [3.0, 1.0, 2.0], "b": [0.0, None, 1.0]}
)
ALL = torch.arange(D).expand(Q, -1)
FACTORS = MatrixFactorisation(USERS, ITEMS)


def known(**more: object) -> Known:
    return Known(IDS, np.array([0.0, 1, 2, 3, 0, 1]), item_features=TABLE, **more)  # type: ignore[arg-type]


def test_linear_scores_are_what_the_formula_says() -> None:
    x, b = RNG.normal(size=(D, 2)), RNG.normal(size=D)
    scorer = LinearScores(Q, x, b)
    with torch.no_grad():
        scorer.own.copy_(torch.tensor(RNG.normal(size=(Q, 2))))
        scorer.shared.copy_(torch.tensor(RNG.normal(size=2)))
    a, own = scorer.shared.detach().numpy(), scorer.own.detach().numpy()
    wanted = [[b[d] + sum((a[j] + own[q, j]) * x[d, j] for j in range(2)) for d in range(D)] for q in range(Q)]
    assert scorer(torch.arange(Q)).detach().numpy() == pytest.approx(np.array(wanted), abs=1e-5)
    factors = scorer.factors(torch.arange(Q))
    assert (factors.queries @ factors.items.T).detach().numpy() == pytest.approx(np.array(wanted), abs=1e-5)


def test_features_are_scaled_together() -> None:
    assert (linear.scaled(RNG.normal(size=(50, 7)) * 30) ** 2).sum(1).mean() == pytest.approx(1)
    assert not linear.scaled(np.zeros((3, 2))).any()


def test_popularity_starts_from_the_queries_that_clicked() -> None:
    found, _ = build(Stages(generator="popularity"), FACTORS, FACTORS, known())
    assert found(torch.tensor([0]))[0].detach().numpy() == pytest.approx(np.log1p([0, 1, 2, 3, 0, 1]))


def test_pair_features_are_found_scaled_and_flagged() -> None:
    """Means and scales are of all rows of the table; a null is the mean, a pair without a row is all 0 and flagged."""
    table = pairs.from_table(PAIRS, IDS)
    found = table.at(torch.tensor([0, 2]), torch.tensor([[1, 0], [5, 5]])).numpy()
    scale = np.std([3.0, 1.0, 2.0])
    assert found[0] == pytest.approx(np.array([[-1 / scale, 0, 0], [0, 0, 1]]), abs=1e-6)
    assert found[1] == pytest.approx(np.array([[1 / scale, -1, 0]] * 2), abs=1e-6)


def test_a_pair_without_features_is_refused_where_the_policy_says_so() -> None:
    table = pairs.from_table(PAIRS, IDS, "refuse")
    assert table.at(torch.tensor([0]), torch.tensor([[1]])).shape == (1, 1, 3)
    with pytest.raises(PolicyError, match=r"1 candidates have no pair features \(first: query 0, item 4"):
        table.at(torch.tensor([0]), torch.tensor([[1, 4]]))


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (PAIRS.drop("item_id"), "item_id is not there"),
        (PAIRS.drop("a", "b"), "at least one column of numbers"),
        (PAIRS.clear(), "has no rows"),
        (PAIRS.with_columns(a=pl.lit("x")), "column a: pair features are numbers"),
        (PAIRS.with_columns(a=pl.lit(float("inf"))), "column a: expected a number below"),
        (pl.concat([PAIRS, PAIRS]), "row 3: expected one row for each query and item; 12, 'i5' came again"),
        (PAIRS.with_columns(query_id=pl.Series([1.5, 2, 3])), "ids are integers or strings"),
        (PAIRS.with_columns(query_id=pl.lit("q")), "query ids are integers"),
        (PAIRS.with_columns(query_id=pl.lit(99)), "no row has a query and an item of the log"),
    ],
)
def test_tables_of_pairs_that_are_none_are_refused(frame, told) -> None:
    with pytest.raises(TandemRankError, match=told):
        pairs.from_table(frame, IDS)


def test_a_cross_network_is_what_the_formula_says() -> None:
    _, scorer = build(Stages(ranker="cross"), FACTORS, FACTORS, known(pair_features=PAIRS), seed=2)
    assert isinstance(scorer, CrossNetwork)
    s = torch.tensor(RNG.normal(size=(Q, D)), dtype=torch.float32)
    found = scorer.score_with(torch.arange(Q), ALL, s).detach().numpy()
    own = {name: t.detach().double().numpy() for name, t in scorer.named_parameters()}
    f, g = (side().detach().double().numpy() for side in (scorer.queries, scorer.items))
    for q, d in [(0, 1), (2, 5), (3, 0)]:
        numbers = scorer.pairs.at(torch.tensor([q]), torch.tensor([[d]]))[0, 0].numpy()
        x = np.concatenate([f[q], g[d], numbers, [float(s[q, d])]])
        crossed = [
            x[i] * (sum(own["cross"][j, i] * x[j] for j in range(len(x))) + own["cross_bias"][i]) + x[i]
            for i in range(len(x))
        ]
        hidden = np.maximum(np.array(crossed) @ own["hidden"] + own["hidden_bias"], 0)
        assert found[q, d] == pytest.approx(np.dot(crossed, own["linear"]) + hidden @ own["last"], abs=1e-4)


def test_a_tree_goes_against_the_gradient_by_the_mean_of_its_leaf() -> None:
    """One feature with two values: the two leaves are -rate times the means of the scaled gradient."""
    grown = Trees(np.zeros((Q, 0)), np.repeat([[0.0], [1.0]], D // 2, axis=0), pairs.from_table(None, IDS))
    g = torch.tensor(RNG.normal(size=(Q, D)), dtype=torch.float32)
    (grown.score(torch.arange(Q), ALL) * g).sum().backward()
    grown.grow(0.3)
    scaled = g.numpy() / np.sqrt((g.numpy() ** 2).mean())
    found = grown.score(torch.arange(Q), ALL).detach().numpy()
    assert found[:, :3] == pytest.approx(-0.3 * scaled[:, :3].mean(), abs=1e-5)
    assert found[:, 3:] == pytest.approx(-0.3 * scaled[:, 3:].mean(), abs=1e-5)
    before = found
    grown.grow(0.3)  # nothing was asked since with a gradient
    assert (grown.score(torch.arange(Q), ALL).detach().numpy() == before).all()


def test_a_tree_of_scores_that_were_asked_for_in_parts_is_that_of_all() -> None:
    """A minibatch of very many items is scored some queries at a time: all of them have their say."""
    g = torch.tensor(RNG.normal(size=(Q, D)), dtype=torch.float32)
    grown = [Trees(np.zeros((Q, 0)), np.arange(D)[:, None], pairs.from_table(None, IDS))]
    grown.append(Trees(grown[0].queries, grown[0].items, grown[0].pairs))
    for trees_of, parts in zip(grown, ([slice(None)], [slice(0, 1), slice(1, None)]), strict=True):
        sum((trees_of.score(torch.arange(Q)[rows], ALL[rows]) * g[rows]).sum() for rows in parts).backward()
        trees_of.grow(0.3)
    whole, parted = (one.score(torch.arange(Q), ALL).detach().numpy() for one in grown)
    assert whole.any()
    assert parted == pytest.approx(whole, abs=1e-6)


def test_the_sum_and_the_stacked_score() -> None:
    other = MatrixFactorisation(USERS[::-1].copy(), ITEMS)
    s, r = FACTORS(torch.arange(Q)), other(torch.arange(Q))
    both = {how: TwoStagePolicy(FACTORS, Stacked(other, how), 4, 2, IDS).ranker for how in ("sum", "stacked")}
    assert torch.allclose(both["sum"](torch.arange(Q)), r + s)
    assert torch.allclose(both["sum"].score(torch.arange(Q), ALL), r + s)
    with torch.no_grad():
        both["stacked"].weight.fill_(0.5)
    assert torch.allclose(both["stacked"].score(torch.arange(Q), ALL), r + 0.5 * s)
    both["sum"].score(torch.arange(Q), ALL).sum().backward()
    assert FACTORS.items.grad is None  # no gradient reaches the generator through its score


@pytest.mark.parametrize("ranker", ["cross", "trees"])
def test_the_stacked_score_is_an_input_behind_a_memory_too(ranker) -> None:
    """Towers remember nothing, so the re-ranker behind them has the memory, and the score among its inputs all the same."""
    memory = Memory(np.array([0, 1, 1, 1, 1]), np.array([2], np.int32), np.array([5.0], np.float32), D)
    stages = Stages(generator="towers", ranker=ranker, generator_score="stacked")
    pair = TwoStagePolicy(*build(stages, FACTORS, FACTORS, replace(known(), memory=memory), seed=2), 4, 2, IDS)
    assert isinstance(pair.ranker, Stacked)
    assert isinstance(pair.ranker.base, Remembering)
    assert pair.ranker.weight is None
    q, s = torch.arange(Q), pair.generator(torch.arange(Q)).detach()
    wanted = pair.ranker.base.base.score_with(q, ALL, s).detach().numpy().copy()
    wanted[0, 2] += 5.0
    assert pair.ranker.score(q, ALL).detach().numpy() == pytest.approx(wanted, abs=1e-5)


def test_a_stacked_re_ranker_is_handed_the_score_of_its_own_pair() -> None:
    """Also of a copy, of another generator, and after loading; the pair that it came from keeps its own."""
    pair = TwoStagePolicy(FACTORS, Stacked(MatrixFactorisation(0 * USERS, ITEMS), "sum"), 4, 2, IDS)
    other = replace(pair, generator=MatrixFactorisation(-USERS, ITEMS))
    copied = pair.copy()
    with torch.no_grad():
        copied.generator.queries.mul_(2)
    for one, factor in ((pair, 1), (other, -1), (copied, 2)):
        assert torch.allclose(one.ranker(torch.arange(Q)), factor * FACTORS(torch.arange(Q)))
    with pytest.raises(PolicyError, match="a generator is handed no other's score"):
        TwoStagePolicy(pair.ranker, FACTORS, 4, 2, IDS)


def test_low_rank_is_the_best_approximation_up_to_a_constant_of_each_query() -> None:
    full = FACTORS(torch.arange(Q)).detach().numpy().astype(np.float64)
    centred = full - full.mean(1, keepdims=True)
    U, S, Vt = np.linalg.svd(centred)
    for rank in (1, 2):
        found = low_rank(FACTORS, rank)(torch.arange(Q)).detach().numpy()
        wanted = U[:, :rank] * S[:rank] @ Vt[:rank]
        assert found == pytest.approx(wanted, abs=1e-5)
    memory = Memory(np.array([0, 1, 1, 1, 1]), np.array([2], np.int32), np.array([5.0], np.float32), D)
    kept = low_rank(Remembering(FACTORS, memory), 2)
    assert isinstance(kept, Remembering)
    assert kept.memory.value.tolist() == [5.0]


def test_any_generator_with_any_re_ranker(tmp_path) -> None:
    """Each pair shows lists; each model as either stage is saved, and comes back the same."""
    for generator in ("factorisation", "towers", "features", "popularity"):
        for ranker in ("factorisation", "towers", "features", "cross", "trees"):
            for score in ("off", "sum", "stacked"):
                stages = Stages(generator=generator, ranker=ranker, generator_score=score)
                pair = TwoStagePolicy(*build(stages, FACTORS, FACTORS, known()), 4, 2, IDS)
                shown = pair.most_likely()
                assert shown.min() >= 0
                if score != ("off", "sum", "stacked")[(len(generator) + len(ranker)) % 3]:
                    continue
                loaded = two_stage.load(pair.save(tmp_path / "pair"))
                assert (loaded.most_likely() == shown).all()
                assert (loaded.generator.kind, loaded.ranker.kind) == (pair.generator.kind, pair.ranker.kind)


@pytest.mark.parametrize(
    ("stages", "more", "told"),
    [
        ({"generator_rank": 9}, {}, "generator_rank = 9, but what training starts from has 3 dimensions"),
        ({"generator": "features"}, {"item_features": None}, "needs features of the items"),
        ({"ranker": "trees"}, {"item_features": None}, "trees know a query and an item by their features"),
        ({"ranker": "towers"}, {"item_features": None}, "two towers need features"),
        ({"ranker": "features"}, {"pair_features": PAIRS}, "pair features are for a re-ranker that takes them"),
        ({"ranker": "cross", "missing_pairs": "refuse"}, {}, "missing_pairs = refuse needs pair features"),
    ],
)
def test_what_does_not_fit_is_refused(stages, more, told) -> None:
    with pytest.raises((ConfigError, DataError), match=told):
        build(Stages(**stages), FACTORS, FACTORS, replace(known(), **more))


@pytest.mark.parametrize(
    "switches", [{"generator": "towers", "generator_rank": 4}, {"missing_pairs": "refuse"}, {"generator": "trees"}]
)
def test_switches_that_would_be_ignored_are_refused(switches) -> None:
    with pytest.raises(
        ValueError, match=r"Leave one of the two out|is for re-rankers with pair features|Input should be"
    ):
        Stages(**switches)


def test_without_lightgbm_one_line_names_the_extra(monkeypatch, tmp_path) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: object, **more: object) -> object:
        if name == "lightgbm":
            raise ImportError(name)
        return real(name, *rest, **more)  # type: ignore[arg-type]

    _, grown = build(Stages(ranker="trees"), FACTORS, FACTORS, known())
    grown.score(torch.arange(Q), ALL).sub(1).square().sum().backward()
    grown.grow(0.1)
    folder = TwoStagePolicy(FACTORS, grown, 4, 2, IDS).save(tmp_path / "pair")
    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr(trees, "find_spec", lambda name: None)
    loaded = two_stage.load(folder)  # nothing is wrong with the folder
    for ask in (lambda: build(Stages(ranker="trees"), FACTORS, FACTORS, known()), loaded.most_likely):
        with pytest.raises(ConfigError, match=r"trees need LightGBM.*tandemrank\[trees\]"):
            ask()


def test_a_damaged_text_of_trees_never_reaches_lightgbm(tmp_path) -> None:
    from safetensors.torch import load_file, save_file

    _, grown = build(Stages(ranker="trees"), FACTORS, FACTORS, known())
    grown.score(torch.arange(Q), ALL).square().sum().backward()
    grown.score(torch.arange(Q), ALL).sub(1).square().sum().backward()
    grown.grow(0.1)
    path = TwoStagePolicy(FACTORS, grown, 4, 2, IDS).save(tmp_path / "pair") / "weights.safetensors"
    weights = load_file(path)
    weights["ranker.text"][100] += 1
    save_file(weights, path)
    with pytest.raises(PolicyError, match="the text of the trees is not the one that was saved"):
        two_stage.load(tmp_path / "pair")
