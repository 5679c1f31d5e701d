"""Features as numbers: categories, missing values, constant columns, wrong sizes."""

import numpy as np
import polars as pl
import pytest

from graded import Features
from tandemrank.errors import InputError


def test_columns_of_every_kind_have_a_defined_answer() -> None:
    items = pl.DataFrame(
        {
            "price": [1.0, None, 3.0, 2.0],
            "same": [5, 5, 5, 5],
            "kind": ["a", "b", None, "a"],
            "new": [True, False, True, False],
        }
    )
    u, z = Features(item=items).encoded(3, 4)
    assert u.shape == (3, 0)
    assert np.isfinite(z).all()
    price, missing, same = z[:, 0], z[:, 1], z[:, 2]
    assert price[1] == 0
    assert missing[1] == missing.max() > missing[0]
    assert not same.any()
    assert z.shape[1] == 2 + 1 + 3 + 1


def test_a_table_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="expected features of 4 items"):
        Features(item=np.zeros((3, 2))).encoded(3, 4)
