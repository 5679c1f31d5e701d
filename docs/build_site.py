"""Builds the documentation: the pages of this folder, the README, and the reference that is generated from the code.

    python docs/build_site.py [FOLDER]          default: site; FOLDER/index.html and FOLDER/llms.txt

Nothing of it is loaded from another server, no fonts and no scripts. A warning of the builder is an error.
"""

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from typer.main import get_command

import tandemrank
from tandemrank._base.config import resolve
from tandemrank.cli.main import app
from tandemrank.experiments.config import PRESETS, ExperimentConfig, GridConfig
from tandemrank.experiments.stage_models import Stages
from tandemrank.logs.checks import OF_IMPRESSION, OF_ITEM
from tandemrank.logs.schema import LISTED, LONG, WIDE
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.training.config import LearningConfig, TrainingConfig

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "tutorial": "Tutorial",
    "how-to": "How to",
    "reference": "Reference",
    "explanation": "Explanation",
    "results": "Results",
}
OF_ROOT = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "LICENSE",
    "CITATION.cff": "CITATION.cff",
}
CONFIGS = {
    ExperimentConfig: "the world",
    LearningConfig: "from the log to the weights",
    Stages: "which model each stage is",
    TrainingConfig: "the loop",
    GridConfig: "the table",
}
LINK = re.compile(r'(\]\(|src="|srcset=")([^)\s"]+)([)"])')


# The pages of the repository


