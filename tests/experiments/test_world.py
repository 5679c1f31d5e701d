"""Production, and the lists that it draws."""

from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.world import build_world, impressions, load_task


def test_lists_are_told_of_while_they_are_drawn_part_after_part(monkeypatch) -> None:
    """A production of two stages draws query by query: counts rise over all parts up to the length of the log."""
    monkeypatch.setattr("tandemrank.clicks.simulation.PART", 200)
    monkeypatch.setattr("tandemrank.policies.two_stage.BATCH", 8)
    config = ExperimentConfig(queries=60, items=50, rank=3, production_candidates=20)
    world, heard = build_world(load_task(config), config, seed=0), []
    drawn = list(impressions(world, 500, 0, heard.append))
    assert [len(part.query) for part in drawn] == [200, 200, 100]
    assert heard == sorted(heard)
    assert {200, 400, 500} <= set(heard)
    assert len(heard) > 10
