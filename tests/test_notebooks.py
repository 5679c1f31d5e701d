"""The notebooks: of format 4, without outputs, and every cell runs; what a cell ends with can be shown."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
PARTS = {"markdown": {"cell_type", "id", "metadata", "source"}}
PARTS["code"] = PARTS["markdown"] | {"execution_count", "outputs"}


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["own-log", "own-reranker", "paper"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_of_format_4_and_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for cell in notebook["cells"]:
        assert set(cell) == PARTS[cell["cell_type"]]
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            shown += _run("".join(cell["source"]), names)
    assert shown >= 2


def _run(code: str, names: dict[str, Any]) -> bool:
    """Runs a cell; whether what it ends with is shown as more than text."""
    *first, last = ast.parse(code).body
    ends = isinstance(last, ast.Expr)
    exec(compile(ast.Module(first if ends else [*first, last], []), "a cell", "exec"), names)
    if not isinstance(last, ast.Expr):
        return False
    value = eval(compile(ast.Expression(last.value), "a cell", "eval"), names)
    made = [getattr(value, name)() for name in ("_repr_html_", "_repr_svg_") if hasattr(value, name)]
    assert isinstance(value, Path) or any(made), f"{code}: {type(value).__name__} is shown as text"
    return any(made)
