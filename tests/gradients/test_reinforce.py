"""REINFORCE against complete enumeration: value and both gradients, with and without the baseline."""

import pytest
import torch

import enumeration
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, reinforce
from worlds import assert_mean, seeded, world


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_cand_grad_and_ranker_grad_by_enumeration(seed: int, baseline: bool) -> None:
    s, r, w, theta, K2 = world(seed)
    exact = enumeration.utility(s, r, w, theta, K2)
    rows = [torch.tensor([x] * 20_000, dtype=torch.float32) for x in (s, r, w)]
    rows[0].requires_grad_()
    rows[1].requires_grad_()
    value = reinforce.utility(*rows, torch.tensor(theta), K2, samples=2, generator=seeded(seed), baseline=baseline)
    by_s, by_r = torch.autograd.grad(value.sum(), rows[:2])
    for found, wanted, what in (
        (value.detach(), exact[0], "value"),
        (by_s, exact[1], "cand"),
        (by_r, exact[2], "ranker"),
    ):
        assert_mean(found, wanted, f"world {seed}, {what}")


@pytest.mark.parametrize("K2", [3, 6])
def test_a_gradient_asked_for_alone_is_the_one_that_is_asked_for_with_the_other(K2: int) -> None:
    """Of one stage less is computed; what is computed is the same, also where all documents are candidates (K2 = D)."""
    s, r, w = (torch.randn(50, 6, generator=seeded(n)) for n in range(3))
    theta = 1 / torch.arange(1.0, 4)

    def gradients(wanted: tuple[bool, bool]) -> list[torch.Tensor | None]:
        scores = [x.clone().requires_grad_(own) for x, own in zip((s, r), wanted, strict=True)]
        reinforce.utility(*scores, w, theta, K2, samples=20, generator=seeded(4)).sum().backward()
        return [x.grad for x in scores]

    by_s, by_r = gradients((True, True))
    alone_s, nothing_r = gradients((True, False))
    nothing_s, alone_r = gradients((False, True))
    assert nothing_s is None
    assert nothing_r is None
    torch.testing.assert_close(alone_s, by_s)
    torch.testing.assert_close(alone_r, by_r)
    assert by_r is not None
    assert by_r.abs().sum() > 0
    assert by_s is not None
    assert (by_s.abs().sum() > 0) == (K2 < 6)


def test_it_is_interchangeable_with_the_race() -> None:
    """One signature: the same lists of arguments, values within five standard errors of each other."""
    s, r, w = (torch.randn(1, 30, generator=seeded(n)).expand(400, 30) for n in range(3))
    theta = 1 / torch.arange(1.0, 6)
    a = race.utility(s, r, w, theta, 10, samples=5, generator=seeded(5)).double()
    b = reinforce.utility(s, r, w, theta, 10, samples=5, generator=seeded(6)).double()
    assert (a.mean() - b.mean()).abs() < 5 * ((a.var() + b.var()) / 400) ** 0.5


def test_the_baseline_needs_two_samples() -> None:
    s = torch.zeros(1, 3)
    with pytest.raises(ConfigError, match="at least 2 samples"):
        reinforce.utility(s, s, s, torch.ones(1), 2, samples=1, generator=seeded(0), baseline=True)
