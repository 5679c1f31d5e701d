"""The gate: what must be shown before production is replaced."""

from types import SimpleNamespace

import pytest

from tandemrank.training import valuing


@pytest.mark.parametrize(
    ("bound", "low", "kept"),
    [(None, 0.1, True), (-0.1, 0.1, True), (0.0, 0.1, True), (0.1, 0.1, False), (0.1, 0.0, True)],
)
def test_a_policy_passes_the_gate_by_a_bound_and_an_interval_above_nothing_alone(
    monkeypatch, bound: float | None, low: float, kept: bool
) -> None:
    monkeypatch.setattr(valuing, "sure_difference", lambda *_, **__: bound)
    monkeypatch.setattr(valuing, "compare_values", lambda *_: SimpleNamespace(over_queries=(low, 0.2)))
    monkeypatch.setattr(valuing, "exposure_lost", lambda *_, **__: 0.3)
    value = SimpleNamespace(sample=SimpleNamespace(level=0.95))
    asker = valuing.Valuer(SimpleNamespace(theta=None), SimpleNamespace(evaluation=None), None, None, 0, print)
    gate = asker._gate(value, value, None, None)
    assert (gate.kept_production, gate.lower_bound, gate.loss_at_worst) == (kept, bound, 0.0 if kept else 0.3)
