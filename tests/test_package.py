"""The wheel and the source distribution: made as a release would, installed beside nothing of the checkout, and used."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from contextlib import suppress
from email import message_from_string
from glob import glob
from pathlib import Path

import numpy as np
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


def interpreter(version: str) -> str:
    """An interpreter of this version, on the path or of pyenv; skips where there is none."""
    names = [
        sys.executable,
        f"python{version}",
        *glob(str(Path.home() / f".pyenv/versions/{version}.*/bin/python{version}")),
    ]
    for name in names:
        with suppress(OSError):
            said = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
            if said.startswith(f"Python {version}."):
                return name
    pytest.skip(f"there is no Python {version}")


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_declared_versions_of_python_read_every_file(version: str, tmp_path: Path) -> None:
    """Where the interpreter is at hand: its grammar takes the whole package, and `import tandemrank` works."""
    script = "import sys, pathlib; [compile(p.read_bytes(), str(p), 'exec') for p in pathlib.Path(sys.argv[1]).rglob('*.py')]"
    run(interpreter(version), "-W", "error", "-c", f"{script}; import tandemrank", str(ROOT / "src"), cwd=tmp_path,
        PYTHONPATH=str(ROOT / "src"), PYTHONDONTWRITEBYTECODE="1")  # fmt: skip


def test_what_is_installed_learns_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own, which sees this one's libraries but neither its tandemrank nor the checkout."""
    home, here = tmp_path / "venv", tmp_path / "empty"
    venv.create(home, with_pip=False)
    [site] = home.glob("lib/python*/site-packages")
    pip = (sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps")
    run(*pip, "--no-index", "--no-compile", str(wheel), cwd=tmp_path)
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    here.mkdir()
    command = str(home / "bin" / "tandemrank")
    place = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    assert run(command, "--version", cwd=here) == f"tandemrank {tandemrank.__version__}\n"
    assert str(site / "tandemrank") in run(command, "doctor", "--json", cwd=here, **place)  # where kernels are kept
    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((1500, 12)), 1)[:, :4]
    clicks = (rng.random(items.shape) < np.where(items < 3, 0.7, 0.1)).astype(int)
    N = items.shape[0]
    shown = {"impression_id": np.repeat(np.arange(N), 4), "query_id": np.repeat(rng.integers(0, 20, N), 4)}
    shown |= {"item_id": items.ravel(), "position": np.tile([1, 2, 3, 4], N), "click": clicks.ravel()}
    pl.DataFrame(shown).write_csv(here / "log.csv")
    learn = ("learn", "--logs", "log.csv", "--out", "learned")
    assert "report: learned/report.html" in run(command, *learn, cwd=here, PYTHONWARNINGS="error", **place)
    assert sorted(path.name for path in here.iterdir()) == ["learned", "log.csv"]
