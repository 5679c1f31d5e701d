"""Would the tests notice? Small wrong changes of the core, one at a time, each against the tests that should see it.

    python benchmarks/mutants.py                            all of them: about an hour on one core
    python benchmarks/mutants.py --only click-weights-forget   some of them, by the beginning of their names
    python benchmarks/mutants.py --whole                    what its own tests miss meets the whole fast suite too
    python benchmarks/mutants.py --list
    python benchmarks/mutants.py --json

The mutants are in `mutants.toml` beside this file: a file of the package, a piece of it that occurs once, what stands there
instead, and the tests that should see it; the first that fails ends a run, and so does a limit of time. A copy of the project
is changed, never the project itself. In the end every test that killed runs on the unchanged copy: one that fails there too, or
takes long there too, has killed nothing. Results are kept in a file and hold until the mutated file or the tests change, so an
interrupted run goes on where it was.
"""

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, NoReturn, get_args

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".toml")
COPIED = ("src", "tests", "docs", "benchmarks", ".ci")  # folders; of files, all that lie in the root
# A cluster, a browser, a whole story; and the test of this list, which sees a mutant by looking for its text.
NOT_FAST = ("*_ray.py", "*test_browser.py", "*test_tutorial.py", "*test_mutants.py")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
PRELOADED = (
    "torch",
    "numba",
    "polars",
    "scipy.sparse.linalg",
    "scipy.stats",
    "pydantic",
    "safetensors.torch",
    "pytest",
)

Fate = Literal["killed", "survived", "broken"]
Suite = Literal["own", "whole"]


@dataclass(frozen=True)
class Mutant:
    """One wrong change: `old`, which occurs once in `file`, becomes `new`; `tests` (files, or file::test) run first."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> str:
        """The file, from the project's root."""
        return f"src/tandemrank/{self.file}"

    def changed(self, source: str) -> str:
        """The source with the mutant in it."""
        if (n := source.count(self.old)) != 1:
            raise SystemExit(
                f"mutant {self.name}: expected its text once in {self.path}, found it {n} times: {self.old!r}. "
                f"Seed it anew in {LIST.name}."
            )
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Result:
    """What became of a mutant under a suite: `killed` by a test, `survived`, or `broken` (nothing can be said)."""

    name: str
    suite: Suite
    key: str
    fate: Fate
    by: str
    seconds: float


