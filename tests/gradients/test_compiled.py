"""Compiled kernels are kept on disk, and none outlives a change of any of their sources."""

import ast
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba.core import event

from tandemrank.gradients import _compiled

# `arrivals` is compiled with helpers of another file, `_float32_kernel`.
RUN = """
import numpy as np
from tandemrank.gradients import _compiled, _race_draw_kernel
log_T = np.empty(3, np.float32)
_race_draw_kernel.arrivals(np.zeros(3, np.float32), np.uint64(7), log_T)
print(_compiled.cache_folder(), sum(_race_draw_kernel.arrivals.stats.cache_hits.values()), *log_T.tolist())
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """The package with files of its own."""
    shutil.copytree(_compiled.PACKAGE, tmp_path / "tandemrank", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "tandemrank"


def run(package: Path, **environment: str) -> tuple[str, int, list[float]]:
    """Where the kernels are kept, whether `arrivals` was there, and what it gave."""
    there = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"} | environment
    there |= {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    out = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=True, env=there)
    folder, hits, *numbers = out.stdout.split()
    return folder, int(hits), [float(x) for x in numbers]


def test_a_changed_helper_is_compiled_anew_in_every_kernel_that_uses_it(package) -> None:
    folder, hits, before = run(package)
    assert Path(folder).parent == package / "gradients" / "__pycache__"
    assert hits == 0
    helper = package / "gradients" / "_float32_kernel.py"
    text = helper.read_text()
    helper.write_text(text.replace("return min(v, ", "return f32(0.5) * min(v, "))
    other, hits, after = run(package)
    assert other != folder
    assert hits == 0
    assert all(a < b for a, b in zip(after, before, strict=True))
    helper.write_text(text)
    assert run(package) == (folder, 1, before)


def places(monkeypatch, asked: str, beside: Path, cache: Path) -> Path | None:
    monkeypatch.setattr(_compiled._config, "CACHE_DIR", asked)
    monkeypatch.setattr(_compiled, "__file__", str(beside / "_compiled.py"))
    monkeypatch.setattr(_compiled, "sources_digest", lambda: "d")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return _compiled.cache_folder.__wrapped__()


def test_kernels_are_kept_where_it_is_asked_or_beside_the_sources_or_in_the_users_cache(tmp_path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    closed.write_text("a file, so that no folder can be made in it: as good as read-only, for root too")
    a, b = tmp_path / "a", tmp_path / "b"
    assert places(monkeypatch, str(tmp_path), a, b) == tmp_path / "kernels-d"
    assert places(monkeypatch, "", a, b) == a / "__pycache__" / "kernels-d"
    assert places(monkeypatch, str(closed), closed, b) == b / "tandemrank" / "kernels-d"
    assert places(monkeypatch, "", closed, closed) is None


def test_where_nothing_can_be_kept_kernels_work_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(_compiled, "cache_folder", lambda: None)
    add = _compiled.kernel()(lambda a, b: a + b)
    assert add(1, 2) == 3
    assert not add.stats.cache_path


def test_every_module_with_compiled_code_is_in_the_digest() -> None:
    """What is compiled is in files `*_kernel.py`, and what those import is one too, or is in the digest by name."""
    others = {"_base.random", "gradients._compiled"}
    for path in _compiled.PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        ours = {m.removeprefix("tandemrank.") for m in modules if m.startswith("tandemrank.")}
        if path.stem.endswith("_kernel"):
            assert {m for m in ours if not m.endswith("_kernel")} <= others, path
        else:
            names = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert not names & {"njit", "jit", "kernel", "prange"}, path


def test_only_compiling_is_announced_and_only_once(monkeypatch, capsys) -> None:
    monkeypatch.setattr(_compiled, "PATIENCE", 0.0)
    monkeypatch.setattr(_compiled, "_said", type(_compiled._said)())
    with _compiled.announcing():
        time.sleep(0.05)  # work, or loading what is on disk
    assert capsys.readouterr().err == ""
    for expected in (_compiled.NOTE + "\n", ""):
        with _compiled.announcing():
            for _ in range(2):
                with event.trigger_event("numba:compile"):
                    time.sleep(0.05)
        assert capsys.readouterr().err == expected


def test_what_compiles_fast_is_not_announced(monkeypatch, capsys) -> None:
    monkeypatch.setattr(_compiled, "_said", type(_compiled._said)())
    with _compiled.announcing(), event.trigger_event("numba:compile"):
        pass
    assert capsys.readouterr().err == ""
