"""What came of an own log, in words, on a terminal, as a page, and as files."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from example_learned import CARE, COMMAND, JOINT, LEARNED, TRUST, gap
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.sources import days_of
from tandemrank.offpolicy.comparison import FrequencyGroup
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.reports import figures, sections, training
from tandemrank.reports.sections import named
from tandemrank.training.methods import Candidates, MethodChoice, Tried


def with_gap(size: float, verdict: Verdict) -> str:
    sentence, decision = training.sentences(replace(LEARNED, differences=(gap("joint", "production", size, verdict),)))
    assert decision.startswith("Decision on Joint: ")
    return sentence


def test_sentences_say_who_is_ahead_and_what_cannot_be_said() -> None:
    assert (
        with_gap(0.4, TRUST) == "Joint would get more clicks than production: +0.400 [+0.300, +0.500] per impression."
    )
    assert with_gap(-0.4, TRUST).startswith("Joint would get fewer clicks than production: −0.400")
    assert with_gap(0.05, TRUST).startswith("Joint and production cannot be told apart: +0.050 [−0.050, +0.150]")
    wide = gap("joint", "production", 0.05, TRUST)
    wide = replace(wide, comparison=replace(wide.comparison, lower_bound=0.02))
    assert training.sentences(replace(LEARNED, differences=(wide,)))[0] == (
        "Joint would get more clicks than production, at least +0.020 per impression (95% sure); how much more is hardly "
        "known: +0.050 [−0.050, +0.150]."
    )
    doubted = gap("joint", "production", 0.4, CARE)
    new = replace(doubted.comparison.new, verdict=CARE, reasons=("clicks are few", "and more"))
    doubted = replace(doubted, comparison=replace(doubted.comparison, new=new))
    sentence, _ = training.sentences(replace(LEARNED, differences=(doubted,)))
    assert sentence.endswith("per impression; use it with care: clicks are few.")
    refused = training.sentences(LEARNED)[1:3]
    assert refused == [
        "Baseline against production cannot be answered from this log: because <of> this.",
        "Joint against baseline cannot be answered from this log: because <of> this.",
    ]
    last = "Decision on Baseline: do not. Cannot be answered from this log: because <of> this."
    assert training.sentences(LEARNED)[-1] == last


def test_nobody_is_said_to_be_harmed_by_a_value_that_is_refused() -> None:
    group = FrequencyGroup(
        least=1, most=2, queries=90, impressions=100.0, new=0.2, old=0.5, difference=-0.3, interval=(-0.4, -0.2)
    )
    harmed = "is worse than production for queries seen 1 to 2 times"
    said = training.sentences(replace(LEARNED, by_frequency={"joint": (group,), "baseline": (group,)}))
    assert [sentence.split(" ", 1)[0] for sentence in said if harmed in sentence] == ["Joint"]


def test_the_page_is_whole_and_says_every_number() -> None:
    page = training.report(LEARNED, command=COMMAND).html()
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert "<script" not in page
    assert "because <of> this" not in page  # escaped
    assert 'tandemrank learn <span class="whole">--logs</span> &#39;a &lt;b&gt;&#39;' in page
    for text in (
        "1.200", ">+0.400<", "[+0.300, +0.500]", "12.3%", "1,234", "fitted: there are none", "4,000",
        "<code>epochs</code></th>", "picks 50 of 60 items", "The list has 10 places",
    ):  # fmt: skip
        assert text in page, text
    titles = [
        "What it is worth", "Clicks per impression", "What was learned", "The methods", "What changes for one query",
        "What the numbers rest on", "Learning curves", "The log", "Every switch", "To reproduce",
    ]  # fmt: skip
    assert re.findall("<h2>(.*?)</h2>", page) == titles
    assert training.report(LEARNED, command=COMMAND).html() == page


def test_learning_curves_are_of_the_objective() -> None:
    both, baseline = training._panels(LEARNED)
    assert [step.value for step in both.runs[0]] == [0.30, 0.32, 0.34, 0.36]
    assert [step.phase for step in baseline.runs[0]] == ["one"] * 4 + ["two"] * 4
    [left, right] = figures.learning_curves([[both, baseline]], "objective").axes
    assert left.lines[0].get_xydata()[-1].tolist() == [4, 0.36]
    assert right.lines[2].get_xydata()[0].tolist() == [5, 0.3]  # the second phase follows the first


def test_a_value_that_cannot_be_answered_is_not_drawn() -> None:
    found = training._dots(LEARNED)
    assert [one.name for one in found] == ["Production", "Joint"]
    axis = figures.dots(found, "clicks").axes[0]
    assert len([line for line in axis.lines if line.get_marker() == "o"]) == 2


def test_the_table_for_a_terminal() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(training.values(LEARNED).terminal())
    lines = console.export_text().splitlines()
    assert any(re.search(r"Production\s+0\.800\s+\[0\.750, 0\.850\]\s+–\s+as the log shows it", line) for line in lines)
    assert any(re.search(r"Joint\s+1\.200.*\+0\.400\s+\[\+0\.300, \+0\.500\]\s+\S+\s+trust it", line) for line in lines)


def test_the_files(tmp_path: Path) -> None:
    training.check_free(tmp_path, ["joint", "baseline"])
    written = training.write(LEARNED, tmp_path, command=COMMAND, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "baseline", "config.json", "joint", "report.html", "summary.json"
    ]  # fmt: skip
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["command"], summary["switches"]["seed"]) == (COMMAND, 3)
    assert [entry["policy"] for entry in summary["methods"]] == [str(tmp_path / m / "policy") for m in LEARNED.trained]
    assert len(json.loads((tmp_path / "baseline" / "history.json").read_text())) == 8
    assert (
        Path(written["report"]).read_text(encoding="utf-8") == training.report(LEARNED, command=COMMAND, seed=3).html()
    )
    with pytest.raises(ConfigError, match=r"baseline/policy exists\. Give another --out, or --resume"):
        training.check_free(tmp_path, ["baseline"])


def lists_of(**how: object) -> str:
    """The page's lists: the log shows item 1 of query 1, the policy the first ten."""
    page = training.report(LEARNED, **how).html()
    return page.split("<h2>What changes for one query</h2>")[1].split("</section>")[0]


