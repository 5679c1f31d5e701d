"""The list of mutants stays true: each still changes one place of the core, and the tests it names exist."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("mutants", ROOT / "benchmarks" / "mutants.py")
assert spec is not None
assert spec.loader is not None
mutants = importlib.util.module_from_spec(spec)
spec.loader.exec_module(mutants)
EVERY = mutants.mutants()


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.name)
def test_a_mutant_changes_one_place_and_compiles(mutant) -> None:
    source = (ROOT / mutant.path).read_text(encoding="utf-8")
    changed = mutant.changed(source)  # refused where its text is not there exactly once
    compile(changed, mutant.path, "exec")
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    for test in mutant.tests:
        name, _, function = test.partition("::")
        text = (ROOT / "tests" / name).read_text(encoding="utf-8")
        assert not function or f"def {function}(" in text


def test_the_list_covers_the_core_without_duplicates() -> None:
    assert len({mutant.name for mutant in EVERY}) == len(EVERY) >= 60
    sources = {mutant.file: (ROOT / mutant.path).read_text(encoding="utf-8") for mutant in EVERY}
    assert len({(m.file, ast.dump(ast.parse(m.changed(sources[m.file])))) for m in EVERY}) == len(EVERY)
    assert len(sources) >= 20
    assert {file.split("/")[0] for file in sources} >= {
        "_base", "gradients", "logs", "clicks", "policies", "offpolicy", "training", "serving", "experiments",
    }  # fmt: skip


def test_a_mutant_lives_in_a_copy_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    [mutant] = mutants.chosen(EVERY, ["click-weights-forget"])
    path = tmp_path / mutant.path
    path.parent.mkdir(parents=True)
    path.write_text(f"before {mutant.old} after\n", encoding="utf-8")
    times = path.stat().st_mtime_ns
    with mutants.applied(mutant, tmp_path):
        assert path.read_text(encoding="utf-8") == f"before {mutant.new} after\n"
    assert path.read_text(encoding="utf-8") == f"before {mutant.old} after\n"
    assert path.stat().st_mtime_ns == times


@pytest.mark.parametrize("times", [0, 2])
def test_a_mutant_whose_text_is_gone_or_there_twice_ends_the_run(times: int) -> None:
    with pytest.raises(SystemExit, match=f"expected its text once .* found it {times} times"):
        EVERY[0].changed(f"{EVERY[0].old}\n" * times)


def test_a_name_that_begins_no_mutant_is_refused() -> None:
    with pytest.raises(SystemExit, match="no mutant begins with nothing"):
        mutants.chosen(EVERY, ["nothing"])


PASSES, FAILS = (f"def test_one() -> None:\n    assert {x} == 1\n" for x in (1, 0))


@pytest.mark.parametrize(("content", "fate"), [(PASSES, "survived"), (FAILS, "killed"), ("import nowhere\n", "broken")])
def test_only_a_failing_test_kills(tmp_path: Path, content: str, fate: str) -> None:
    """A mutant that cannot even be imported is a bad mutant, not a good test."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(content, encoding="utf-8")
    found, by = mutants.run_tests(tmp_path, ["test_one.py"], timeout=60)
    assert found == fate
    assert fate != "killed" or by == "tests/test_one.py::test_one"


def test_a_test_that_fails_without_a_mutant_kills_nothing(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(mutants, "copy_project", lambda folder: None)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_one.py").write_text(PASSES + FAILS.replace("_one", "_two"), encoding="utf-8")
    session = mutants.Session(tmp_path, tmp_path / "results.jsonl", timeout=60, processes=1)
    fates = {"test_one.py::test_one": ("survived", ""), "test_three.py": ("killed", "no end")}
    monkeypatch.setattr(mutants, "run_tests", lambda folder, tests, timeout: fates[tests[0]])
    by = ["tests/test_one.py::test_one", "tests/test_one.py::test_two", "no end", "no end"]
    tests = ["test_one.py", "test_one.py", "test_one.py::test_one", "test_three.py"]
    found = [mutants.Mutant(f"m{i}", "a.py", "1", "2", (test,)) for i, test in enumerate(tests)]
    results = [mutants.Result(m.name, "own", "", "killed", one, 0.0) for m, one in zip(found, by, strict=True)]
    checked = session.checked(results, found)
    assert [r.fate for r in checked] == ["killed", "broken", "killed", "broken"]
    assert mutants.table(found, checked).splitlines()[-1] == "2 killed, 0 survived, 2 broken, of 4 mutants"


def test_a_result_holds_until_the_file_or_its_tests_change(tmp_path: Path) -> None:
    mutant = mutants.Mutant("m", "a.py", "1", "2", ("test_a.py",))
    for name in ("src/tandemrank/a.py", "src/tandemrank/b.py", "tests/test_a.py", "tests/test_b.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n", encoding="utf-8")
    keys = []
    for name in ("README.md", "src/tandemrank/b.py", "tests/test_b.py", "tests/test_a.py", "src/tandemrank/a.py"):
        (tmp_path / name).write_text("3\n", encoding="utf-8")
        keys.append([mutants.key_of(mutant, suite, tmp_path) for suite in ("own", "whole")])
    own, whole = zip(*keys, strict=True)
    assert len(set(own)) == 3  # other files are no matter
    assert own[0] == own[1] == own[2]
    assert len(set(whole)) == 5
