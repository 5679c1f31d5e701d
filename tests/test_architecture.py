"""The house: one direction of imports between its rooms and inside them; and the public names, which change only on purpose."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import tandemrank

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tandemrank"

# docs/explanation/design.md shows the same rooms with what each is for. A room sees only rooms before it.
ROOMS = [
    "errors", "_base", "gradients", "logs", "clicks", "policies", "beliefs", "offpolicy", "training", "decisions", "sessions",
    "serving", "experiments", "reports", "cli",
]  # fmt: skip
# What a room sees, where that is less than all before it.
ONLY = {
    "decisions": {"errors", "_base", "logs", "clicks", "policies", "beliefs", "offpolicy"},
    "serving": {"errors", "_base", "gradients", "logs", "clicks", "policies", "beliefs", "offpolicy"},
}
LONGEST_CHAIN = 22  # modules, from the command line down to the errors


def module_of(path: Path) -> str:
    """The dotted name inside the package; a room's `__init__` has the room's name."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    """Every module of every room but the two doors of the package."""
    found = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: path for name, path in found.items() if name not in ("__init__", "__main__")}


def imported(source: str, known: set[str]) -> set[str]:
    """The modules of the package that a source imports, also inside functions; `import tandemrank` alone gives none."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.add("")  # no module has that name: relative imports are refused
        elif isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("tandemrank."):
            inside = (node.module or "").removeprefix("tandemrank").removeprefix(".")
            names = [f"{inside}.{alias.name}".removeprefix(".") for alias in node.names]
            found |= {name if name in known else inside for name in names if name != "__version__"}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("tandemrank.") for a in node.names if a.name.startswith("tandemrank.")}
    return found


@cache
def graph() -> dict[str, frozenset[str]]:
    """What every module imports."""
    paths = modules()
    return {
        name: frozenset(imported(path.read_text(encoding="utf-8"), set(paths)) - {name, ""})
        for name, path in paths.items()
    }


def test_the_reader_of_imports_sees_every_kind() -> None:
    source = """
import tandemrank.a
import tandemrank
from tandemrank import b, __version__
from tandemrank.c import x
from tandemrank.c import d
def f():
    from tandemrank.e.g import y
"""
    assert imported(source, {"a", "b", "c", "c.d", "e.g"}) == {"a", "b", "c", "c.d", "e.g"}
    assert imported("from . import a", set()) == {""}


def test_every_module_is_in_a_room() -> None:
    assert {name.split(".")[0] for name in modules()} <= set(ROOMS)
    assert len(ROOMS) == len(set(ROOMS))


def test_no_import_is_relative() -> None:
    paths = modules()
    for name, path in paths.items():
        assert "" not in imported(path.read_text(encoding="utf-8"), set(paths)), name


@pytest.mark.parametrize("module", modules())
def test_a_room_sees_only_rooms_before_it(module: str) -> None:
    room = module.split(".")[0]
    allowed = ONLY.get(room, set(ROOMS[: ROOMS.index(room)])) | {room}
    seen = {other.split(".")[0] for other in graph()[module]}
    assert seen <= allowed, f"{module} must not import from {sorted(seen - allowed)}"


def longest_chain() -> tuple[str, ...]:
    """The longest chain of imports; a circle is refused."""
    found: dict[str, tuple[str, ...]] = {}

    def chain(module: str, above: tuple[str, ...]) -> tuple[str, ...]:
        assert module not in above, f"a circle of imports: {' -> '.join((*above, module))}"
        if module not in found:
            below = [chain(other, (*above, module)) for other in graph().get(module, ())]
            found[module] = (module, *max(below, key=len, default=()))
        return found[module]

    return max((chain(module, ()) for module in graph()), key=len)


def test_chains_of_imports_are_short_and_have_no_circle() -> None:
    chain = longest_chain()
    assert len(chain) <= LONGEST_CHAIN, " -> ".join(chain)


def test_a_rooms_docstring_names_its_modules() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent == PACKAGE:
            continue
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        public = {p.stem for p in path.parent.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
        missing = {name for name in public if not name.startswith("_") and f"`{name}`" not in words}
        assert not missing, f"the docstring of {path.parent.name} does not name {sorted(missing)}"


def test_tests_mirror_the_rooms() -> None:
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and not p.name.startswith(("__", "."))}
    assert folders - {"independent", "benchmarks"} <= set(ROOMS)


def test_public_names() -> None:
    assert tandemrank.__all__ == sorted(tandemrank.__all__)
    assert dir(tandemrank) == sorted(tandemrank.__all__)
    for name in tandemrank.__all__:
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
    lazy = {name: tandemrank._HOME.get(name, "") for name in tandemrank.__all__ if name != "__version__"}
    assert typed == lazy


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert tandemrank.__version__ == project["version"]


def fresh(code: str) -> list[str]:
    """What a new interpreter prints, in words."""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return out.stdout.split()


def test_importing_the_package_is_instant() -> None:
    """Nothing heavy comes with it: the libraries are imported by the modules that need them."""
    heavy = ("torch", "numba", "polars", "scipy", "pydantic", "matplotlib", "ray", "rich", "typer")
    assert fresh(f"import sys, tandemrank; print(*[name for name in {heavy} if name in sys.modules])") == []


def test_a_log_is_checked_and_its_curve_estimated_without_torch(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = rng.permuted(np.tile(np.arange(4), (2000, 1)), axis=1)
    clicks = (rng.random(items.shape) < 0.5 / np.arange(1, 5)).astype(int)
    pl.DataFrame({"query_id": rng.integers(0, 9, 2000), "items": items, "clicks": clicks}).write_parquet(
        tmp_path / "log"
    )
    use = f"import tandemrank as tr; tr.validate({str(tmp_path / 'log')!r}); tr.examine({str(tmp_path / 'log')!r})"
    assert fresh(f"import sys; {use}; print(*[name for name in ('torch', 'numba') if name in sys.modules])") == []


def test_loading_a_pair_does_not_import_the_log_readers() -> None:
    loaded = fresh("import sys, tandemrank; tandemrank.load; print(*sys.modules)")
    assert "tandemrank.policies.two_stage" in loaded
    assert not [name for name in loaded if name.startswith(("tandemrank.logs.", "tandemrank.training"))]


def test_data_with_more_than_five_fields_is_built_by_keyword() -> None:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in PACKAGE.rglob("*.py")}
    nodes = [(path, node) for path, tree in trees.items() for node in ast.walk(tree)]
    large = {
        node.name
        for _, node in nodes
        if isinstance(node, ast.ClassDef)
        and any(
            name in ast.unparse(one)
            for one in (*node.decorator_list, *node.bases)
            for name in ("dataclass", "NamedTuple")
        )
        and sum(isinstance(one, ast.AnnAssign) for one in node.body) > 5
    }
    found = [
        f"{module_of(path)}: {ast.unparse(node)[:60]}"
        for path, node in nodes
        if isinstance(node, ast.Call) and len(node.args) > 5 and ast.unparse(node.func).split(".")[-1] in large
    ]
    assert found == []


def test_nothing_is_pickled() -> None:
    for path in PACKAGE.rglob("*.py"):
        assert "pickle" not in path.read_text(encoding="utf-8"), path
