"""Impressions become `Feedback`: counted as they go by, some of them held out, by chance or as the last ones by time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.exact import SMALLEST_PROPENSITY
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions, Shown
from tandemrank.logs.schema import seconds
from tandemrank.logs.sums import Tally

Propensities = Callable[[Impressions], NDArray[np.float64]]


def from_impressions(
    parts: Iterable[Impressions], vocabulary: Vocabulary, *, propensities: Propensities | None = None
) -> Feedback:
    """Simulated impressions become feedback without a file."""
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary)[0]


def parts_of(
    parts: Iterable[Impressions],
    vocabulary: Vocabulary,
    shares: Sequence[float],
    *,
    seed: int = 0,
    propensities: Propensities | None = None,
) -> tuple[Feedback, ...]:
    """As `from_impressions`, with shares of the impressions held out by chance: the rest first, then a part for each share."""
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary, Split(tuple(shares), seed))


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


@dataclass(frozen=True)
class Split:
    """Which part of a log an impression is in: those that train, oldest first, then one for each share.

    By chance, a hash of the seed and the impression's number in the log, unless there are `bounds`: the time, and the hash
    among impressions of the same time, at which each later part begins. By time the first share has the last impressions,
    the second those just before.
    """

    shares: tuple[float, ...] = ()
    seed: int = 0
    bounds: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuses shares that leave nothing to train on."""
        if not (min(self.shares, default=0.0) >= 0 and sum(self.shares) < 1):
            got = " and ".join(map(str, self.shares))
            raise ConfigError(f"expected a share of impressions to hold out, 0 or more and below 1; got {got}.")

    @property
    def train(self) -> int:
        """The number of parts that train."""
        return len(self.bounds) + 1 - len(self.shares) if self.bounds else 1

    @property
    def parts(self) -> int:
        """The number of parts."""
        return self.train + len(self.shares)

    def by_time(self, times: NDArray[np.float64], train: int) -> "Split":
        """The same shares by time, the rest in `train` parts of equal numbers; by chance still where times tell no order.

        `times` are those of all impressions of the log, in Unix seconds; those without one (-inf) are the oldest.
        """
        ordered, N = np.sort(times), len(times)
        dated = ordered[np.isfinite(ordered)]
        if not len(dated) or dated[0] == dated[-1]:
            return self
        ends = [N - round(N * share) for share in np.cumsum(self.shares)]  # of what comes before each share
        rest = ends[-1] if ends else N
        train = min(train, max(rest, 1))
        starts = [rest * part // train for part in range(1, train)] + ends[::-1]
        return replace(self, bounds=tuple(self._bound(times, ordered, start) for start in starts))

    def _bound(self, times: NDArray[np.float64], ordered: NDArray[np.float64], start: int) -> tuple[float, float]:
        """The time and the hash of the impression at a place in the order of time; beyond all of them after the last."""
        if start >= len(times):
            return np.inf, 1.0
        time = ordered[start]
        drawn = np.sort(self._drawn(np.flatnonzero(times == time)))
        return float(time), float(drawn[start - np.searchsorted(ordered, time)])

    def _drawn(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        return random.uniforms(random.random_keys(self.seed, random.Stream.HELD_OUT, numbers))

    def part(self, numbers: NDArray[np.int64], times: pl.Series | None) -> NDArray[np.int64]:
        """The part of each impression, by its number in the log and its time.  Shapes: [n] each -> [n]."""
        drawn = self._drawn(numbers)
        if not self.bounds:
            chosen: NDArray[np.int64] = np.searchsorted(np.cumsum([*self.shares, 1.0]), drawn, side="right")
            return (1 + chosen) % self.parts
        time = np.full(len(numbers), -np.inf) if times is None else seconds(times).fill_null(-np.inf).to_numpy()
        place = np.zeros(len(numbers), np.int64)
        for start, hashed in self.bounds:
            place += (time > start) | ((time == start) & (drawn >= hashed))
        return np.where(place < self.train, place, self.train + self.parts - 1 - place)


WHOLE = Split()  # all impressions together


def tally(
    parts: Iterable[Shown], vocabulary: Callable[[], Vocabulary], split: Split = WHOLE, first: int = 0
) -> tuple[Feedback, ...]:
    """Counts impressions, those of each part of the split apart; `first` is the number of the first one in its log."""
    tallies = [Tally() for _ in range(split.parts)]
    number = first
    for shown in parts:
        if len(tallies) > 1:
            numbers = np.arange(number, number + len(shown.query))
            part = split.part(numbers, shown.time)
            for place, one in enumerate(tallies):
                chosen = part == place
                if number == first or chosen.any():  # of the first, each learns whether the log has propensities
                    one.add(shown.take(chosen))
        else:
            tallies[0].add(shown)
        number += len(shown.query)
    if number == first:
        raise LogError("expected a log with impressions; it is empty. Check the path and the filters that made it.")
    names = vocabulary()
    return tuple(one.feedback(names) for one in tallies)
