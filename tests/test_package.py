"""The wheel and the source distribution: made as a release would, installed beside nothing of the checkout, and used."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import polars as pl
import pytest

import tandemrank

ROOT = Path(__file__).resolve().parents[1]


def run(*words: str, cwd: Path, **environment: str) -> str:
    """Standard output of a process that has no path to the checkout."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=clean | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the unpacked source distribution, so that this has all that it takes."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(folder), cwd=ROOT)
    [source] = folder.glob("*.tar.gz")
    with tarfile.open(source) as packed:
        packed.extractall(folder, filter="data")
    [unpacked] = (path for path in folder.iterdir() if path.is_dir())
    assert (unpacked / "tests" / "test_package.py").exists()
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder), cwd=unpacked)
    [found] = folder.glob("*.whl")
    return found


def test_the_wheel_has_the_package_alone_and_a_page_without_dead_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        about = message_from_string(packed.read(next(x for x in names if x.endswith("METADATA"))).decode())
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"tandemrank"}
    assert "tandemrank/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".nbi", ".nbc"))]
    page = about.get_payload()
    assert isinstance(page, str)
    assert "pip install tandemrank" in page
    assert not [link for link in re.findall(r"\]\(([^)]*)\)", page) if not link.startswith("https://")]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_declared_versions_of_python_read_every_file(version: str, tmp_path: Path) -> None:
    """Where the interpreter is at hand: its grammar takes the whole package."""
    minor = int(version.partition(".")[2])
    found = sys.executable if sys.version_info[:2] == (3, minor) else f"python{version}"
    try:
        there = subprocess.run([found, "--version"], capture_output=True, text=True)
    except FileNotFoundError:
        there = None
    if there is None or there.returncode:
        pytest.skip(f"there is no {found}")
    script = "import sys, pathlib; [compile(p.read_bytes(), str(p), 'exec') for p in pathlib.Path(sys.argv[1]).rglob('*.py')]"
    run(found, "-W", "error", "-c", script, str(ROOT / "src"), cwd=tmp_path)


def test_what_is_installed_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(*pip, "--target", str(site), str(wheel), cwd=tmp_path)
    log = {"query_id": [1, 1, 2], "items": [["a", "b"], ["b", "a"], ["a", "c"]], "clicks": [[1, 0], [0, 1], [0, 0]]}
    pl.DataFrame(log).write_parquet(tmp_path / "log.parquet")
    # Found before the checkout that this environment knows.
    place = {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    where = run(sys.executable, "-c", "import tandemrank; print(tandemrank.__file__)", cwd=tmp_path, **place)
    assert Path(where.strip()).is_relative_to(site)
    command = (sys.executable, "-m", "tandemrank")
    assert run(*command, "--version", cwd=tmp_path, **place) == f"tandemrank {tandemrank.__version__}\n"
    assert "impressions" in run(*command, "validate", "log.parquet", cwd=tmp_path, **place)
