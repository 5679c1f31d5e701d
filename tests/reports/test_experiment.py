"""The report: what it says, and that it says it honestly."""

import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from example_table import example, one_setting, page, typed
from tandemrank._base.files import as_json
from tandemrank.errors import OutputError
from tandemrank.experiments.results import Table, from_json
from tandemrank.reports import experiment, figures, style
from tandemrank.reports.experiment import headline, interval_note
from tandemrank.reports.page import DARK
from tandemrank.reports.words import switch_sheet

ROOT = Path(__file__).resolve().parents[2]


def html_of(content: dict[str, Any]) -> str:
    return experiment.report(typed(content)).html()


def differences(content: dict[str, Any]) -> Any:
    return figures.dots(experiment._dots(typed(content)), "difference")


def markdown(content: dict[str, Any]) -> str:
    return experiment.report(typed(content)).markdown()


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words and tables only, where the figures are not the question: drawing them takes a second."""
    monkeypatch.setattr(experiment, "_figures", lambda table: [])


class _Checker(HTMLParser):
    """Every tag is closed, ids are unique, and nothing is fetched."""

    VOID = frozenset({"meta", "link", "img", "br", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [v for k, v in attrs if k in ("href", "src", "xlink:href") and v]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def check(html: str) -> _Checker:
    checker = _Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    assert len(checker.ids) == len(set(checker.ids))
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert not {"script", "iframe", "object"} & set(checker.tags)
    assert "url(http" not in html
    assert "@import" not in html
    assert not re.search(r"\bnan\b", checker.words, re.IGNORECASE)
    return checker


def test_page_is_whole_and_in_order() -> None:
    html = page(example)
    check(html)
    titles = re.findall("<h2>(.*?)</h2>", html)
    assert titles == [
        "The methods", "Who is ahead", "NDCG@10 with 95% intervals", "Paired differences", "More clicks", "More candidates",
        "Learning curves", "All measures", "Every switch", "To reproduce",
    ]  # fmt: skip
    assert html.count("<svg") == 4
    assert len(re.findall(r'<svg [^>]*role="img" aria-label="[^"]{20,}"', html)) == 4
    assert "1,500 users, 800 items and 12,345 relevant pairs" in html
    assert 'tandemrank table <span class="whole">--seed</span> 1' in html


def test_one_setting_has_nothing_along_an_axis() -> None:
    html = page(one_setting)
    check(html)
    assert "More clicks" not in html
    assert "More candidates" not in html
    assert "Full information 0.800" in html


def test_values_intervals_and_the_highest_are_in_the_table() -> None:
    html = page(example)
    # joint at N = 100,000: .30 + .05 * 2 + .03 = .43, with .005 on both sides
    assert html.count('class="left best">0.430 [0.425, 0.435]</td>') == 2  # of two K2
    assert 'best">0.410' not in html


@pytest.mark.usefixtures("no_figures")
def test_it_is_said_whether_anything_was_trained_and_what_the_seconds_are() -> None:
    trained = html_of(example((50,), (10_000,)))
    assert "a two-stage system was trained" in trained
    assert "the first on a machine also compiles its kernels" in trained
    table = example((50,), (10_000,))
    table |= {"rows": [{**table["rows"][0], "method": "beliefs"}], "differences": [], "curves": []}
    made = html_of(table)
    assert "a two-stage system was made" in made
    assert "It was made in one way" in made
    assert "has the highest NDCG" not in made


@pytest.mark.usefixtures("no_figures")
def test_the_paper_stands_beside_ours() -> None:
    table = example((500,), (100_000, 316_228))
    table["paper"] = [{"method": "joint", "K2": 500, "N": N, "ndcg": v} for N, v in ((100_000, 0.42), (320_000, 0.47))]
    html = html_of(table)
    assert "paper 0.420" in html
    assert "paper 0.470" in html
    assert "0.430 [0.425, 0.435], paper 0.420 |" in markdown(table)
    assert "what the paper prints" in html
    assert "what the paper prints" not in html_of(example())


@pytest.mark.parametrize(
    ("low", "high", "mean", "words"),
    [
        (0.01, 0.03, 0.02, "Joint is ahead of Independent by 0.0200 NDCG [+0.0100, +0.0300]."),
        (-0.03, -0.01, -0.02, "Joint is behind Independent by 0.0200 NDCG [−0.0300, −0.0100]."),
        (-0.01, 0.02, 0.005,
         "Joint and Independent cannot be told apart: the difference +0.0050 [−0.0100, +0.0200] includes 0."),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("no_figures")
def test_headline_is_honest(low: float, high: float, mean: float, words: str) -> None:
    table = one_setting()
    table["differences"][0] |= {"low": low, "high": high, "mean": mean}
    assert headline(typed(table))[0] == words
    assert words in html_of(table)


def test_headline_of_many_settings_counts_them() -> None:
    table = example()
    own = [d for d in table["differences"] if d["against"] == "independent"]
    own[0] |= {"mean": 0.001, "low": -0.01, "high": 0.01}
    own[1] |= {"mean": -0.02, "low": -0.03, "high": -0.01}
    assert headline(typed(table))[0] == (
        "Joint is ahead of Independent in 2 of 4 settings, behind in 1, not to be told apart in 1; "
        "the differences go from −0.0200 to +0.0200."
    )


def test_intervals_over_users_are_said_to_be_so() -> None:
    table = one_setting()
    assert interval_note(typed(table)) in page(one_setting)
    assert "over runs" in interval_note(typed(table))
    for entry in table["differences"]:
        entry["kind"] = "users"
    assert "over the users of one run" in interval_note(typed(table))
    assert "over runs" not in interval_note(typed(table))


def test_switches_with_explanations() -> None:
    found = switch_sheet({"propensity": "exact", "threshold": None}, {"propensity": "how propensities are known"})
    assert found.rows == [("`propensity`", "exact", "how propensities are known"), ("`threshold`", "–", "")]


EVIL = "`<img src=x onerror=alert(1)>`&\"'$x^{$|"


def test_everything_from_outside_is_escaped() -> None:
    text = json.dumps(one_setting()).replace('"joint"', json.dumps(EVIL)).replace('"production"', json.dumps(EVIL))
    table = json.loads(text)
    table |= {"title": EVIL, "command": EVIL, "version": EVIL, "switches": {EVIL: EVIL}}
    table["world"] |= {"data": EVIL, "machine": EVIL}
    for curve in table["curves"]:
        for epoch in curve["history"]:
            epoch["phase"] = EVIL
    html = html_of(table)
    assert "img" not in check(html).tags
    assert "<img" not in markdown(table).split("## To reproduce")[0]
    _printed(table)


def _printed(table: dict[str, Any], width: int = 80) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(width=width, file=out).print(experiment.text(typed(table)))
    return out.getvalue()


@pytest.mark.usefixtures("no_figures")
def test_one_run_without_intervals() -> None:
    table = example(runs=1)
    for row in table["rows"]:
        row["ndcg"] = {"mean": row["ndcg"]["mean"]}
    html = html_of(table)
    check(html)
    assert "once each" in html
    assert "0.430</td>" in html


def test_a_cell_that_is_not_there() -> None:
    table = example(runs=1)
    table["rows"] = [r for r in table["rows"] if not (r["method"] == "joint" and r["N"] == 10_000 and r["K2"] == 50)]
    check(html_of(table))
    assert re.search(r"\| 50 \| 10k \| 0.350 .*\| – \|\n", markdown(table))
    _printed(table)


def test_learning_curves_of_some_epochs() -> None:
    table = one_setting()
    for curve in table["curves"]:
        for number, epoch in enumerate(curve["history"]):
            epoch["watched"] = epoch["watched"] if number % 2 else {}
    found = figures.learning_curves(experiment._curves(typed(table)), "NDCG")
    assert len(found.axes) == len(table["rows"])
    assert all(math.isfinite(y) for axis in found.axes for y in axis.lines[0].get_ydata())
    check(html_of(table))


def test_the_same_every_time() -> None:
    table = one_setting()
    assert html_of(table) == page(one_setting)
    assert table == one_setting()


def test_figures_follow_the_theme_and_keep_words_as_words() -> None:
    svg = style.svg(differences(example()), 'a "b" <c>')
    assert "var(--method-1, #c65300)" in svg
    assert "Joint − Independent, K2 = 50, N = 10k</text>" in svg
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg
    assert "<metadata" not in svg
    assert set(DARK) == set(style.THEME)


def test_hollow_where_zero_is_inside() -> None:
    table = one_setting()
    hollow = f"fill: var(--page, {style.THEME['page']})"
    assert hollow not in style.svg(differences(table))
    table["differences"][0]["low"] = -0.01
    assert hollow in style.svg(differences(table))


def test_markdown_has_differences_references_and_switches() -> None:
    text = markdown(one_setting())
    assert "| Joint − Independent | 100 | 30k | +0.0200 | [+0.0100, +0.0300] | 3 |" in text
    assert "| Full information | 0.800 [0.790, 0.810] |" in text
    assert "| `minibatch` | 256 | queries per minibatch" in text
    assert text.rstrip().endswith("```\ntandemrank table --seed 1\n```")


@pytest.mark.parametrize("start", [example, one_setting])
def test_terminal_fits_eighty_columns(start: Any) -> None:
    text = _printed(start())
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"Full information\s+0\.800", text)
    assert "[0.399, 0.409]" in text if start is one_setting else "0.430 [0.425, 0.435]" in text
    assert "…" not in text


@pytest.mark.usefixtures("no_figures")
def test_write_in_one_piece_or_not_at_all(tmp_path: Path) -> None:
    report = experiment.report(typed(one_setting()))
    path = report.write(tmp_path / "new folder" / "report.html")
    assert path.read_text(encoding="utf-8") == html_of(one_setting())
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write .*report\.html"):
        report.write(tmp_path / "file" / "report.html")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "new folder", "report.html"]


def test_importing_is_cheap_and_drawing_leaves_settings_alone() -> None:
    code = "import sys, tandemrank.reports.experiment; assert not {'matplotlib', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    import matplotlib

    with matplotlib.rc_context({"axes.grid": False, "font.size": 33, "text.usetex": True}):
        svg = style.svg(differences(one_setting()))
        assert matplotlib.rcParams["font.size"] == 33
    assert svg == style.svg(differences(one_setting()))


def test_a_report_of_many_runs_is_not_heavy() -> None:
    """A page of some hundred trainings is still small enough to send."""
    assert len(html_of(example((50, 100, 200), (10_000, 30_000, 100_000), runs=10))) < 1_500_000


# The table as JSON


def test_a_table_is_the_same_after_writing_and_reading() -> None:
    table = typed(example())
    assert as_json(from_json(Table, as_json(table))) == as_json(table)
    assert set(json.loads(as_json(table))) == set(example())


@pytest.mark.parametrize("name", ["ml-1m", "paper", "posterior"])
def test_published_tables_say_what_is_printed_beside_them(name: str) -> None:
    """Made by earlier versions: up to the last digit, since a table is published to six digits."""
    folder = ROOT / "docs" / "results" / name
    printed = (folder / "table.md").read_text(encoding="utf-8").split("\n## ")[1]
    found = [float(number) for number in re.findall(r"(\d\.\d+) \[", printed)]
    for row in json.loads((folder / "table.json").read_text(encoding="utf-8"))["rows"]:
        assert any(number == pytest.approx(row["ndcg_mean"], abs=1.001e-3) for number in found)
