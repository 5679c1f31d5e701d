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

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.bounds import value_terms
from tandemrank.offpolicy.comparison import Comparison, FrequencyGroup
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.values import Sample, Value
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import figures, training
from tandemrank.training.checkpoint import Epoch
from tandemrank.training.config import LearningConfig
from tandemrank.training.loop import Trained
from tandemrank.training.parts import LogFacts
from tandemrank.training.results import Difference, Learned
from tandemrank.training.start import Start

TRUST, CARE, CANNOT = Verdict.TRUST, Verdict.CARE, Verdict.REFUSE
RESTS = Diagnostics(
    queries=90, impressions=1000.0, clicks=800.0, examined=2000.0, effective_sample_size=1234.0, largest_weight=9.0,
    largest_share=0.1, clipped=0.0, unsupported=0.123, lost_at_generator=0.1, lost_at_ranker=0.023, balance=0.98,
    balance_error=0.01,
)  # fmt: skip
SHOWN = Impressions(np.zeros(1, np.int32), np.zeros((1, 1), np.int32), np.zeros((1, 1), np.uint8))
LOG = counting.from_impressions([SHOWN], Vocabulary(pl.Series([1]), pl.Series([1])))
SAMPLE = Sample(queries=90, impressions=1000.0, level=0.95, independent="queries")


def value(size: float, verdict: Verdict, rests: Diagnostics | None = RESTS, half: float = 0.1) -> Value:
    """A value with its interval on both sides."""
    estimate = Estimate(np.array([size]), np.ones(1))
    found = Value(
        log=LOG,
        sample=SAMPLE,
        estimate=estimate,
        terms=value_terms(estimate),
        ceiling_terms=value_terms(estimate),
        verdict=verdict,
        reasons=("because <of> this",),
        diagnostics=rests,
    )
    found.__dict__.update(standard_error=half / 1.96, lower_bound=size - 0.3)  # what would be computed
    return found


JOINT, BASELINE = value(1.2, TRUST), value(1.1, CANNOT)
LIVE = value(0.8, Verdict.OBSERVED, None, 0.05)


def gap(
    method: str, against: str, size: float, verdict: Verdict = TRUST, new: Value = JOINT, old: Value = LIVE
) -> Difference:
    found = Comparison(
        new=new,
        old=old,
        difference=size,
        standard_error=0.05,
        interval=(size - 0.1, size + 0.1),
        over_queries=(size - 0.3, size + 0.3),
        lower_bound=size - 0.2,
        verdict=verdict,
        reasons=(),
    )
    return Difference(method, against, found)


def trained(*phases: tuple[str, list[float]]) -> Trained:
    """A pair whose phases have these objectives."""
    scorer = GivenScores(np.full((2, 60), float(len(phases))))
    pair = TwoStagePolicy(scorer, scorer, 50, 10, Vocabulary(pl.Series([1, 2]), pl.Series(range(60))))
    epochs = [Epoch(name, n + 1, x, 0.1, {}) for name, heard in phases for n, x in enumerate(heard)]
    return Trained(pair, tuple(epochs))


LEARNED = Learned(
    config=LearningConfig(list_length=10, candidates=50),
    start=Start(),
    log=LogFacts(5000.0, 90, 70, 3000, 4000.0, 10, 4000.0, 1000.0),
    propensity="fitted",
    propensity_reason="there are none",
    trained={
        "joint": trained(("both", [0.30, 0.32, 0.34, 0.36])),
        "baseline": trained(("one", [0.30, 0.32, 0.10, 0.10]), ("two", [0.3, 0.1, 0.1, 0.1])),
    },
    values={"joint": JOINT, "baseline": BASELINE},
    production=LIVE,
    differences=(
        gap("joint", "production", 0.4),
        gap("baseline", "production", 0.3, CANNOT, BASELINE),
        gap("joint", "baseline", 0.1, CANNOT, JOINT, BASELINE),
    ),
)
COMMAND = "tandemrank learn --logs 'a <b>'"


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
    harmed = "is worse than production for queries that came 1 to 2 times"
    said = training.sentences(replace(LEARNED, by_frequency={"joint": (group,), "baseline": (group,)}))
    assert [sentence.split(" ", 1)[0] for sentence in said if harmed in sentence] == ["Joint"]


def test_the_page_is_whole_and_says_every_number() -> None:
    page = training.report(LEARNED, command=COMMAND).html()
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert "<script" not in page
    assert "because <of> this" not in page  # escaped
    assert "tandemrank learn --logs &#39;a &lt;b&gt;&#39;" in page
    for text in (
        "1.200", ">+0.400<", "[+0.300, +0.500]", "12.3%", "1,234", "fitted: there are none", "4,000", ">epochs</th>",
        "picks 50 of 60 items", "The list has 10 places",
    ):  # fmt: skip
        assert text in page, text
    titles = [
        "The methods", "What it is worth", "Clicks per impression", "What the numbers rest on", "Learning curves", "The log",
        "Every switch", "To reproduce",
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
