"""What the commands print with --json: every command has a published schema, and what it prints in any test is held to it."""

import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

import json_schemas
import tandemrank as tr
from independent import simulator
from tandemrank.cli.main import app, main

WORLD = simulator.world(3, queries=40, items=12, K=3, K2=6)
GOLDEN = Path(__file__).parents[1] / "logs" / "golden"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of plain NumPy, the scores of a system, and a curve."""
    folder: Path = tmp_path_factory.mktemp("json")
    log = simulator.impressions(WORLD, 1200, 1)
    columns = {"query_id": log.query, "items": log.items.tolist(), "clicks": log.clicks.tolist()}
    more = {"half": log.query % 2, "reward": log.clicks.sum(1), "shadow": log.items[:, ::-1].tolist()}
    more["worth"] = (2.0 * log.clicks).tolist()
    pl.DataFrame(columns | more).write_parquet(folder / "log.parquet")
    # A query always has the list of one row.
    same = {"half": log.query % 2, "items": log.items[log.query].tolist(), "timestamp": np.arange(1200)}
    pl.DataFrame(columns | same).write_parquet(folder / "fixed.parquet")
    # In the last tenth there are queries and items that nobody has seen before.
    late = np.arange(1200) > 1080
    new = {
        "query_id": log.query + 30 * late,
        "items": (log.items + 8 * late[:, None]).tolist(),
        "timestamp": np.arange(1200),
    }
    pl.DataFrame(columns | new).write_parquet(folder / "new.parquet")
    Q, D = WORLD.R.shape
    scores = [tr.GivenScores(x) for x in (WORLD.s_c, WORLD.s_r)]
    tr.TwoStagePolicy(*scores, 6, 3, tr.Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))).save(folder / "policy")
    pairs = pl.DataFrame({"query_id": np.repeat(np.arange(Q), D), "item_id": np.tile(np.arange(D), Q)})
    pairs.with_columns(
        candidate_score=pl.Series(WORLD.s_c.ravel()), ranker_score=pl.Series((1.1 * WORLD.s_r).ravel())
    ).write_parquet(folder / "scores.parquet")
    curve = {"theta": [1.0, 0.6, 0.5], "low": [0.9, 0.5, 0.4], "high": [1.0, 0.7, 0.6], "level": 0.95}
    (folder / "curve.json").write_text(json.dumps(curve), encoding="utf-8")
    return folder


ASKED = "--logs log.parquet --scores scores.parquet --candidates"
COMMANDS = {
    "import": f"import {GOLDEN / 'ubi_queries.jsonl'} {GOLDEN / 'ubi_events.jsonl'} --from ubi --out imported",
    "judge": "judge log.parquet --out judged.qrels",
    "examine": "examine log.parquet --by half",
    "estimate": f"estimate {ASKED} 6",
    "estimate, a curve with an interval": f"estimate {ASKED} 6 --curve curve.json --curve-interval",
    "estimate, several": f"estimate {ASKED} 4,6 --report page.html",
    "estimate, lists": f"estimate {ASKED} 6 --list-reward reward",
    "estimate, refused": f"estimate {ASKED.replace('log.', 'fixed.')} 6",
    "estimate, of the unknown": "estimate --logs new.parquet --policy policy",
    "compare": f"compare {ASKED} 6",
    "compare, refused": f"compare {ASKED.replace('log.', 'fixed.')} 6",
    "compare, of the unknown": "compare --logs new.parquet --policy policy",
    "decide": f"decide {ASKED} 6 --segment half --at-least -2",
    "decide, do not": f"decide {ASKED} 6 --at-least 2",
    "decide, refused": f"decide {ASKED.replace('log.', 'fixed.')} 6 --segment half",
    "decide, shadow lists": "decide --logs log.parquet --shadow other=shadow --reward worth --most-clicks 6 "
    "--guardrail clicks=-1",
    "decide, of the unknown": "decide --logs new.parquet --policy policy",
    "learn": "learn --logs log.parquet --candidates 6 --method beliefs --method joint --set epochs=2 --out learned",
    "learn, auto": "learn --logs log.parquet --set safe=true --out auto",
    "learn, refused": "learn --logs fixed.parquet --context half --out refused",
    "learn, of the unknown": "learn --logs new.parquet --out unknown",
    "validate": "validate fixed.parquet",
    "simulate": "simulate --impressions 300 --set queries=60 --set items=40 --set rank=5 --out drawn",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_its_schema_says(
    name: str, place: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["tandemrank", *COMMANDS[name].split(), "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (None, 0, 3, 4)
    assert json.loads(capsys.readouterr().out)


def test_every_command_with_json_has_a_schema_and_no_other() -> None:
    having = {
        command.name or command.callback.__name__  # type: ignore[union-attr]
        for command in app.registered_commands
        if "as_json" in inspect.signature(command.callback).parameters  # type: ignore[arg-type]
    }
    assert {path.stem for path in json_schemas.FOLDER.glob("*.json")} == having
    page = (json_schemas.FOLDER.parent / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\(schemas/(\w+)\.json\)", page)) == having
    for path in json_schemas.FOLDER.glob("*.json"):
        jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text(encoding="utf-8")))


@pytest.mark.skipif(json_schemas.RECORD in os.environ, reason="schemas are being made")
def test_what_is_not_in_a_schema_is_seen() -> None:
    value = {"equal": 3, "surprise": 1}
    with pytest.raises(AssertionError, match=r"replay --json is not what .*surprise"):
        json_schemas.check("replay", "", value, json.dumps(value))