def mutants(path: Path = LIST) -> list[Mutant]:
    """The list."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**row, "tests": tuple(row["tests"])}) for row in rows]


def chosen(every: Sequence[Mutant], only: Sequence[str]) -> list[Mutant]:
    """Those whose names begin with one of `only`; all without it."""
    found = [m for m in every if not only or m.name.startswith(tuple(only))]
    if not found:
        raise SystemExit(f"no mutant begins with {', '.join(only)}; --list shows all names.")
    return found


def key_of(mutant: Mutant, suite: Suite, root: Path = ROOT) -> str:
    """Changes with the mutant, the file it changes and the tests; under the whole suite, with any test and any source."""
    digest = hashlib.sha256(json.dumps(asdict(mutant)).encode())
    own = (mutant.path, *(f"tests/{test.split('::')[0]}" for test in mutant.tests))
    for name in own if suite == "own" else ("src", "tests"):
        for path in sorted([root / name] if (root / name).is_file() else (root / name).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def copy_project(folder: Path) -> None:
    """The project, as it is now."""
    for name in COPIED:
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, folder / path.name)


@contextmanager
def applied(mutant: Mutant, folder: Path) -> Iterator[None]:
    """The mutant in the copy, and the copy as it was afterwards. Kernels are kept by their sources, so none is stale."""
    path = folder / mutant.path
    before, times = path.read_text(encoding="utf-8"), path.stat()
    try:
        path.write_text(mutant.changed(before), encoding="utf-8")
        yield
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def preload() -> None:
    """Imports the libraries that the tests import, once for all mutants; nothing of the package itself."""
    os.environ.update(ONE_THREAD)
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def run_pytest(folder: Path, arguments: Sequence[str], timeout: float) -> tuple[int, list[str], str]:
    """Runs tests of a copy in a process of its own; the exit code, the tests that failed, and the end of what was said."""
    said = folder / "said.txt"
    child = os.fork()  # what is imported already need not be imported again: half a minute of a mutant is that
    if child == 0:
        _become_pytest(folder, ["-q", "--no-header", "-p", "no:cacheprovider", *arguments], said)
    code, end = None, time.monotonic() + timeout
    try:
        while code is None:
            time.sleep(0.05)
            done, status = os.waitpid(child, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            if code is None and time.monotonic() > end:
                raise TimeoutError
    finally:
        if code is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
    text = said.read_text(encoding="utf-8", errors="replace")
    lines = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return code, [line.split(" ", 1)[1].split(" - ")[0] for line in lines], text.strip()[-300:]


def _become_pytest(folder: Path, arguments: Sequence[str], said: Path) -> NoReturn:
    """Goes on as pytest in a copy of the project, and never returns."""
    code = 4
    try:
        os.setsid()
        os.chdir(folder)
        for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            file = os.open(os.devnull if number == 0 else said, mode | (os.O_CREAT | os.O_TRUNC if number == 1 else 0))
            os.dup2(file if number < 2 else 1, number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(ONE_THREAD, PYTHONPATH=str(folder / "src"))
        os.environ.pop("NUMBA_CACHE_DIR", None)
        sys.path.insert(0, str(folder / "src"))
        import pytest

        code = int(pytest.main(list(arguments)))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run_tests(folder: Path, tests: Sequence[str], timeout: float, processes: int = 1) -> tuple[Fate, str]:
    """Whether the tests (none: the whole fast suite) notice, and the first that does. No end counts as noticed."""
    arguments = ["-x", *(f"tests/{test}" for test in tests)]
    if not tests:
        arguments += [f"--ignore-glob={name}" for name in NOT_FAST]
        arguments += ["--numprocesses", str(processes), "--dist", "loadfile"] if processes > 1 else []
    try:
        code, failed, said = run_pytest(folder, arguments, timeout)
    except TimeoutError:
        return "killed", f"no end after {timeout:.0f} seconds"
    if code == 0:
        return "survived", ""
    return ("killed", failed[0]) if code == 1 and failed else ("broken", said)


@dataclass
class Session:
    """One run: a copy of the project, and the results so far."""

    folder: Path
    results: Path
    timeout: float
    processes: int
    known: dict[tuple[str, str], Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        copy_project(self.folder)
        lines = self.results.read_text(encoding="utf-8").splitlines() if self.results.exists() else []
        self.known = {(row["name"], row["key"]): Result(**row) for row in map(json.loads, lines)}

    def fate(self, mutant: Mutant, suite: Suite) -> Result:
        """What becomes of the mutant under a suite, from the file of results if it is there."""
        key = key_of(mutant, suite, self.folder)
        if (found := self.known.get((mutant.name, key))) is not None:
            return found
        start = time.perf_counter()
        tests, timeout = (mutant.tests, self.timeout) if suite == "own" else ((), 20 * self.timeout)
        with applied(mutant, self.folder):
            fate, by = run_tests(self.folder, tests, timeout, self.processes)
        result = Result(mutant.name, suite, key, fate, by, round(time.perf_counter() - start, 1))
        if fate != "broken":
            self.known[mutant.name, key] = result
            with self.results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result)) + "\n")
        return result

    def checked(self, results: Sequence[Result], found: Sequence[Mutant]) -> list[Result]:
        """The results, without the kills of tests that fail, or find no end, on the unchanged copy too."""
        killers = list(dict.fromkeys(r.by for r in results if r.fate == "killed" and "::" in r.by))
        endless = {r.name for r in results if r.fate == "killed" and "::" not in r.by}
        failed: list[str] = []
        if killers:
            say(f"{len(killers)} tests have killed; the same without any mutant ...")
            code, failed, said = run_pytest(self.folder, killers, 20 * self.timeout)
            if code not in (0, 1):
                raise SystemExit(f"the tests do not run without a mutant, so nothing can be said: {said}")
        tests = {m.name: m.tests for m in found if m.name in endless}
        slow = {name for name in tests if run_tests(self.folder, tests[name], self.timeout / 3)[0] != "survived"}
        why = "it fails, or is slow, without a mutant too: "
        wrong = [r.by in failed or r.name in slow for r in results]
        return [replace(r, fate="broken", by=why + r.by) if bad else r for r, bad in zip(results, wrong, strict=True)]


def say(line: str) -> None:
    """A line of progress."""
    print(line, file=sys.stderr, flush=True)


def run(found: Sequence[Mutant], session: Session, *, whole: bool) -> list[Result]:
    """Every mutant's fate under its own tests; where these miss it, on demand, under the whole fast suite."""
    results = []
    for number, mutant in enumerate(found, 1):
        say(f"[{number}/{len(found)}] {mutant.name} ({mutant.file}) ...")
        result = session.fate(mutant, "own")
        if result.fate == "survived" and whole:
            say(f"  its own tests miss it ({result.seconds:.0f} s); the whole fast suite ...")
            result = session.fate(mutant, "whole")
        say(f"  {result.fate} ({result.seconds:.0f} s) {result.by}")
        results.append(result)
    return session.checked(results, found)


