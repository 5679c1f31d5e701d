"""The live loop, small: a server of its own, users over HTTP, a log that trains, a gate, a canary, more clicks."""

import polars as pl
import pytest

import json_schemas
from tandemrank._base.files import as_json
from tandemrank.experiments import live_loop
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.live_loop import Size
from tandemrank.experiments.world import build_world, load_task, start_policy
from tandemrank.logs import validation
from tandemrank.reports import live_loop as pages
from tandemrank.serving import replay
from tandemrank.serving.service import PolicyFolder

SIZE = Size(queries=40, items=60, candidates=20, rank=3, rounds=2, log=600, canary=2000)


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    """Round 1: the truth itself is what was learned, so that it must win. Round 2: the gate refuses."""
    folder = tmp_path_factory.mktemp("live")
    config = ExperimentConfig(queries=40, items=60, rank=20, production="all", temperature=0.1)
    oracle = start_policy(build_world(load_task(config), config, 0), config, SIZE.candidates)
    learned, really_learn, really_decide = [], live_loop.learn_live, live_loop.decide_live

    def learn(log, live, seed):
        learned.append(really_learn(log, live, seed))
        return oracle if len(learned) == 1 else learned[-1]

    def decide(new, live, log, seed):
        found = really_decide(new, live, log, seed)
        return live_loop.LiveGate("canary" if len(learned) == 1 else "do not", found.why, 0.5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_loop, "learn_live", learn)
        patch.setattr(live_loop, "decide_live", decide)
        return folder, live_loop.run(folder, size=SIZE), learned


def test_the_better_pair_goes_live_and_clicks_rise(turned) -> None:
    _, found, learned = turned
    first, second = found.rounds
    assert (first.verdict, first.stayed) == ("promote", "new")
    assert first.difference > 0
    assert first.low > -1
    assert found.last > first.clicks_before == found.first
    assert (second.call, second.stayed, second.difference) == ("do not", "old", None)
    assert [pair.K2 for pair in learned] == [SIZE.candidates] * 2
    assert {m.stage for m in found.moments} == {"log", "canary"}
    json_schemas.check("demo", "_live_demo", found.summary(), as_json(found.summary()))


def test_its_log_is_fit_has_everything_and_is_drawn_again(turned) -> None:
    folder, found, _ = turned
    log = folder / "log"
    assert validation.validate(log).fit
    rows = sum(pl.read_parquet(f).height for f in log.glob("segment-*.parquet"))
    assert found.impressions - SIZE.log // 4 <= rows <= found.impressions
    again = replay.replay([log], PolicyFolder(folder / "policies").find(replay.digests([log])))
    assert again.equal == again.impressions == rows


def test_the_page_has_every_round_and_the_figure(turned, tmp_path) -> None:
    _, found, _ = turned
    pages.write(found, tmp_path, command="tandemrank demo --live")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Clicks over time" in page
    assert page.count("<tr>") == 1 + len(found.rounds)
    assert pages.headline(found).startswith(f"{found.first:.3f} clicks")
    assert live_loop.LIVE_DEMO.check(tmp_path)
    assert len(pages.rounds(found).rows) == 2
