"""A policy in a context: shifts and lists by hand, what is unknown changes nothing, what is new has its shift by features."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix
from typer.testing import CliRunner

import believing
import enumeration
from tandemrank.beliefs.exploring import exploring
from tandemrank.beliefs.scorer import BeliefSpread, Believed, generator_of
from tandemrank.cli.main import app
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies import candidates
from tandemrank.policies.contexts import ContextShift, numbers_of
from tandemrank.policies.memory import excluding
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy, extended, load
from tandemrank.serving.drawing import parse
from tandemrank.serving.engine import Server
from tandemrank.serving.export import export
from tandemrank.serving.propensities import Propensities

COLUMNS = [{"name": "device", "values": ["phone", "tv"]}, {"name": "hour", "values": ["20"]}]
Q, D = 6, 8


def shifts(J: int = 0, seed: int = 0) -> ContextShift:
    """Random shifts, and a list of query 2 on a phone at 20."""
    found = ContextShift(COLUMNS, D, J, 1, 2)
    rng = np.random.default_rng(seed)
    found.shift[:] = torch.from_numpy(rng.normal(size=(D, 3)))
    found.by_item[:] = torch.from_numpy(rng.normal(size=(J + 1, 3)))
    found.key[:] = torch.from_numpy(numbers_of(found.columns, np.array([2]), np.array([[1, 1]])))
    found.first[:], found.item[:] = torch.tensor([0, 2]), torch.tensor([1, 4])
    found.value[:] = torch.tensor([7.0, 9.0])
    return found


def policy(K2: int = 5) -> TwoStagePolicy:
    """Query 2 remembers item 4, and not item 1."""
    plain = believing.believed()
    side = plain._side(1)
    memory = plain.memory
    own = slice(memory.first[2], memory.first[3])
    assert 4 in memory.item[own]
    assert 1 not in memory.item[own]
    ranker = Believed(
        plain.queries.numpy(), plain.items.numpy(), believing_spread(plain), memory, plain._nobody(), plain.f, None,
        shifts(side.features),
    )  # fmt: skip
    return TwoStagePolicy(generator_of(ranker, 6), ranker, K2, 3, believing.policy().vocabulary)


def believing_spread(plain: Believed):
    return BeliefSpread(0.7, plain.query_spread.numpy(), plain.item_spread.numpy())


def test_scores_in_a_context_are_shifted_and_lists_have_their_own() -> None:
    plain = policy()
    ranker, contexts = plain.ranker, plain.ranker.contexts
    inside = plain.in_context({"device": "phone", "hour": 20})
    shift = (contexts.shift[:, 0] + contexts.shift[:, 2]).numpy()
    q = torch.arange(Q)
    before, after = (one.before(q) for one in (ranker, inside.ranker))
    assert torch.allclose(after, before + torch.from_numpy(shift) * ranker._flat(q, ranker.item_spread), atol=1e-4)
    memory = ranker.memory
    listed = inside.ranker.memory
    expected = memory.value + shift[memory.item]
    # Its own number in that context; item 1 is not remembered, so nothing is listed of it.
    expected[(memory.query == 2) & (memory.item == 4)] = 9.0
    assert np.array_equal(listed.item, memory.item)
    assert listed.value == pytest.approx(expected, abs=1e-5)
    assert torch.allclose(inside.ranker(q), inside.ranker.score(q, torch.arange(D).expand(Q, -1)), atol=1e-4)
    generator = inside.generator
    assert torch.allclose(generator(q), generator.score(q, torch.arange(D).expand(Q, -1)), atol=1e-4)
    moved = (generator(q) - plain.generator(q)).detach()
    free = torch.ones(Q, D, dtype=torch.bool)
    free[memory.query, memory.item] = False
    assert torch.allclose(moved[free], (ranker.sharpness * torch.from_numpy(shift)).expand(Q, -1)[free], atol=1e-4)


@pytest.mark.parametrize(("strategy", "c"), [("trained", 0.0), ("belief:1.5", 1.5)])
def test_served_propensities_in_a_context_are_those_of_the_enumerated_lists(strategy, c) -> None:
    plain, theta, context = policy(K2=3), [1.0, 0.5, 0.2], {"device": "phone", "hour": "20"}
    plain.ranker.doubt += 0.05
    server = Server(plain, exploration=parse(strategy), seed=0, theta=theta)
    knows = Propensities(samples=20_000)
    knows.know(server.traffic.first)
    for query in (2, 99):  # with lists of its own, and one that is not known
        shown = server._drawn(server.traffic, query, context=context).impression
        [(rho, _)] = knows.of([shown])
        # What is raised in a context has the doubts of what is not in one.
        inside = exploring(plain.with_queries(pl.Series([99])).in_context(context), c)
        s_c, s_r = (s[0].tolist() for s in inside.plain_scores([query if query < Q else Q]))
        wanted = enumeration.exposure(s_c, s_r, theta, plain.K2)
        assert rho == pytest.approx([wanted[item] for item in shown.items], abs=0.015)
    outside = enumeration.exposure(*(s[0].tolist() for s in exploring(plain, c).plain_scores([2])), theta, plain.K2)
    inside = enumeration.exposure(
        *(s[0].tolist() for s in exploring(plain.in_context(context), c).plain_scores([2])), theta, plain.K2
    )
    assert max(abs(outside[d] - inside[d]) for d in range(D)) > 0.1
    listed = exploring(plain.in_context({"device": "tv"}), c).ranker
    value, at = listed.memory.value, np.flatnonzero(listed.memory.query == 2)[0]
    p = 1 / (1 + np.exp(-value[at])) + c * 0.05
    score = listed.score(torch.tensor([2]), torch.tensor([[int(listed.memory.item[at])]]))
    scale = float(listed.sharpness * listed.scale(torch.tensor([2])))
    assert float(score) == pytest.approx(scale * np.log(p / (1 - p)), rel=1e-3, abs=1e-3)


def test_over_many_items_what_explores_keeps_its_contexts(monkeypatch) -> None:
    monkeypatch.setattr(candidates, "LARGE", 4)
    plain = policy()
    q, wide = torch.arange(Q), exploring(plain, 1.5)
    moved = [one.in_context({"device": "tv"}).generator(q) - one.generator(q) for one in (plain, wide)]
    assert torch.allclose(moved[0], moved[1], atol=1e-4)
    assert moved[0].abs().max() > 0.1


def test_what_is_unknown_or_not_given_changes_nothing(tmp_path) -> None:
    plain = policy()
    assert plain.in_context({}) is plain
    assert plain.recommend(context={"device": "fridge"}).equals(plain.recommend())
    part = plain.in_context({"hour": 20.0})
    assert torch.allclose(part.ranker.contexts.now, torch.tensor([0.0, 0, 1]).expand(Q, -1))
    assert part.ranker.memory.value[part.ranker.memory.query == 2] == pytest.approx(
        plain.ranker.memory.value[plain.ranker.memory.query == 2]
        + plain.ranker.contexts.shift[plain.ranker.memory.item[plain.ranker.memory.query == 2], 2].numpy(),
        abs=1e-5,
    )
    with pytest.raises(ConfigError, match="expected columns among device, hour, which the policy was learned with"):
        plain.recommend(context={"shop": 1})
    with pytest.raises(ConfigError, match="expected nothing: the policy was learned without one; got 'device'"):
        believing.policy().recommend(context={"device": "phone"})
    with pytest.raises(PolicyError, match="a policy in a context is not saved"):
        part.save(tmp_path / "policy")


def test_it_is_saved_and_loaded(tmp_path) -> None:
    plain = policy()
    again = load(plain.save(tmp_path / "policy"))
    assert again.context_columns == ("device", "hour")
    for context in ({}, {"device": "tv"}, {"device": "phone", "hour": 20}):
        ours, theirs = (one.in_context(context).scores(range(Q)) for one in (plain, again))
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_lists_of_contexts_that_are_damaged_are_refused() -> None:
    for name, value in (("first", [0, 1]), ("item", [1, 99]), ("key", [2**27 * 5 + 50])):
        found = shifts()
        getattr(found, name)[:] = torch.tensor(value)
        with pytest.raises(PolicyError, match="lists of contexts"):
            found.check(Q)


def test_new_queries_and_items_have_contexts_too() -> None:
    plain = policy()
    larger = extended(plain, query_features=believing.queries(8), item_features=believing.items(10))
    contexts = plain.ranker.contexts
    side = plain.ranker._side(1)
    rows = side.unseen(side.of_table(believing.items(10)[8:], 2))[:, -side.features :]
    expected = rows @ contexts.by_item[:-1] + contexts.by_item[-1]
    assert torch.allclose(larger.ranker.contexts.shift[8:], expected, atol=1e-5)
    assert torch.allclose(larger.generator.contexts.shift[8:], plain.ranker.sharpness * expected, atol=1e-4)
    inside = larger.in_context({"device": "phone", "hour": 20})
    known = plain.in_context({"device": "phone", "hour": 20})
    assert torch.allclose(
        inside.plain_scores(range(Q))[1][:, :D], known.plain_scores(range(Q))[1], rtol=0.02, atol=0.05
    )
    assert not len(plain.strangers(pl.Series([99])).ranker.contexts.key)
    assert plain.strangers(pl.Series([99])).in_context({"device": "tv"}).most_likely().shape == (1, 3)


def test_other_stages_repeat_their_scores_in_a_context() -> None:
    plain = policy()
    factors = MatrixFactorisation(np.eye(Q, 3), np.ones((D, 3)))
    other = TwoStagePolicy(plain.generator, factors, 5, 3, plain.vocabulary)
    base, table = np.array([4, 4, 1]), pl.DataFrame({"device": ["tv", "phone", None]})
    inside = other.in_contexts(base, table, pl.Series(["a", "b", "c"]))
    assert torch.equal(inside.ranker(torch.arange(3)), factors(torch.from_numpy(base)))
    assert torch.equal(inside.ranker.factors(torch.tensor([1])).queries, factors.queries[[4]])
    assert torch.allclose(inside.generator(torch.tensor([2])), plain.generator(torch.tensor([1])), atol=1e-5)
    assert not torch.allclose(inside.generator(torch.tensor([0])), inside.generator(torch.tensor([1])))


def test_what_is_excluded_stays_so_in_a_context() -> None:
    plain = policy()
    gone = csr_matrix((np.ones(2, np.float32), ([2, 3], [1, 5])), shape=(Q, D))
    apart = replace(plain, generator=excluding(plain.generator, gone), ranker=excluding(plain.ranker, gone))
    s_c, s_r = apart.in_context({"device": "tv"}).plain_scores(range(Q))
    for scores in (s_c, s_r):
        assert torch.isinf(scores[[2, 3], [1, 5]]).all()
        assert torch.isfinite(scores).sum() == Q * D - 2


def test_one_number_of_a_query_and_its_context() -> None:
    columns = shifts().columns
    codes = np.array([[a, b] for a in range(3) for b in range(2)])
    numbers = numbers_of(columns, np.array([5, 0, 3, 3, 3, 5]), codes)
    assert len(np.unique(numbers)) == 6
    assert (numbers % 2**27).tolist() == [5, 0, 3, 3, 3, 5]


def test_an_export_is_of_the_average_context_and_says_so(tmp_path) -> None:
    plain = policy()
    about = json.loads((export(plain, "numpy", tmp_path / "written") / "export.json").read_text())
    assert about["average_over"] == ["device", "hour"]
    saved = plain.save(tmp_path / "policy")
    found = CliRunner().invoke(app, ["export", str(saved), "--to", "numpy", "--out", str(tmp_path / "out")])
    assert "device, hour are not exported" in " ".join(found.output.split())


def test_evaluate_says_that_the_truth_has_no_contexts(tmp_path) -> None:
    policy().save(tmp_path / "policy")
    (tmp_path / "a.qrels").write_text("2 0 4 1\n3 0 1 2\n", encoding="utf-8")
    told = [
        "evaluate",
        "--policy",
        str(tmp_path / "policy"),
        "--qrels",
        str(tmp_path / "a.qrels"),
        "--set",
        "list_length=3",
    ]
    found = CliRunner().invoke(app, told)
    assert found.exit_code == 0, found.output
    assert "as in the average context: the truth has no device, hour." in " ".join(found.output.split())
