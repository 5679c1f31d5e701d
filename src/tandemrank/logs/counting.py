"""Impressions become `Feedback`: counted as they go by, some of them held out."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.exact import SMALLEST_PROPENSITY
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions, Shown
from tandemrank.logs.sums import Tally

Propensities = Callable[[Impressions], NDArray[np.float64]]


def from_impressions(
    parts: Iterable[Impressions], vocabulary: Vocabulary, *, propensities: Propensities | None = None
) -> Feedback:
    """Simulated impressions become feedback without a file."""
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary, (), 0)[0]


def split_impressions(
    parts: Iterable[Impressions],
    vocabulary: Vocabulary,
    held_out: float = 0.15,
    *,
    seed: int = 0,
    propensities: Propensities | None = None,
) -> tuple[Feedback, Feedback]:
    """As `from_impressions`, with the given share of the impressions held out: (for training, held out)."""
    used, apart = parts_of(parts, vocabulary, (held_out,), seed=seed, propensities=propensities)
    return used, apart


def parts_of(
    parts: Iterable[Impressions],
    vocabulary: Vocabulary,
    shares: Sequence[float],
    *,
    seed: int = 0,
    propensities: Propensities | None = None,
) -> tuple[Feedback, ...]:
    """The same with several shares apart: the rest first, then each of them."""
    check_shares(*shares)
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary, shares, seed)


def shown_items(part: Impressions, vocabulary: Vocabulary, propensities: Propensities | None) -> Shown:
    """Impressions without their padding."""
    K = part.items.shape[1]
    if part.items.max(initial=-1) >= len(vocabulary.item_ids) or part.query.max(initial=-1) >= len(
        vocabulary.query_ids
    ):
        raise LogError("impressions name positions that the vocabulary does not have. Pass the data set's vocabulary.")
    listed = (part.items >= 0).ravel()
    length = listed.reshape(-1, K).sum(1)
    item, click = part.items.ravel(), part.clicks.ravel()
    rank = np.tile(np.arange(K, dtype=np.int16), len(part.query))
    propensity = None if propensities is None else np.asarray(propensities(part), dtype=np.float64).ravel()
    if not listed.all():
        item, rank, click = item[listed], rank[listed], click[listed]
        propensity = None if propensity is None else propensity[listed]
    if propensity is not None and not ((propensity >= SMALLEST_PROPENSITY) & (propensity <= 1)).all():
        raise LogError(
            "expected propensities from 1e-12 to 1 of all that is shown; got others. Is it the logging policy?"
        )
    return Shown(part.query, length, None, item, rank, click, propensity)


def tally(
    parts: Iterable[Shown], vocabulary: Callable[[], Vocabulary], shares: Sequence[float], seed: int, first: int = 0
) -> tuple[Feedback, ...]:
    """Counts impressions: the rest first, then each held-out share apart.

    Which impressions are held out depends on the seed and on the number of the impression alone; `first` is that of the
    first one here.
    """
    tallies = [Tally() for _ in range(1 + len(shares))]
    bounds = np.cumsum([*shares, 1.0])
    number = first
    for shown in parts:
        if shares:
            numbers = np.arange(number, number + len(shown.query))
            drawn = random.uniforms(random.random_keys(seed, random.Stream.HELD_OUT, numbers))
            part = (1 + np.searchsorted(bounds, drawn, side="right")) % len(tallies)
            for place, one in enumerate(tallies):
                one.add(shown.take(part == place))
        else:
            tallies[0].add(shown)
        number += len(shown.query)
    if number == first:
        raise LogError("expected a log with impressions; it is empty. Check the path and the filters that made it.")
    names = vocabulary()
    return tuple(one.feedback(names) for one in tallies)


def check_shares(*shares: float) -> None:
    if not (min(shares, default=0.0) >= 0 and sum(shares) < 1):
        came = " and ".join(map(str, shares))
        raise ConfigError(f"expected a share of impressions to hold out, 0 or more and below 1; got {came}.")
