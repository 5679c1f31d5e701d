"""One direction: a module imports only from modules before it. And the public names, which change only on purpose."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tandemrank

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tandemrank"

# docs/design.md shows the same list with what each module is.
ORDER = [
    "errors", "files", "vocabulary", "config", "cluster",
    "synthetic", "datasets",
    "plackett_luce_kernel", "plackett_luce", "clicks",
    "feedback", "log_checks", "log_sources", "logs", "examination", "validation",
    "float32_kernel", "balance_kernel", "race_kernel", "race_tensor", "race", "reinforce_kernel", "reinforce", "pl_rank_kernel",
    "scorers", "features", "towers", "starts", "policies", "propensities", "objectives", "diagnostics", "estimation",
    "schedules", "optimiser", "training", "learning", "own_logs", "evaluation",
    "experiments", "grid", "report_text", "figures", "report", "training_report", "workflows", "bench", "bench_logs",
    "terminal", "cli",
]  # fmt: skip

PUBLIC = [
    "ClickModel", "Estimate", "Evaluation", "ExperimentConfig", "Feedback", "GivenScores", "GridConfig", "Impressions",
    "Learned", "LearningConfig", "MatrixFactorisation", "Scorer", "Start", "StartConfig", "TandemRankError", "Task",
    "Trained", "TrainingConfig", "TwoStagePolicy", "TwoTowers", "Vocabulary", "__version__", "clicks", "datasets",
    "errors", "evaluate", "evaluation", "experiments", "features", "feedback", "grid", "learn", "learning", "logs",
    "objectives", "own_logs", "plackett_luce", "policies", "prepare", "race", "reinforce", "report", "scorers", "starts",
    "towers", "train", "training", "validation", "workflows",
]  # fmt: skip


def imported(source: str) -> set[str]:
    """The modules of the package that a source imports, also inside functions; `import tandemrank` alone gives none."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] if node.level == 0 else ["tandemrank.."]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        found |= {part[1] for part in parts if part[0] == "tandemrank" and len(part) > 1 and part[1] != "__version__"}
    return found


def test_the_reader_of_imports_sees_every_kind() -> None:
    source = """
import tandemrank.a
import tandemrank
from tandemrank import b, __version__
from tandemrank.c import x
def f():
    from tandemrank import d
"""
    assert imported(source) == {"a", "b", "c", "d"}
    assert imported("from . import a") == {""}  # no module has that name: relative imports are refused


def test_every_module_has_its_place() -> None:
    there = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}  # the two doors
    assert there == set(ORDER), "add a new module to ORDER, and to the table in docs/design.md"
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("module", ORDER)
def test_a_module_imports_only_from_modules_before_it(module: str) -> None:
    later = imported((PACKAGE / f"{module}.py").read_text(encoding="utf-8")) - set(ORDER[: ORDER.index(module)])
    assert not later, f"{module} comes before {sorted(later)} in ORDER, so it must not import from there"


def test_public_names() -> None:
    assert tandemrank.__all__ == PUBLIC
    assert dir(tandemrank) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(tandemrank, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tandemrank.nothing  # noqa: B018


def test_a_type_checker_sees_the_public_names() -> None:
    """What `__getattr__` finds at run time is imported for type checkers too, from the same module."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: (node.module or "").removeprefix("tandemrank").removeprefix(".")
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {name: tandemrank._HOME.get(name, "") for name in PUBLIC if name != "__version__"}
    assert typed == lazy


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tandemrank.__version__ == project["version"]


def test_importing_the_package_is_instant() -> None:
    """Nothing heavy comes with it: the libraries are imported by the modules that need them."""
    heavy = ("torch", "numba", "polars", "scipy", "pydantic", "matplotlib", "ray", "rich", "typer")
    code = f"import sys, tandemrank; print(*[name for name in {heavy} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""


def test_nothing_is_pickled() -> None:
    for path in PACKAGE.glob("*.py"):
        assert "pickle" not in path.read_text(encoding="utf-8"), path
