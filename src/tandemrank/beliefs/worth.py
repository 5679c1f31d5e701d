"""What a click on an item is worth: the belief of a value is the belief of a click times this.

    m_d = (S_d + kappa mu_d) / (C_d + kappa),    kappa = s^2 / tau^2        S_d the value of the item's C_d clicks

s^2 is how much the values of one item's clicks differ, tau^2 how much items differ beyond mu_d, both by their moments: a mean
of few clicks is pulled to mu_d, which is the mean of all clicks, or what the item's features say of it (ridge regression).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs.scorer import BeliefSpread, Believed, log_odds
from tandemrank.errors import LogError

Floats = NDArray[np.float64]
RIDGE = 1.0  # in clicks of a mean item
LEAST = 0.05  # of the mean value of a click: nothing that was clicked is worth less, or no list would show it again


def item_worth(gained: Floats, clicks: Floats, squares: Floats, numbers: NDArray[np.floating] | None = None) -> Floats:
    """The expected value of a click on every item.

    Of each item the values of its clicks, how many there are, the squares of the values, and perhaps numbers of its features.
    Shapes: gained, clicks, squares [D]; numbers [D, J] -> [D].
    """
    total, number = float(gained.sum()), float(clicks.sum())
    if not total > 0:
        raise LogError("expected clicks that were worth something to learn from; got none. Is it the right reward?")
    mean, seen = total / number, clicks > 0
    own = np.divide(gained, clicks, out=np.full_like(gained, mean), where=seen)
    prior = np.full_like(gained, mean)
    if numbers is not None and numbers.shape[1]:
        prior = np.maximum(_by_features(own - mean, clicks, np.asarray(numbers, np.float64)) + mean, LEAST * mean)
    within = max(float((squares - clicks * np.square(own)).sum()), 0.0) / max(number - float(seen.sum()), 1.0)
    between = (float(clicks @ np.square(own - prior)) - within * float(seen.sum())) / number
    kappa = max(within / max(between, 1e-6 * mean**2), 1e-6)  # of what was never clicked the prior is all
    found: Floats = np.maximum((gained + kappa * prior) / (clicks + kappa), LEAST * mean)
    return found


def by_worth(ranker: Believed, worth: Floats) -> Believed:
    """A belief by expected values: R times what a click on the item is worth, over that of the dearest item.

    Of remembered pairs exactly; of others the log-odds get the logarithm of it, which is near where R is small.
    Shapes: worth [D].
    """
    share, memory = worth / worth.max(), ranker.memory
    chance = 1 / (1 + np.exp(-memory.value.astype(np.float64)))
    more, nobody, items = np.log(share).astype(np.float32), ranker._nobody(), ranker.items.numpy().copy()
    items[:, -2:] += more[:, None]  # levels of items, for known queries and for others
    new = nobody.item.copy()
    new[-2:] += np.median(more)
    return Believed(
        ranker.queries.numpy(),
        items,
        BeliefSpread(ranker.around, ranker.query_spread.numpy(), ranker.item_spread.numpy(), ranker.sharpness),
        replace(memory, value=log_odds(chance * share[memory.item])),
        replace(nobody, item=new),
        ranker.f,
        ranker._both(),
    )


def _by_features(residual: Floats, clicks: Floats, numbers: Floats) -> Floats:
    """A ridge regression of what items are worth beyond the mean, each by its clicks.  Shapes: [D], [D], [D, J] -> [D]."""
    spread = numbers.std(0)
    X = (numbers - numbers.mean(0)) / np.where(spread > 0, spread, 1.0)
    strength = RIDGE * max(float(clicks.mean()), 1.0)
    A = (X * clicks[:, None]).T @ X + strength * np.eye(X.shape[1])
    found: Floats = X @ np.linalg.solve(A, X.T @ (clicks * residual))
    return found