def table(found: Sequence[Mutant], results: Sequence[Result]) -> str:
    """Killed and all, by room; those that were not killed; and the number."""
    lines = [f"{'room':14}{'modules':>8}{'mutants':>9}{'killed':>8}"]
    room_of = {m.name: m.file.split("/")[0] for m in found}
    for room in [*dict.fromkeys(room_of.values()), ""]:
        own = [r for r in results if not room or room_of[r.name] == room]
        modules = len({m.file for m in found if not room or room_of[m.name] == room})
        lines.append(f"{room or 'all':14}{modules:8}{len(own):9}{sum(r.fate == 'killed' for r in own):8}")
    lines += [f"{r.fate}: {r.name} {r.by}".rstrip() for r in results if r.fate != "killed"]
    counts = {fate: sum(r.fate == fate for r in results) for fate in get_args(Fate)}
    return "\n".join([*lines, ", ".join(f"{n} {fate}" for fate, n in counts.items()) + f", of {len(results)} mutants"])


def main() -> None:
    """Runs the mutants and prints what became of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="mutants whose names begin so; may be repeated")
    parser.add_argument("--whole", action="store_true", help="what its own tests miss meets the whole fast suite too")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a mutant; twenty times for all tests")
    parser.add_argument("--processes", type=int, default=1, help="of the whole fast suite, where it is needed")
    parser.add_argument("--results", type=Path, default=ROOT / ".mutants.jsonl", help="where results are kept")
    parser.add_argument("--list", action="store_true", help="print the names and files, run nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    found = chosen(mutants(), arguments.only)
    if arguments.list:
        print("\n".join(f"{m.name:40} {m.file}" for m in found))
        return
    for mutant in found:
        mutant.changed((ROOT / mutant.path).read_text(encoding="utf-8"))
    preload()
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        session = Session(Path(name), arguments.results, arguments.timeout, arguments.processes)
        results = run(found, session, whole=arguments.whole)
    killed = sum(r.fate == "killed" for r in results)
    if arguments.json:
        summary = {"mutants": len(results), "killed": killed, "share": killed / len(results)}
        print(json.dumps(summary | {"results": [asdict(r) for r in results]}, indent=1))
    else:
        print(table(found, results))


if __name__ == "__main__":
    main()
