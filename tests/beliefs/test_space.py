"""The space of the beliefs: production's directions, how long they are, and offsets that keep the levels of items."""

import numpy as np
import pytest

from tandemrank.beliefs.grades import sigmoid
from tandemrank.beliefs.space import Directions, Shape, Vectors, from_production, products_at, shaped

SHOWN = np.arange(3, 25)  # of 30 items


def test_production_differs_in_the_directions_in_which_its_queries_do() -> None:
    rng = np.random.default_rng(0)
    queries = np.zeros((500, 3))
    queries[:, 0], queries[:, 1] = 2.0, rng.normal(0, 1.5, 500)
    items = rng.normal(size=(40, 3))
    found = from_production(Vectors(queries.astype(np.float32), items.astype(np.float32)))
    assert found is not None
    directions, score = found
    assert directions.items.shape == (40, 1)
    assert abs(np.corrcoef(directions.items[:, 0], items[:, 1])[0, 1]) > 0.999
    assert score == pytest.approx(items @ queries.mean(0), abs=1e-3)
    # A query's own vector, in deviations: products with the directions are its scores, up to the mean and the shrinkage.
    assert directions.queries is not None
    own = directions.queries[:, 0] * np.sign(directions.items[0, 0] * items[0, 1])
    assert own == pytest.approx((queries[:, 1] - queries[:, 1].mean()) / queries[:, 1].std(ddof=1), abs=1e-3)


def test_queries_that_do_not_differ_have_no_directions() -> None:
    same = Vectors(np.ones((10, 2), np.float32), np.ones((5, 2), np.float32))
    assert from_production(same) is None


def test_how_much_queries_differ_is_the_mean_over_relevant_pairs() -> None:
    rng = np.random.default_rng(1)
    directions, g = Directions(rng.normal(size=(30, 4))), rng.normal(-2, 1, 30)
    for shape in (Shape(total=3.0, slope=0.0), Shape(total=0.7, slope=0.4)):
        space, p = shaped(directions, g, shape, 2, SHOWN), sigmoid(g)
        length = np.square(space.items[:, :4].astype(float)).sum(1)
        # Of items that were never shown nothing is known, however many there are.
        assert p[SHOWN] @ length[SHOWN] / p[SHOWN].sum() == pytest.approx(shape.total, rel=1e-5)
        ratio = length / np.square(directions.items).sum(1)
        assert np.log(ratio / ratio[0]) == pytest.approx(
            -2 * shape.slope * np.log((p * (1 - p)) / (p * (1 - p))[0]), abs=1e-3
        )


def test_a_query_that_is_not_known_finds_items_as_their_levels_say() -> None:
    rng = np.random.default_rng(2)
    g, shape = rng.normal(-1, 1, 20), Shape(total=2.0, slope=0.2, level=0.5)
    space = shaped(Directions(rng.normal(size=(20, 3))), g, shape, 1, np.arange(20))
    x = rng.normal(size=(40_000, 4)) / np.sqrt(space.precision)
    mean = sigmoid(x @ space.items.T.astype(float) + space.offset).mean(0)
    assert mean == pytest.approx(sigmoid(g), abs=0.02)


def test_trust_is_how_far_a_query_is_where_production_has_it() -> None:
    rng = np.random.default_rng(3)
    directions = Directions(rng.normal(size=(6, 2)), rng.normal(size=(5, 2)))
    space = shaped(directions, np.zeros(6), Shape(trust=0.5), 5, np.arange(6))
    assert directions.queries is not None
    assert np.array_equal(space.mean, np.column_stack([0.5 * directions.queries, np.zeros(5)]))


def test_products_of_pairs_are_those_of_the_matrix() -> None:
    rng = np.random.default_rng(4)
    x, y, q, d = rng.normal(size=(7, 5)), rng.normal(size=(9, 5)), rng.integers(0, 7, 50), rng.integers(0, 9, 50)
    assert products_at(x, y, q, d) == pytest.approx((x @ y.T)[q, d], abs=1e-5)
    assert products_at(x, np.asfortranarray(y), q, d) == pytest.approx((x @ y.T)[q, d], abs=1e-5)
