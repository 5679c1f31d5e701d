"""How many candidates: values and losses by enumeration, what is enough, the page, what is refused."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import enumeration
import tandemrank as tr
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.offpolicy import how_many
from tandemrank.reports import how_many as pages

Q, D, K = 2, 6, 2
THETA = [1.0, 0.5]
IDS = tr.Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
S_C, S_R, BELIEF, LOGGER = np.random.default_rng(3).normal(size=(4, Q, D))


def log(n: int = 400) -> pl.DataFrame:
    """Impressions of a one-stage logger with its propensities; users click what has an even number."""
    rng = np.random.default_rng(1)
    query = rng.integers(0, Q, n)
    items = np.argsort(-(LOGGER[query] + rng.gumbel(size=(n, D))), axis=1)[:, :K]
    clicks = (rng.random((n, K)) < THETA) & (items % 2 == 0)
    rho_0 = np.array([enumeration.exposure(list(s), list(s), THETA, D) for s in LOGGER])
    lists = {"items": items, "clicks": clicks.astype(int), "propensities": rho_0[query[:, None], items]}
    return pl.DataFrame({"query_id": query} | {name: x.tolist() for name, x in lists.items()})


def by_hand(frame: pl.DataFrame, s_r: np.ndarray, K2: int) -> float:
    """U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d), the exposures by enumeration."""
    rho = [enumeration.exposure(list(s), list(r), THETA, K2) for s, r in zip(S_C, s_r, strict=True)]
    rows = frame.explode("items", "clicks", "propensities").iter_rows()
    return sum(rho[q][item] / rho_0 * click for q, item, click, rho_0 in rows) / len(frame)


POLICY = tr.TwoStagePolicy(tr.GivenScores(S_C), tr.GivenScores(S_R), 3, K, IDS)
ASKED = {"propensity": "logged", "estimator": "ips", "examination": THETA, "samples": 20_000}


def test_values_and_losses_are_those_of_the_enumerated_exposures() -> None:
    frame = log()
    found = how_many.estimate_candidates(POLICY, frame, [4, 2, 4], belief=tr.GivenScores(BELIEF), **ASKED)
    everything = by_hand(frame, S_R, D)
    assert found.everything == pytest.approx(everything, abs=0.005)
    assert [one.candidates for one in found.counts] == [2, 4]
    most = by_hand(frame, S_R, 4)
    for one in found.counts:
        value = by_hand(frame, S_R, one.candidates)
        assert one.value == pytest.approx(value, abs=0.005)
        assert one.kept == pytest.approx(value / most, abs=0.01)
        assert one.generator_loss.value == pytest.approx(everything - value, abs=0.005)
        assert one.ranker_loss.value == pytest.approx(by_hand(frame, BELIEF, one.candidates) - value, abs=0.005)
        assert one.seconds > 0
    one_by_one = tr.estimate(replace(POLICY, K2=2), frame, **ASKED)
    assert (found.counts[0].value, found.counts[0].interval) == (one_by_one.value, one_by_one.interval)


def test_all_items_as_candidates_lose_nothing_at_the_generator() -> None:
    found = how_many.estimate_candidates(POLICY, log(), [2, D], most_likely=True, **(ASKED | {"samples": 2}))
    assert found.counts[1].generator_loss == how_many.Loss(0.0, (0.0, 0.0))
    assert found.counts[1].ranker_loss is None
    value = tr.estimate(tr.offpolicy.exposure.MostLikely(replace(POLICY, K2=2)), log(), **(ASKED | {"samples": 2}))
    assert found.counts[0].value == value.value


def curve(*kept: tuple[float, float, float]) -> how_many.CandidateCurve:
    counts = tuple(
        how_many.CandidateCount(
            candidates=10 * 2**n,
            value=one,
            interval=(one - 0.1, one + 0.1),
            kept=one,
            kept_interval=(low, high),
            seconds=2.0**n,
            generator_loss=how_many.Loss(0.1, (0.0, 0.2)),
            ranker_loss=None,
        )
        for n, (one, low, high) in enumerate(kept)
    )
    return how_many.CandidateCurve(
        counts=counts, everything=1.1, verdict=tr.offpolicy.verdicts.Verdict.TRUST, reasons=("so",)
    )


def test_the_fewest_that_surely_keep_nearly_all_are_enough() -> None:
    found = curve((0.995, 0.98, 1.01), (0.996, 0.991, 1.001), (1, 1, 1))
    assert found.sentence == (
        "K2 = 20 keeps 99.6% [99.1%, 100.1%] of what 40 candidates get, with 50% of the scored items and 50% of the "
        "re-ranker's time."
    )
    assert found.summary()["enough"] == 20
    few = curve((0.9, 0.8, 1.01), (1, 1, 1))
    assert few.sentence == "Fewer candidates than 20 may lose more than 1% of its clicks."


def test_the_page_has_the_curve_and_the_sentence(tmp_path) -> None:
    found = curve((0.996, 0.991, 1.001), (1, 1, 1))
    path = pages.report(found, command="tandemrank estimate").write(tmp_path / "how.html")
    text = path.read_text(encoding="utf-8")
    assert "<svg" in text
    assert "K2 = 10 keeps 99.6%" in text
    assert "+0.100 ± 0.100" in text


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([], "whole numbers"),
        ([2.5], "whole numbers"),
        ([True], "whole numbers"),
        ([1, 3], "from 2, the places"),
        ([3, 7], "to 6, the items; got 7"),
    ],
)
def test_other_numbers_of_candidates_are_refused(counts, words) -> None:
    with pytest.raises((ConfigError, PolicyError), match=words):
        how_many.estimate_candidates(POLICY, log(10), counts)