def test_old_and_new_lists_have_titles_and_pictures_only_where_they_are_asked_for() -> None:
    items = pl.DataFrame(
        {
            "item_id": [1, 2],
            "title": ["One <b>", "Two"],
            "url": ["https://x.org/1?a&b", None],
            "image": ["one.png", None],
        }
    )
    queries = pl.DataFrame({"query_id": [1], "title": ["Shoes & <i>"]})
    plain = lists_of()
    assert "<h3>1 <span" in re.sub(r">\s+", ">", plain)
    shown = lists_of(named=named([items, queries]))
    assert "Shoes &amp; &lt;i&gt;" in shown
    assert '<a href="https://x.org/1?a&amp;b" rel="noreferrer">One &lt;b&gt;</a>' in shown
    assert shown.count("<img") == plain.count("<img") == 0
    pictures = lists_of(named=named(items, images=True))
    assert pictures.count('<img src="one.png" alt=""') == 2  # in the old list and in the new one
    old, new = shown.split("<ol>")[1:]
    assert (old.count("<li>"), new.count("<li>")) == (1, 10)
    assert re.findall(r"↓ from \d|↑ from \d|new|gone", new) == ["new", "↓ from 1"] + ["new"] * 8


def test_titles_where_there_are_no_lists_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="titles would have no effect: the page of Value shows no lists"):
        JOINT.report(tmp_path / "x.html", titles=pl.DataFrame({"item_id": [1], "title": ["a"]}))
    with pytest.raises(ConfigError, match="images: expected titles"):
        LEARNED.report(tmp_path / "x.html", images=True)
    assert not list(tmp_path.iterdir())


def test_production_stands_with_what_it_showed_most_at_each_rank_each_item_once() -> None:
    rows = [(0, 0, 0, 5), (0, 0, 1, 9), (0, 1, 1, 3), (0, 1, 0, 4), (0, 2, 1, 2)]  # query, item, rank, times
    parts = [
        Impressions(np.full(n, q, np.int32), np.array([[-1, -1]] * n, np.int32), np.zeros((n, 2), np.uint8))
        for q, _, _, n in rows
    ]
    for part, (_, item, rank, _) in zip(parts, rows, strict=True):
        part.items[:, : rank + 1] = [[9, item][-rank - 1 :]]
    log = counting.from_impressions(parts, Vocabulary(pl.Series(["q"]), pl.Series([f"i{n}" for n in range(10)])))
    # Rank 1: item 9 fourteen times; rank 2: item 0 nine times.
    assert sections._shown(log, np.array([0]), 2) == [["i9", "i0"]]
    assert sections._shown(log, np.array([0]), 1) == [["i9"]]


def test_what_was_learned_is_what_the_beliefs_hold() -> None:
    class Graded:
        notes = ("a note",)

        def constants(self) -> dict[str, object]:
            return {
                "relevance": "graded", "levels": [0.02, 0.5], "rank": 16, "directions": "production", "features": "none",
                "half_life": 2.0,
            }  # fmt: skip

    assert training.believed(LEARNED) == []
    assert training.believed(replace(LEARNED, beliefs=Graded())) == [
        "What an item is to a query is graded, from 2% to 50% clicks when it is looked at.",
        "Queries and items have vectors of 16 numbers, from production's lists.",
        "What is 2 eighths of the log older counts half.",
        "a note",
    ]


def test_what_the_generator_loses_is_of_the_candidates_that_are_asked_for() -> None:
    curve = (Candidates(20, 0.8), Candidates(50, 0.95), Candidates(60, 1.0))
    found = training._candidates(replace(LEARNED, choice=MethodChoice("beliefs", (Tried("beliefs", 1.9),), 2.0, curve)))
    assert found.sentences[0].startswith("The generator loses 5.0% of what the re-ranker")
    axis = found.draw().axes[0]
    assert axis.lines[0].get_xydata().tolist() == [[20, 80], [50, 95], [60, 100]]
    assert not training._candidates(replace(LEARNED, choice=MethodChoice("beliefs", (), 2.0, curve[:1])))


def test_the_page_says_when_it_was_made_and_of_which_days_the_log_is() -> None:
    log = replace(LEARNED.log, period=(1_700_000_000.0, 1_700_090_000.0))
    page = training.report(replace(LEARNED, log=log)).html()
    assert "log of 2023-11-14 to 2023-11-15 · TandemRank" in page
    assert "log of" not in training.report(LEARNED).html().split("</header>")[0].split("meta")[-1]
    assert days_of((0, 1)) == "1970-01-01"
    assert days_of((1e300, 1e300)) == days_of(None) == ""
