"""Simulated canaries: the same decisions as the server's own test, look by look; seldom wrong, soon right."""

import numpy as np
import pytest

import canaries
from canaries import RATE, K
from served import shown
from tandemrank.serving.verdict import LiveTest


@pytest.mark.parametrize(("new", "ends"), [(RATE / 2, "roll back"), (2 * RATE, "promote")])
def test_the_servers_test_decides_at_the_same_impression(new, ends) -> None:
    arm, clicks = canaries.drawn(np.random.default_rng(3), new, 800, 0.5)
    [when] = np.flatnonzero(canaries._looks(arm, clicks, 0.5, -1 if ends == "roll back" else 1))[:1]
    mixture = (("old", 0.5), ("new", 0.5))
    test = LiveTest(mixture, K, usual=RATE)
    for n in range(when + 1):
        assert test.look() == "continue", n
        one = shown(mixture, int(arm[n]))
        one = one._replace(impression=one.impression._replace(places=K))
        test.hear(one, tuple(range(clicks[n])))
    assert test.look() == ends


def test_seldom_wrong_and_soon_right() -> None:
    found = canaries.measure(canaries=200, impressions=2000, bad_policies=40)
    assert found.false_rollbacks <= 0.05 + 5 * np.sqrt(0.05 * 0.95 / 200)
    assert found.rolled_back >= 0.95
    assert found.rolled_back_after["95%"] <= 2000
