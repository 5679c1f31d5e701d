"""What the documents say is true: examples run, commands exist, equations, switches, modules and links are there."""

import ast
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.main import get_command
from typer.testing import CliRunner

import tandemrank
from tandemrank._base.config import resolve, switch_paths
from tandemrank.cli.main import app
from tandemrank.experiments.config import PRESETS, ExperimentConfig, GridConfig
from tandemrank.experiments.stage_models import Stages
from tandemrank.training.config import LearningConfig, TrainingConfig
from test_architecture import ROOMS

ROOT = Path(__file__).resolve().parents[1]
PAPER = ROOT.parent / "shared" / "paper" / "two-stage-cltr.tex"
# Without the tables that commands wrote (docs/results/*/table.md).
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/*/*.md")])
UsageError = typer.BadParameter.__bases__[0]  # whatever the command line does not take
CONFIGS = [ExperimentConfig, LearningConfig, Stages, TrainingConfig, GridConfig]


def identity(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def rows(text: str) -> list[list[str]]:
    """The cells of all table rows but the headings."""
    lines = re.findall(r"^\|(.*)\|$", re.sub(r"^\|.*\|\n\| ---.*\|$", "", text, flags=re.MULTILINE), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def code(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def section(page: str, title: str) -> str:
    """From a heading that begins with the title to the next."""
    found = re.search(rf"^## {re.escape(title)}.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title}"
    return found[0]


# The README


def test_the_python_example_runs_as_printed_and_prints_what_it_says(tmp_path: Path) -> None:
    readme = read("README.md")
    [example] = blocks(readme, "python")
    [printed] = [block for block in blocks(readme, "text") if block.startswith("learned from")]
    # One thread: on a machine with other work, two that wait for each other take many times as long.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", example], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert out.returncode == 0, out.stderr
    number = r"[\d.,]*\d"
    (*wanted, _), (*found, items) = (text.splitlines() for text in (printed, out.stdout))
    assert [re.sub(number, "#", line) for line in found] == [re.sub(number, "#", line) for line in wanted]
    assert len(re.findall(number, items)) == 10
    # Another CPU rounds otherwise.
    numbers = ([float(x.replace(",", "")) for x in re.findall(number, "\n".join(lines))] for lines in (found, wanted))
    assert next(numbers) == pytest.approx(next(numbers), rel=0.1)
    assert len([line for line in example.splitlines() if line and not line.startswith("#")]) <= 20
    assert not list(tmp_path.iterdir())


def test_the_example_of_propensities_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """On a smaller world than the page's, which is not at hand everywhere."""
    [example] = blocks(read("docs/explanation/experiment.md"), "python")
    small = example.replace('data="ml-1m"', "queries=60, items=50, rank=5").replace("100_000, 1_000_000", "2_000,")
    assert small.count("60") == small.count("2_000") == 1
    exec(compile(small, "docs/explanation/experiment.md", "exec"), {})
    assert re.findall(r"^2000 (\w+)", capsys.readouterr().out, re.MULTILINE) == ["exact", "frequency"]


def test_the_page_on_importing_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = read("docs/how-to/importing.md")
    command = blocks(page, "sh")[0].split()
    golden = Path(__file__).parent / "logs" / "golden"
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, [str(golden / word) if word.endswith(".jsonl") else word for word in command[1:]])
    assert found.exit_code == 0, found.output
    assert found.stdout == blocks(page, "text")[0]


def test_the_examples_of_the_page_on_bounds_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = read("docs/explanation/bounds.md")
    examples, printed = blocks(page, "python"), blocks(page, "text")
    assert len(examples) == len(printed) == 2
    for example, text in zip(examples, printed, strict=True):
        exec(compile(example, "docs/explanation/bounds.md", "exec"), {})
        assert capsys.readouterr().out == text


def commands() -> dict[str, Any]:
    """Every command of the command line by its full name."""
    found: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", None)
        found |= {f"{name} {x}": y for x, y in inner.items()} if inner else {name: command}
    return found


def test_the_readme_names_every_command_and_no_other_and_each_has_help() -> None:
    listed = [name for row in rows(section(read("README.md"), "Commands")) for name in code(row[1])]
    assert sorted(listed) == sorted(f"tandemrank {name}" for name in commands())
    for name in listed:
        found = CliRunner().invoke(app, [*name.split()[1:], "--help"])
        assert found.exit_code == 0, name


def command_lines(page: str) -> list[str]:
    """The lines that call tandemrank: in blocks of shell commands, and in blocks that are only indented."""
    shell = [line for block in blocks(page, "sh") for line in block.replace("\\\n", " ").split("\n")]
    indented = re.findall(r"^    (tandemrank .*)$", page, re.MULTILINE)
    return [line for line in (*shell, *indented) if line.startswith("tandemrank ")]


def parsed(line: str) -> tuple[str, Any]:
    """The command of a line and its values, as the command line itself parses them; nothing is run."""
    words = shlex.split(re.split(r" [|>&#]", line)[0])[1:]
    name = words[0]
    assert name in commands(), f"{line}: there is no such command"
    return name, commands()[name].make_context(name, words[1:]).params


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_every_command_line_is_one_that_the_command_line_takes(page: Path) -> None:
    for line in command_lines(page.read_text(encoding="utf-8")):
        try:
            name, values = parsed(line)
        except UsageError as error:
            raise AssertionError(f"{identity(page)}: {line}: {error.format_message()}") from error
        known = switch_paths(LearningConfig if name == "learn" else ExperimentConfig)
        for switch in values.get("switches") or ():
            assert switch.partition("=")[0] in known, f"{identity(page)}: {line}: there is no switch {switch}"


def test_there_are_command_lines() -> None:
    lines = {identity(page): command_lines(page.read_text(encoding="utf-8")) for page in PAGES}
    assert sum(map(len, lines.values())) >= 20
    assert lines["docs/tutorial/own-logs.md"]
    with pytest.raises(UsageError):
        parsed("tandemrank learn --logs a --nothing")
    with pytest.raises(UsageError):
        parsed("tandemrank learn --logs a --epochs many")
    with pytest.raises(AssertionError, match="no such command"):
        parsed("tandemrank train --logs a")


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=identity)
def test_commands_and_options_in_sentences_exist(page: Path) -> None:
    """`tandemrank learn --resume`, `learn --context`, `--fix`: also where they are only mentioned."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    options = {name: _options(command) for name, command in commands().items()}
    scripts = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    anywhere = {option for known in options.values() for option in known} | _options(get_command(app))
    anywhere |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', scripts))
    for said in code(text):
        words = said.split()
        if words[0] == "tandemrank" and len(words) > 1 and words[1].isalpha():
            name = words[1]
            assert name in options, f"{identity(page)}: {said}"
        else:
            name = words[0] if words[0] in options else None
        if words[0] in ("python", "pip", "kill", "make") or "benchmarks/" in said:
            continue
        asked = {word.rstrip(",;:") for word in words if re.match(r"--[a-z]", word)}
        assert {word.partition("=")[0] for word in asked} <= (options[name] if name else anywhere), (
            f"{identity(page)}: {said}"
        )


def _options(command: Any) -> set[str]:
    return {o for parameter in command.params for o in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


STALE = {
    r"stage `candidate`": "the stages are called generator and ranker",
    r"\btandemrank (train|load)\b": "there is no such command",
    r"\bcame\b|cannot be had|(?:that|what) are none": "say it plainly: got, cannot be combined, must be finite",
    r"\b(?:refine|initial) = |schedule = (?:once|mean)|--safe (?:exposure|prpo|smoothing)": "there is no such switch",
    r"\b(once|twice|times|clicks|items|rows|lists|ratings|samples|impressions|milliseconds|ms|seconds) an? "
    r"(query|user|impression|list|row|sample|thread|rank|item|day|second|epoch|run|cell|phase|minibatch)\b": "per, not a",
}


@pytest.mark.parametrize("words", STALE)
def test_no_page_and_no_help_has_old_names_or_turns_of_phrase(words: str) -> None:
    texts = {identity(page): page.read_text(encoding="utf-8") for page in PAGES}
    for name, command in commands().items():
        texts[f"{name} --help"] = " ".join(
            [command.help or "", *(getattr(p, "help", "") or "" for p in command.params)]
        )
    for config in CONFIGS:
        texts[config.__name__] = " ".join(field.description or "" for field in config.model_fields.values())
    for name, text in (texts | errors()).items():
        found = re.search(words, text)
        assert found is None, f"{name}: {found[0] if found else ''}: {STALE[words]}"


@cache
def errors() -> dict[str, str]:
    """The messages of the errors that each module raises."""
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        raised = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
        parts = [x.value for node in raised for x in ast.walk(node) if isinstance(x, ast.Constant)]
        found[path.name] = " ".join(part for part in parts if isinstance(part, str))
    return found


MOST_WORDS, MOST_PER_SENTENCE = 25_000, 18


def test_the_pages_are_short_and_so_are_their_sentences() -> None:
    """Words have a letter; numbers, bars and marks are none. Sentences without code, tables and headings."""
    texts = {identity(page): page.read_text(encoding="utf-8") for page in PAGES}
    words = sum(len([word for word in text.split() if re.search("[A-Za-z]", word)]) for text in texts.values())
    assert words <= MOST_WORDS
    for name, text in texts.items():
        plain = re.sub(r"^```.*?^```$|^\|.*?$|^#.*?$|^    .*?$|<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL)
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
        parts = [" ".join(part.split()) for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", plain)]
        sentences = [len(one.split()) for part in parts for one in re.split(r"(?<=[.!?:])\s+", part) if one]
        assert median(sentences) < MOST_PER_SENTENCE, name


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"^make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {"demo", "test"} <= named <= targets


# Equations


def equations() -> list[list[str]]:
    found = rows(read("docs/reference/equations.md"))
    assert len(found) >= 15
    return found


def test_every_label_of_the_paper_has_a_row() -> None:
    if not PAPER.exists():
        pytest.skip(f"needs the source of the paper: there is no {PAPER}")
    labels = set(re.findall(r"\\label\{([^}]+)\}", PAPER.read_text(encoding="utf-8")))
    listed = {code(label)[0] for label, *_ in equations() if not label.startswith("(no label)")}
    assert listed == labels


@pytest.mark.parametrize("row", equations(), ids=lambda row: row[0])
def test_the_functions_and_tests_of_an_equation_exist(row: list[str]) -> None:
    _, functions, tests = row
    assert code(functions)
    assert code(tests)
    for name in code(functions):
        value: object = tandemrank
        for part in name.split("."):
            value = getattr(value, part)
    for name in code(tests):
        file, test = name.split("::")
        tree = ast.parse(read(f"tests/{file}"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


# Switches


def preset(name: str) -> dict[str, object]:
    """Every switch of a preset by its name."""
    experiment = resolve(ExperimentConfig, preset=PRESETS[name])
    return dict(experiment) | dict(experiment.learning) | dict(experiment.learning.training)


def test_what_the_presets_choose_is_what_the_page_says() -> None:
    table = rows(section(read("docs/explanation/experiment.md"), "What the paper leaves open"))
    assert len(table) >= 9
    for names, *readings, why in table:
        assert why
        for reading, cell in zip(("tandem", "paper"), readings, strict=True):
            for name, value in zip(code(names), code(cell), strict=True):
                known = preset(reading)[name]
                assert value == known if isinstance(known, str) else float(value) == known, (name, reading)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_every_switch_is_explained(config: type[BaseModel]) -> None:
    """In its class: the page of switches is made of that."""
    for name, field in config.model_fields.items():
        assert field.description or isinstance(field.default, BaseModel), name


# Modules and links


def test_the_design_lists_the_rooms_in_their_order() -> None:
    listed = [code(row[0])[0] for row in rows(section(read("docs/explanation/design.md"), "The rooms"))]
    assert listed == ROOMS


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=identity)
def test_modules_and_files_that_a_page_names_exist(page: Path) -> None:
    """`offpolicy.calibration`, `training/team.py`, `python benchmarks/truth.py --logs 100`."""
    text = page.read_text(encoding="utf-8")
    for said in (*code(text), *re.findall(r"^ *(python .*)$", text, re.MULTILINE)):
        for word in said.split():
            if re.fullmatch(rf"({'|'.join(ROOMS)})(\.\w+)+", word) and not word.endswith(".py"):
                value: object = tandemrank
                for part in word.split("."):
                    value = getattr(value, part, None)
                    assert value is not None, f"{identity(page)}: {said}"
            elif re.fullmatch(r"[\w/]+/\w+\.(py|toml)", word):
                assert any((at / word).exists() for at in (ROOT, ROOT / "src" / "tandemrank")), (
                    f"{identity(page)}: {said}"
                )


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=identity)
def test_no_link_is_dead(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http://", "https://"))]
    for link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{identity(page)}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{identity(page)}: {link}"


def test_the_picture_follows_light_and_dark() -> None:
    picture = read("docs/figures/overview.svg")
    assert "prefers-color-scheme: dark" in picture
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")
