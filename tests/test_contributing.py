"""The recipes of CONTRIBUTING.md, followed to the letter: their code is run where they say it goes."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tandemrank as tr
from tandemrank.errors import DataError
from tandemrank.experiments import datasets, world

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def steps(title: str) -> list[str]:
    """The code of a recipe, one block per step."""
    found = re.search(rf"^## {title}\n.*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"there is no recipe {title!r}"
    return [textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```$", found[0], re.M | re.S)]


def run(code: str, module: Any) -> dict[str, Any]:
    """What the code defines, run with the names of the module that it goes into."""
    names = dict(vars(module))
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    return names


def test_add_a_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "NAMED", dict(datasets.NAMED))
    with pytest.raises(DataError, match="unknown data 'tiny'"):
        datasets.load("tiny")
    run("".join(steps("Add a data set")), datasets)
    task = datasets.load("tiny")
    assert (task.Q, task.D, task.relevance.nnz) == (3, 4, 4)
    config = tr.ExperimentConfig(data="tiny", threshold=4.5)
    assert world.load_task(config).relevance.nnz == 2
    with pytest.raises(DataError, match="expected 'synthetic', 'ml-1m', 'tiny'"):
        datasets.load("tinier")


def test_add_an_estimator() -> None:
    """Its test is `test_a_new_estimator_needs_a_function_and_a_name`; here that the files and names are there."""
    from tandemrank.offpolicy import estimators, evidence

    recipe = re.search(r"^## Add an estimator\n.*?(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert recipe is not None
    for name in ("Estimator", "ESTIMATORS", "LogEvidence"):
        assert f"`{name}`" in recipe[0]
        assert hasattr(evidence, name)
    assert hasattr(estimators, "Estimate")


def test_every_file_that_is_named_is_there() -> None:
    root = Path(__file__).resolve().parents[1]
    named = set(re.findall(r"`((?:tests|src|offpolicy|experiments|policies)/[\w/.]+\.py)`", PAGE))
    assert len(named) >= 9
    for name in named:
        assert (root / name).exists() or (root / "src" / "tandemrank" / name).exists(), name
