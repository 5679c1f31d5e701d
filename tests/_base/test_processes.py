"""A thread that works ahead gives what it makes in order, hands on errors, and ends when nobody listens any more."""

import threading
from collections.abc import Generator

import pytest

from tandemrank._base.processes import ahead


def test_items_come_in_their_order_from_another_thread() -> None:
    def numbers() -> Generator[tuple[int, int]]:
        for n in range(20):
            yield n, threading.get_ident()

    found = list(ahead(numbers()))
    assert [n for n, _ in found] == list(range(20))
    assert {thread for _, thread in found}.isdisjoint({threading.get_ident()})


def test_what_goes_wrong_is_raised_after_what_went_right() -> None:
    def numbers() -> Generator[int]:
        yield 1
        raise ValueError("the second")

    found = ahead(numbers())
    assert next(found) == 1
    with pytest.raises(ValueError, match="the second"):
        next(found)


def test_the_maker_is_closed_when_the_user_stops() -> None:
    closed = threading.Event()

    def numbers() -> Generator[int]:
        try:
            yield from range(10**9)
        finally:
            closed.set()

    some = ahead(numbers(), ready=1)
    assert next(some) == 0
    some.close()
    assert closed.is_set()
