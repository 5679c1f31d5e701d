"""What came of an own log, in words, on a terminal and as a page: all from the content of `summary.json`."""

import copy
import io
import re
from typing import Any

import pytest
from rich.console import Console

from tandemrank.reports import training

TRUST, CANNOT = "trust it", "cannot be answered from this log"


def method(name: str, value: float, verdict: str, phases: dict[str, int]) -> dict[str, Any]:
    rests = {
        "lower_bound": value - 0.3, "effective_sample_size": 1234.0, "largest_weight": 9.0, "unsupported": 0.123,
        "lost_at_generator": 0.1, "lost_at_ranker": 0.023, "balance": 0.98,
    }  # fmt: skip
    history = [{"phase": phase, "epoch": n + 1, "held_out": 0.3 + n / 50} for phase in phases for n in range(4)]
    return {
        "method": name, "value": value, "interval": [value - 0.1, value + 0.1], "verdict": verdict,
        "reasons": ["because <of> this"], **rests, "chosen": phases, "history": history,
    }  # fmt: skip


def gap(name: str, against: str, value: float, verdict: str = TRUST) -> dict[str, Any]:
    return {
        "method": name,
        "against": against,
        "value": value,
        "interval": [value - 0.1, value + 0.1],
        "verdict": verdict,
    }


SUMMARY: dict[str, Any] = {
    "command": "tandemrank train --logs 'a <b>'", "version": "0.1.0",
    "propensity": "fitted", "propensity_reason": "there are none",
    "start": "matrix factorisation",
    "log": {
        "impressions": 5000.0, "queries": 90, "items": 70, "pairs": 3000, "clicks": 4000.0, "list_length": 10,
        "train": 3250.0, "held_out": 750.0, "evaluation": 1000.0,
    },
    "production": {"value": 0.8, "interval": [0.75, 0.85], "verdict": "as the log shows it"},
    "methods": [method("joint", 1.2, TRUST, {"both": 4}), method("baseline", 1.1, CANNOT, {"one": 2, "two": 1})],
    "differences": [gap("joint", "production", 0.4), gap("baseline", "production", 0.3, CANNOT), gap("joint", "baseline", 0.1)],
    "switches": {"list_length": 10, "candidates": 50, "epochs": 5}, "switch_help": {"list_length": "places"},
}  # fmt: skip


def with_gap(value: float, verdict: str) -> list[str]:
    summary = copy.deepcopy(SUMMARY)
    summary["differences"] = [gap("joint", "production", value, verdict)]
    return training.sentences(summary)


def test_sentences_say_who_is_ahead_and_what_cannot_be_said() -> None:
    assert with_gap(0.4, TRUST) == [
        "Joint would get more clicks than production: +0.400 [+0.300, +0.500] per impression."
    ]
    assert with_gap(-0.4, TRUST)[0].startswith("Joint would get fewer clicks than production: −0.400")
    assert with_gap(0.05, TRUST)[0].startswith("Joint and production cannot be told apart: +0.050 [−0.050, +0.150]")
    careful = "; use it with care, the interval is too narrow, for the log supports less than it says."
    assert with_gap(0.4, "use with care")[0].endswith(careful)
    refused = training.sentences(SUMMARY)[1]
    assert refused == "Baseline against production cannot be answered from this log: because <of> this."


def test_the_page_is_whole_and_says_every_number() -> None:
    page = training.html(SUMMARY)
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)
    assert "<script" not in page
    assert "because <of> this" not in page  # escaped
    assert "tandemrank train --logs &#x27;a &lt;b&gt;&#x27;" in page
    for text in (
        "1.200",
        "+0.400 [+0.300, +0.500]",
        "12.3%",
        "1,234",
        "fitted: there are none",
        "3,250",
        "<code>epochs</code>",
    ):
        assert text in page, text
    titles = ["What it is worth", "Clicks per impression", "What the numbers rest on", "Learning curves", "The log",
              "Every switch", "To reproduce"]  # fmt: skip
    assert re.findall("<h2>(.*?)</h2>", page) == titles
    assert training.html(SUMMARY) == page


def test_the_chosen_epoch_is_marked_in_its_phase() -> None:
    figure = training.curves_figure(SUMMARY)
    rings = [[tuple(line.get_xydata()[0]) for line in axis.lines if line.get_marker() == "o"] for axis in figure.axes]
    assert rings[0] == [pytest.approx((4, 0.36))]
    assert rings[1] == [pytest.approx((2, 0.32)), pytest.approx((5, 0.30))]


def test_a_value_that_cannot_be_answered_is_hollow() -> None:
    axis = training.values_figure(SUMMARY).axes[0]
    dots = {line.get_ydata()[0]: line for line in axis.lines if line.get_marker() not in ("None", "", None)}
    hollow = [line.get_markerfacecolor() != line.get_color() for _, line in sorted(dots.items())]
    assert hollow == [True, False, False]  # baseline, joint, production, from below


def test_the_table_for_a_terminal() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(training.text(SUMMARY))
    lines = console.export_text().splitlines()
    assert any(re.search(r"Production\s+0\.800\s+\[0\.750, 0\.850\]\s+–\s+as the log shows it", line) for line in lines)
    assert any(re.search(r"Joint\s+1\.200.*\+0\.400\s+\[\+0\.300, \+0\.500\]\s+trust it", line) for line in lines)
