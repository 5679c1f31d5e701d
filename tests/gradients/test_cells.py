"""Cells hold every item once, neighbours together; what is known of them is what numpy says; bad input."""

import math

import numpy as np
import pytest
import torch

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import cells
from tandemrank.gradients.products import Products


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("D", "wanted"), [(1, 1), (7, 1), (7, 7), (500, None), (3000, 90)])
def test_every_item_is_in_one_cell(D: int, wanted: int | None) -> None:
    found = cells.partition(torch.randn(D, 5, generator=seeded(D)), cells=wanted)
    assert np.array_equal(np.sort(found.members), np.arange(D))
    assert found.start[0] == 0
    assert found.start[-1] == D
    assert (np.diff(found.start) >= 0).all()
    asked = wanted or math.isqrt(D)
    assert asked / 2 <= found.count <= 2 * asked
    assert found.shape == (D, 5)


def test_neighbours_are_together() -> None:
    """Twenty heaps of items far apart: no cell holds two of them; and all cells together leave little variance."""
    centres = 100 * torch.randn(20, 8, generator=seeded(1))
    items = centres.repeat_interleave(50, 0) + torch.randn(1000, 8, generator=seeded(2))
    found = cells.partition(items[torch.randperm(1000, generator=seeded(3))], cells=120)
    assert float(found.variance.sum(1).mean()) < 12


def test_items_that_are_all_the_same_and_empty_cells() -> None:
    found = cells.partition(torch.ones(50, 3), cells=10)
    assert np.diff(found.start).max() > 5
    assert np.isfinite(found.mean).all()
    assert (found.variance == 0).all()
    assert (found.mean[np.diff(found.start) == 0] == 0).all()


def test_what_is_known_of_a_cell_follows_its_items() -> None:
    items = torch.randn(400, 6, generator=seeded(1)) @ torch.randn(6, 6, generator=seeded(2))
    before = cells.partition(items, cells=9, z=2.0)
    moved = items + torch.randn(400, 6, generator=seeded(3))
    found = cells.follow(before, moved)
    assert found.tally is before.tally
    assert found.z == 2.0
    left = np.empty((400, 6))
    for c in range(found.count):
        own = moved.numpy()[found.members[found.start[c] : found.start[c + 1]]].astype(np.float64)
        np.testing.assert_allclose(found.mean[c], own.mean(0), atol=1e-5)
        np.testing.assert_allclose(found.variance[c], own.var(0), rtol=1e-4, atol=1e-5)
        left[found.start[c] : found.start[c + 1]] = own - own.mean(0)
    np.testing.assert_allclose(found.covariance, left.T @ left / 400, rtol=1e-3, atol=1e-4)


def test_bad_input_is_refused_by_name() -> None:
    items = torch.randn(10, 3, generator=seeded(1))
    for wanted in (0, 11):
        with pytest.raises(ConfigError, match="expected 1 to 10 cells"):
            cells.partition(items, cells=wanted)
    for z in (-1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="z must be"):
            cells.partition(items, z=z)
    with pytest.raises(PolicyError, match="at least one"):
        cells.partition(torch.empty(0, 3))
    found = cells.partition(items)
    with pytest.raises(PolicyError, match=r"cells of \(10, 3\) vectors"):
        Products(torch.ones(1, 3), items[:9], found)
    items[4, 1] = torch.nan
    for call in (cells.partition, lambda x: cells.follow(found, x)):
        with pytest.raises(PolicyError, match="item 4 is not finite"):
            call(items)
