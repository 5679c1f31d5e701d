"""What every room stands on; nothing here knows what a click is.

- `arguments`: the arguments of public functions, held to their annotations
- `ids`: outside ids and inside positions
- `random`: seeds that are derived, random keys, the streams of one seed
- `results`: what every public result can do: print, plot, become a table, a page
- `files`: writing in one piece, for others to read; never over what we did not write
- `buckets`: files at a URL
- `config`: configuration from a preset, a TOML file and single switches
- `sparse`: sparse matrices in one form
- `frames`: tables of files and of frames, and their ids; the values of a context as texts; Parquet with a checksum
- `cluster`: Ray: functions as tasks of a cluster; groups of processes, each with some queries, and what they add up
- `progress`: what a person sees of a long job: a bar, a line of a notebook, plain lines
- `adam`: Adam with weight decay
- `processes`: worker processes that end with their parent, one process at a time in a folder
"""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def modules_of(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package (PEP 562): `package.module` without an import of its own, and costs nothing before."""

    def get(name: str) -> ModuleType:
        if name.startswith("__") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return get
