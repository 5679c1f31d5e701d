"""The gate: what must be shown before production is replaced."""

from types import SimpleNamespace

import pytest

from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.training import valuing


@pytest.mark.parametrize(
    ("bound", "low", "kept"),
    [(None, 0.1, True), (-0.1, 0.1, True), (0.0, 0.1, True), (0.1, 0.1, False), (0.1, 0.0, True)],
)
def test_a_policy_passes_the_gate_by_a_bound_and_an_interval_above_nothing_alone(
    monkeypatch, bound: float | None, low: float, kept: bool
) -> None:
    monkeypatch.setattr(valuing, "sure_difference", lambda *_, **__: bound)
    monkeypatch.setattr(
        valuing, "compare_values", lambda *_: SimpleNamespace(over_queries=(low, 0.2), interval=(low, 0.2))
    )
    value = SimpleNamespace(sample=SimpleNamespace(level=0.95), verdict=Verdict.TRUST)
    gate = valuing.gate_of(value, value)
    assert (gate.kept_production, gate.lower_bound) == (kept, bound)


@pytest.mark.parametrize(
    ("interval", "verdict", "worse"),
    [
        ((-0.2, -0.1), Verdict.TRUST, True),
        ((-0.2, 0.0), Verdict.TRUST, False),
        ((0.1, 0.2), Verdict.CARE, False),
        ((-0.2, -0.1), Verdict.CARE, True),
        ((-0.2, -0.1), Verdict.REFUSE, False),
    ],
)
def test_a_policy_is_worse_by_an_interval_below_nothing_that_is_not_refused(
    monkeypatch, interval, verdict, worse
) -> None:
    monkeypatch.setattr(valuing, "compare_values", lambda *_: SimpleNamespace(interval=interval))
    assert valuing.is_worse(SimpleNamespace(verdict=verdict), None) is worse
