"""Modules that are imported when they are first used (PEP 562), so that importing a package costs nothing."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def modules_of(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package: `package.module` without an import of its own."""

    def get(name: str) -> ModuleType:
        if name.startswith("__") or find_spec(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return get
