"""Exploration by what the belief does not know: raised scores by hand, what is explored, exact propensities."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch

import believing
import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.exploring import exploring
from tandemrank.beliefs.scorer import raised
from tandemrank.policies import candidates
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy, load
from tandemrank.serving import live_policy, records, replay
from tandemrank.serving.drawing import parse
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder

C = 1.5


def policy(Q: int = 4, D: int = 5, K2: int = 3, K: int = 2) -> TwoStagePolicy:
    """A policy whose belief doubts the pairs that were shown, by .05 at most."""
    plain = believing.policy(Q, D, K2, K)
    plain.ranker.doubt += torch.rand(plain.ranker.doubt.shape, generator=torch.Generator().manual_seed(0)) / 20
    return plain


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(("s", "around", "v"), [(-2.0, 0.7, 0.5), (0.3, 0.4, 0.1), (1.0, 1.0, 2.0)])
def test_a_score_is_raised_by_standard_deviations_of_relevance(s, around, v) -> None:
    """Log-odds of R are normal: mean and variance of R by a fine sum over that distribution."""
    V = around**2 + v
    nodes = [s + math.sqrt(V) * (-6 + 12 * n / 4000) for n in range(4001)]
    weight = [math.exp(-((x - s) ** 2) / (2 * V)) for x in nodes]
    mean = sum(w * sigmoid(x) for w, x in zip(weight, nodes, strict=True)) / sum(weight)
    square = sum(w * sigmoid(x) ** 2 for w, x in zip(weight, nodes, strict=True)) / sum(weight)
    found = float(raised(torch.tensor([s]), around, torch.tensor([v]), 0.7))
    assert sigmoid(found) == pytest.approx(mean + 0.7 * math.sqrt(square - mean**2), abs=0.03)


def test_a_bit_is_raised_by_its_own_standard_deviation() -> None:
    p = sigmoid(-1.0 / math.sqrt(1 + math.pi / 8 * 0.6))
    found = float(raised(torch.tensor([-1.0]), 0.0, torch.tensor([0.6]), 0.5))
    assert sigmoid(found) == pytest.approx(p + 0.5 * math.sqrt(p * (1 - p)), abs=1e-6)
    assert float(raised(torch.tensor([3.0]), 0.0, torch.tensor([0.6]), 9.0)) == pytest.approx(math.log(1e6), rel=0.02)


def test_what_was_shown_is_raised_by_its_doubt_and_what_is_settled_not_at_all() -> None:
    known = policy().ranker
    known.doubt[::2] = 0
    q, plain = torch.arange(4), known(torch.arange(4))
    upper = exploring(replace(policy(), generator=known, ranker=known), C).ranker
    found = upper(q)
    # Log-odds of chances near 1 lose digits: another CPU rounds otherwise.
    torch.testing.assert_close(found, upper.score(q, torch.arange(5).expand(4, -1)), rtol=1e-4, atol=1e-4)
    for entry, (row, item) in enumerate(zip(known.memory.query, known.memory.item, strict=True)):
        scale = known.sharpness * float(known.scale(torch.tensor([row])))
        p = sigmoid(float(known.value[entry])) + C * float(known.doubt[entry])
        assert float(found[row, item]) == pytest.approx(scale * math.log(p / (1 - p)), rel=1e-4, abs=1e-4)
    assert (found >= plain - 1e-4).all()
    assert torch.equal(known(q), plain)  # the policy itself stays as it is


def test_a_new_item_is_explored_and_the_wider_its_spread_the_more() -> None:
    plain = policy()
    shown = []
    for spread in (0.01, 3.0):
        plain.ranker.item_spread[:] = 0.01
        plain.ranker.item_spread[2] = spread
        made = exploring(replace(plain, generator=plain.ranker, K2=5), C)
        never = [q for q in range(4) if 2 not in plain.ranker.item[plain.ranker.first[q] : plain.ranker.first[q + 1]]]
        rho, _ = made.exposure(never, [2] * len(never), [1.0, 0.5], samples=400)
        shown.append(rho.mean())
    assert len(never) >= 2
    assert shown[1] > shown[0] + 0.02


def test_other_policies_and_no_deviations_are_left_as_they_are() -> None:
    plain = policy()
    assert exploring(plain, 0.0) is plain
    scorer = MatrixFactorisation(np.ones((4, 2)), np.ones((5, 2)))
    other = TwoStagePolicy(scorer, scorer, 3, 2, plain.vocabulary)
    assert exploring(other, C) is other
    live = LivePolicy(other)
    assert live.raised(C) is live


def test_over_many_items_the_product_has_one_more_dimension(monkeypatch) -> None:
    monkeypatch.setattr(candidates, "LARGE", 4)
    plain = policy()
    wide = exploring(plain, C)
    q, ranker = torch.arange(4), plain.ranker
    more = ranker.scale(q)[:, None] * torch.sqrt(ranker.query_spread[:, None] * ranker.item_spread)
    product = plain.generator.queries @ plain.generator.items.T + C * ranker.sharpness * more
    torch.testing.assert_close(wide.generator.queries @ wide.generator.items.T, product)
    assert torch.equal(wide.generator.value, plain.generator.value)
    assert wide.ranker.upper == C


def test_doubts_are_saved_and_strangers_are_explored_too(tmp_path) -> None:
    plain = policy()
    again = load(plain.save(tmp_path / "policy"))
    assert torch.equal(again.ranker.doubt, plain.ranker.doubt)
    upper = exploring(plain, C).ranker
    new = Vocabulary(pl.Series([50, 51]), plain.vocabulary.item_ids)
    strangers = upper.strangers(believing.queries(2, first=50), new)
    more = Vocabulary(plain.vocabulary.query_ids, pl.Series([*range(5), 50, 51]))
    for made in (strangers, upper.more_items(believing.items(2, first=50), more), upper.joined(strangers, new)):
        assert made.upper == C


def test_served_propensities_are_those_of_the_enumerated_lists() -> None:
    plain, theta = policy(), [1.0, 0.5]
    server = Server(plain, exploration=parse(f"belief:{C}"), seed=0, theta=theta)
    shown = server._drawn(server.traffic, 1).impression
    assert shown.strategy == f"belief:{C}"
    knows = Propensities(samples=20_000)
    knows.know(server.traffic.first)
    [(rho, error)] = knows.of([shown])
    s_c, s_r = (s[0].tolist() for s in exploring(plain, C).plain_scores([1]))
    wanted = enumeration.exposure(s_c, s_r, theta, plain.K2)
    assert rho == pytest.approx([wanted[item] for item in shown.items], abs=0.01)
    assert max(error) < 0.01
    s_c, s_r = (s[0].tolist() for s in plain.plain_scores([1]))
    assert rho != pytest.approx([enumeration.exposure(s_c, s_r, theta, plain.K2)[i] for i in shown.items], abs=0.01)


def test_lists_that_explored_are_drawn_again(tmp_path) -> None:
    plain = policy()
    log = Recorder(tmp_path / "log", Propensities(samples=2))
    server = Server(plain, recorder=log, exploration=parse("belief"), seed=0)
    for n in range(20):
        server.rank(n % 4, items=None if n % 2 else [0, 1, 2, 3])
    log.seal(everything=True)
    log.close()
    found = replay.replay([str(tmp_path / "log")], [LivePolicy(plain)])
    assert found.equal == found.impressions == 20


def test_by_default_as_many_deviations_as_cost_little(monkeypatch) -> None:
    """What the belief expects of drawn lists, by enumeration: the most that keeps the share is taken, and by a server."""
    plain, theta = policy(), (1.0, 0.5)
    plain.ranker.query_spread += 4
    live = LivePolicy(plain)

    def expected(c: float) -> float:
        total = 0.0
        for q in range(4):
            s_c, s_r = (s[0].tolist() for s in exploring(plain, c).plain_scores([q]))
            rho = enumeration.exposure(s_c, s_r, list(theta), plain.K2)
            sharpness = plain.ranker.sharpness * float(plain.ranker.scale(torch.tensor([q])))
            R = torch.sigmoid(plain.plain_scores([q])[1][0].double() / sharpness)
            total += float(torch.tensor(rho).double() @ R)
        return total

    monkeypatch.setattr(live_policy, "DRAWN", 2000)
    for c in (0.5, 2.0):
        found = live._expected(live.raised(c), plain.ranker, np.array(theta)) / 2000
        assert found == pytest.approx(expected(c), rel=0.02)
    costs = {c: 1 - expected(c) / expected(0) for c in live_policy.RAISED}
    assert max(costs.values()) > 0.01
    steps = sorted(set(costs.values()))
    for low, high in pairwise([0, *steps]):
        if high - low < 0.01:
            continue  # too near to be told apart by draws
        monkeypatch.setattr(live_policy, "COST", (low + high) / 2)
        wanted = max((c for c, cost in costs.items() if cost <= low), default=0.0)
        live._affordable.clear()
        assert live.affordable(theta) == wanted
        server = Server(live, exploration=parse("belief"), seed=0, theta=theta)
        assert server._drawn(server.traffic, 1).impression.strategy == f"belief:{wanted}"


def test_a_server_without_a_belief_draws_as_trained_and_beside_one_by_its_deviations() -> None:
    plain = policy()
    scorer = MatrixFactorisation(np.ones((4, 2)), np.ones((5, 2)))
    other = LivePolicy(TwoStagePolicy(scorer, scorer, 3, 2, plain.vocabulary))
    server = Server(other, exploration=parse("belief"), seed=0)
    assert server.exploration.name == "trained"
    new = LivePolicy(plain)
    server.swap(records.split(other, new, 0.5, salt="x"))
    assert server.exploration.name == f"belief:{new.affordable(server.theta)}"