def copied(to: Path) -> None:
    """The pages at their places in the site, with links that lead there."""
    places = {Path(old): Path(new) for old, new in OF_ROOT.items() if (ROOT / old).exists()}
    docs = [path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*") if path.is_file()]
    places |= {path: path.relative_to("docs") for path in docs if path.suffix not in (".py", ".pyc")}
    places |= {Path("docs/results/README.md"): Path("results/index.md")}
    places |= {Path("docs/reference/README.md"): Path("reference/index.md")}
    for old, new in places.items():
        (to / new).parent.mkdir(parents=True, exist_ok=True)
        if old.suffix == ".md":
            text = (ROOT / old).read_text(encoding="utf-8")
            (to / new).write_text(linked(text, old, new, places), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / old, to / new)


def linked(text: str, old: Path, new: Path, places: dict[Path, Path]) -> str:
    """A page's links, from where its targets lie to where they go."""

    def moved(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        path, hash_, anchor = target.partition("#")
        at = Path(os.path.normpath(old.parent / path))
        if not path or re.match(r"[a-z]+:", target) or at not in places:
            return found[0]
        return f"{before}{os.path.relpath(places[at], new.parent)}{hash_}{anchor}{after}"

    return LINK.sub(moved, text)


# The reference


def api() -> str:
    """Every public name with its signature and its docstring."""
    text = [
        "# Python\n\nThe public names, as `import tandemrank as tr` has them. Errors are those of `tandemrank.errors`.\n"
    ]
    for name in tandemrank.__all__:
        value = getattr(tandemrank, name)
        if not inspect.isclass(value) and not inspect.isfunction(value):
            continue
        text.append(f"\n## `{name}`\n")
        text.append(block(f"{name}{signature(value)}", "python"))
        text.append(block(inspect.getdoc(value) or "", "text"))
        if inspect.isclass(value) and not issubclass(value, BaseModel):
            for method, function in methods(value):
                text.append(f"\n### `{name}.{method}`\n")
                if not isinstance(function, property):
                    text.append(block(f"{method}{signature(function)}", "python"))
                text.append(block(inspect.getdoc(function) or "", "text"))
    return "\n".join(text)


def signature(value: Any) -> str:
    """A call, one parameter per line where it would be long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    line = str(found).replace("tandemrank.", "")
    line = re.sub(r"<class '([\w.]+)'>|\b(?:\w+\.)+(?=[A-Z])", lambda m: (m[1] or "").split(".")[-1], line)
    line = re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "...", line)
    if len(line) <= 90:
        return line
    return re.sub(r"\n\s*\n", "\n", "(\n    " + ",\n    ".join(parts(line)) + ",\n)" + line.rpartition(")")[2])


def parts(line: str) -> list[str]:
    """The parameters of a signature."""
    found, depth, inside = [""], 0, line[1 : line.rindex(")")]
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that our classes define."""
    for name in dir(kind):
        for owner in kind.__mro__:
            if name in vars(owner):
                value = vars(owner)[name]
                value = value if isinstance(value, property) else inspect.unwrap(getattr(kind, name))
                ours = owner.__module__.startswith("tandemrank") and not name.startswith("_")
                if ours and (callable(value) or isinstance(value, property)) and inspect.getdoc(value):
                    yield name, value
                break


def commands() -> str:
    """Every command with its arguments and options, in their groups."""
    text = [
        "# Commands\n\nExit codes: 0 fine, 1 the job failed, 2 bad usage or input; of `decide` also 3, canary, and 4, do not.\n"
    ]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        text.append(f"\n## `tandemrank {name}`\n\n{paragraphs(command.help or '')}\n")
        groups: dict[str, list[list[str]]] = {}
        for parameter in command.params:
            shown = (
                parameter.name.upper()
                if parameter.param_type_name == "argument"
                else ", ".join([*parameter.opts, *parameter.secondary_opts])
            )
            default = "required" if parameter.required else default_of(parameter)
            group = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(group, []).append([f"`{shown}`", getattr(parameter, "help", None) or "", default])
        for group, rows in groups.items():
            text.append(table([group, "", "default"], rows))
    return "\n".join(text)


def default_of(parameter: Any) -> str:
    default = parameter.default
    return "" if default is None or default is False or default == () or callable(default) else f"`{default}`"


def switches() -> str:
    """Every switch with its values and what the two presets have."""
    text = [
        "# Switches\n\n`--set epochs=10`, or `epochs = 10` in a TOML file by `--config`, or a keyword of the class in Python. "
        "A dash means: not set. Why the presets differ: [the experiment](../explanation/experiment.md).\n"
    ]
    for config, what in CONFIGS.items():
        rows = []
        for name, field in config.model_fields.items():
            if isinstance(field.default, BaseModel):
                continue
            readings = [in_words(getattr(preset(config, reading), name)) for reading in ("tandem", "paper")]
            rows.append([f"`{name}`", values_of(field), *readings, field.description or ""])
        text.append(f"\n## `{config.__name__}`: {what}\n")
        text.append(table(["switch", "values", "tandem", "paper", "what it is"], rows))
    return "\n".join(text)


def preset(config: type[BaseModel], name: str) -> BaseModel:
    experiment = resolve(ExperimentConfig, preset=PRESETS[name])
    learning = experiment.learning
    everything = (experiment, learning, Stages(), learning.training, GridConfig(experiment=experiment))
    return next(part for part in everything if isinstance(part, config))


def values_of(field: Any) -> str:
    """The choices of a switch, or its kind."""
    inner = [x for part in (field.annotation, *get_args(field.annotation)) for x in get_args(part)]
    choices = list(dict.fromkeys(x for x in inner if isinstance(x, str)))
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    kinds = [field.annotation, *get_args(field.annotation)]
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return next((names[kind] for kind in kinds if kind in names), "a list")


def in_words(value: object) -> str:
    value = ",".join(map(str, value)) if isinstance(value, tuple) else value
    return "-" if value is None or value == "" else f"`{value}`"


def log_format() -> str:
    """The columns of a click log, by the lists and the rules that `validate` has."""
    from tandemrank.logs import schema

    text = ["# The click log\n", paragraphs((inspect.getdoc(schema) or "").partition("\n\n")[2])]
    rules = {**OF_IMPRESSION, **OF_ITEM}
    for form, columns, needed in (("wide", WIDE, 3), ("long", LONG, 5)):
        rows = []
        for number, column in enumerate(columns):
            own = next((ours for ours, theirs in LISTED.items() if column == theirs), column)
            words = rules[own][0] if own in rules else ""
            said = f"for each shown item: {words}" if own != column and words else words
            rows.append([f"`{column}`", "yes" if number < needed else "", said])
        text += [
            f"\n## One row per {'impression' if form == 'wide' else 'shown item'}\n",
            table(["column", "needed", "values"], rows),
        ]
    return "\n".join(text)


def verdicts() -> str:
    from tandemrank.cli.offpolicy import COLOURS

    text = ["# Verdicts\n\nOf a value or a difference (`estimate`, `compare`, `learn`), from good to bad:\n"]
    text.append(table(["verdict", "what it says"], [[verdict.value, verdict.meaning] for verdict in Verdict]))
    text.append("\nOf a change (`decide`), with the exit code:\n")
    text.append(
        table(["call", "exit code"], [[call, str(code)] for call, code in zip(COLOURS, (0, 3, 4), strict=True)])
    )
    return "\n".join(text)


# Words


def block(text: str, language: str) -> str:
    return f"\n```{language}\n{text.strip()}\n```\n"


def paragraphs(text: str) -> str:
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.replace("\b", "")).strip()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [
        " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        for row in (head, ["---"] * len(head), *rows)
    ]
    return "\n" + "\n".join(f"| {line} |" for line in lines) + "\n"


def title_of(page: Path) -> str:
    return re.search(r"^# (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)[1]  # type: ignore[index]


def first_sentence(page: Path) -> str:
    """What a page is about: its first sentence."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^[#!<|].*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    plain = " ".join(next((part for part in text.split("\n\n") if part.strip()), "").split())
    return re.split(r"(?<=[.!?:])\s", plain)[0].strip("* ")


# The site


def prepare(to: Path) -> None:
    """Writes all pages as Markdown, and llms.txt."""
    copied(to)
    generated = {
        "python": api(),
        "commands": commands(),
        "switches": switches(),
        "log": log_format(),
        "verdicts": verdicts(),
    }
    for name, text in generated.items():
        (to / "reference" / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    lines = ["# TandemRank", "", f"> {tandemrank.__doc__.splitlines()[0].partition(': ')[2]}"]  # type: ignore[union-attr]
    for kind, pages in contents(to).items():
        lines += ["", f"## {kind}", ""]
        lines += [f"- [{title_of(to / page)}]({page}): {first_sentence(to / page)}" for page in pages]
    (to / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def contents(folder: Path) -> dict[str, list[str]]:
    """The pages of each kind; the reference begins with what is generated."""
    return {
        title: sorted(
            (str(path.relative_to(folder)) for path in (folder / kind).glob("*.md")),
            key=lambda page: (not page.endswith("index.md"), page),
        )
        for kind, title in KINDS.items()
    }


def build(to: Path) -> None:
    """Builds the site; a warning is an error."""
    with tempfile.TemporaryDirectory() as at:
        pages, site = Path(at) / "docs", Path(at) / "site"
        pages.mkdir()
        prepare(pages)
        nav: list[object] = [{"TandemRank": "index.md"}]
        nav += [
            {title: [{title_of(pages / page): page} for page in of_kind]} for title, of_kind in contents(pages).items()
        ]
        nav += [{"Contributing": "contributing.md"}, {"Changes": "changelog.md"}]
        settings = {
            "site_name": "TandemRank",
            "docs_dir": "docs",
            "site_dir": "site",
            "use_directory_urls": False,
            "nav": nav,
            "theme": {"name": "material", "font": False, "palette": PALETTE},
            "markdown_extensions": ["tables", "toc", "attr_list", "pymdownx.highlight", "pymdownx.superfences"],
        }
        config = Path(at) / "mkdocs.yml"  # JSON is YAML
        config.write_text(json.dumps(settings), encoding="utf-8")
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=at)
        if done.returncode:
            raise SystemExit(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr))
        shutil.copyfile(pages / "llms.txt", site / "llms.txt")
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(site, to)


PALETTE = [
    {"media": "(prefers-color-scheme: light)", "scheme": "default"},
    {"media": "(prefers-color-scheme: dark)", "scheme": "slate"},
]

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "site")
    build(parser.parse_args().folder)
