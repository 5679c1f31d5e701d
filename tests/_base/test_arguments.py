"""Arguments of public functions: plain kinds are held to the annotations, everything else is passed on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tandemrank._base.arguments import checked
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError


@checked
def asked(
    n: int,
    x: float = 0.5,
    name: Literal["a", "b"] = "a",
    path: str | Path | None = None,
    call: Callable[[int], None] | None = None,
    ids: Vocabulary | None = None,
    other: Any = None,
) -> tuple[Any, ...]:
    return n, x, name, path, call, ids, other


def test_what_fits_is_passed_on_and_whole_numbers_become_plain() -> None:
    found = asked(np.int64(3), np.float32(0.5), "b", Path("x"), print, other=[object])
    assert found == (3, 0.5, "b", Path("x"), print, None, [object])
    assert type(found[0]) is int
    assert asked(1, x=2)[1] == 2


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n", 1.5, "n: expected a whole number; got float (1.5)"),
        ("n", True, "n: expected a whole number; got bool"),
        ("n", np.arange(3)[::-1], "n: expected a whole number; got ndarray"),
        ("n", None, "n: expected a whole number; got NoneType"),
        ("x", "1", "x: expected a number; got str ('1')"),
        ("name", np.zeros((2, 2)), "name: expected a text; got ndarray"),
        ("path", 3, "path: expected a text or a path or None; got int (3)"),
        ("call", 3, "call: expected a function or None; got int"),
        ("ids", "x", "ids: expected a Vocabulary or None; got str"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(name, value, words) -> None:
    with pytest.raises(ConfigError) as refused:
        asked(**{"n": 1, name: value})
    assert str(refused.value).startswith(words)
