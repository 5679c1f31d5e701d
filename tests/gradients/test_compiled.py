"""Compiled kernels are kept on disk, and none outlives a change of any of their sources."""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from numba.core import event

from tandemrank.gradients._kernels import compiled

# `arrivals` is compiled with helpers of another file, `float32`.
RUN = """
import numpy as np
from tandemrank.gradients._kernels import compiled, draws
log_T = np.empty(3, np.float32)
draws.arrivals(np.zeros(3, np.float32), np.uint64(7), log_T)
print(compiled.cache_folder(), sum(draws.arrivals.stats.cache_hits.values()), *log_T.tolist())
"""


@pytest.fixture
def package(tmp_path) -> Path:
    """The package with files of its own."""
    shutil.copytree(compiled.PACKAGE, tmp_path / "tandemrank", ignore=shutil.ignore_patterns("__pycache__"))
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
    assert Path(folder).parent == package / "gradients" / "_kernels" / "__pycache__"
    assert hits == 0
    helper = package / "gradients" / "_kernels" / "float32.py"
    text = helper.read_text()
    helper.write_text(text.replace("return min(v, ", "return f32(0.5) * min(v, "))
    other, hits, after = run(package)
    assert other != folder
    assert hits == 0
    assert all(a < b for a, b in zip(after, before, strict=True))
    helper.write_text(text)
    assert run(package) == (folder, 1, before)


def places(monkeypatch, asked: str, beside: Path, cache: Path) -> Path | None:
    monkeypatch.setattr(compiled._config, "CACHE_DIR", asked)
    monkeypatch.setattr(compiled, "__file__", str(beside / "compiled.py"))
    monkeypatch.setattr(compiled, "sources_digest", lambda: "d")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return compiled.cache_folder.__wrapped__()


def test_kernels_are_kept_where_it_is_asked_or_beside_the_sources_or_in_the_users_cache(tmp_path, monkeypatch) -> None:
    closed = tmp_path / "closed"
    closed.write_text("a file, so that no folder can be made in it: as good as read-only, for root too")
    a, b = tmp_path / "a", tmp_path / "b"
    assert places(monkeypatch, str(tmp_path), a, b) == tmp_path / "kernels-d"
    assert places(monkeypatch, "", a, b) == a / "__pycache__" / "kernels-d"
    assert places(monkeypatch, str(closed), closed, b) == b / "tandemrank" / "kernels-d"
    assert places(monkeypatch, "", closed, closed) is None


def test_kernels_that_may_only_be_read_are_copied_to_where_they_may_be_written(tmp_path, monkeypatch) -> None:
    beside, cache = tmp_path / "beside", tmp_path / "cache"
    kept = beside / "__pycache__" / "kernels-d" / "_kernels_1"
    kept.mkdir(parents=True)
    (kept / "draws.nbi").write_text("compiled")
    writable = tempfile.TemporaryFile

    def unless_beside(dir: Path):  # root may write everywhere
        if beside in dir.parents:
            raise PermissionError(dir)
        return writable(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", unless_beside)
    found = places(monkeypatch, "", beside, cache)
    assert found == cache / "tandemrank" / "kernels-d"
    assert (found / "_kernels_1" / "draws.nbi").read_text() == "compiled"
    assert [path.name for path in found.parent.iterdir()] == ["kernels-d"]
    (found / "_kernels_1" / "draws.nbi").write_text("newer")
    assert places(monkeypatch, "", beside, cache) == found
    assert (found / "_kernels_1" / "draws.nbi").read_text() == "newer"
    cache.rename(tmp_path / "other")
    cache.write_text("a file: nothing can be kept")
    passing = places(monkeypatch, "", beside, cache)
    assert passing.parent.parent == Path(tempfile.gettempdir())
    assert (passing / "_kernels_1" / "draws.nbi").read_text() == "compiled"
    monkeypatch.setattr(compiled, "cache_folder", lambda: passing)
    assert "at every start" in compiled.note()


def test_where_nothing_can_be_kept_kernels_work_all_the_same(monkeypatch) -> None:
    monkeypatch.setattr(compiled, "cache_folder", lambda: None)
    add = compiled.kernel()(lambda a, b: a + b)
    assert add(1, 2) == 3
    assert not add.stats.cache_path
    assert "at every start" in compiled.note()


def test_every_module_with_compiled_code_is_in_the_digest() -> None:
    """What is compiled is in `gradients._kernels` or in files `*_kernel.py`, and imports these and one more alone."""
    for path in compiled.PACKAGE.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        ours = {m.removeprefix("tandemrank.") for m in modules if m.startswith("tandemrank.")}
        if path.stem.endswith("_kernel") or path.parent.name == "_kernels":
            others = {m for m in ours if not m.endswith("_kernel") and not m.startswith("gradients._kernels.")}
            assert others <= {"_base.random"}, path
        else:
            names = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
            assert not names & {"njit", "jit", "kernel", "prange"}, path


def test_only_compiling_is_announced_and_only_once(monkeypatch, capsys) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.0)
    monkeypatch.setattr(compiled, "_said", type(compiled._said)())
    with compiled.announcing():
        time.sleep(0.05)  # work, or loading what is on disk
    assert capsys.readouterr().err == ""
    assert str(compiled.cache_folder().parent) in compiled.note()
    for expected in (compiled.note() + "\n", ""):
        with compiled.announcing():
            for _ in range(2):
                with event.trigger_event("numba:compile"):
                    time.sleep(0.05)
        assert capsys.readouterr().err == expected


def test_what_compiles_fast_is_not_announced(monkeypatch, capsys) -> None:
    monkeypatch.setattr(compiled, "_said", type(compiled._said)())
    with compiled.announcing(), event.trigger_event("numba:compile"):
        pass
    assert capsys.readouterr().err == ""
