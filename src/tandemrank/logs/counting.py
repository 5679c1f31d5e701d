"""Impressions become `Feedback`: counted as they go by, some of them held out, by chance or as the last ones by time."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import FlatImpressions, Impressions, Propensities, flattened
from tandemrank.logs.sums import Tally


def from_impressions(
    parts: Iterable[Impressions], vocabulary: Vocabulary, *, propensities: Propensities | None = None
) -> Feedback:
    """Simulated impressions become feedback without a file."""
    return parts_of(parts, vocabulary, (), propensities=propensities)[0]


def parts_of(
    parts: Iterable[Impressions],
    vocabulary: Vocabulary,
    shares: Sequence[float],
    *,
    seed: int = 0,
    propensities: Propensities | None = None,
) -> tuple[Feedback, ...]:
    """As `from_impressions`, with shares of the impressions held out by chance: the rest first, then a part for each share."""
    shown = (flattened(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary, Split(tuple(shares), seed))


@dataclass(frozen=True)
class Split:
    """Which part of a log an impression is in: those that train, oldest first, then one for each share.

    By chance, a hash of the seed and the impression's number in the log, unless `in_time` has the part of every impression:
    the first share has the last impressions, the second those just before, and there are `train` parts of the rest.
    `period`: the first and the last time of the log, in Unix seconds, where it has any.
    """

    shares: tuple[float, ...] = ()
    seed: int = 0
    train: int = 1
    in_time: NDArray[np.int16] | None = None
    period: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuses shares that leave nothing to train on."""
        if not (min(self.shares, default=0.0) >= 0 and sum(self.shares) < 1):
            got = " and ".join(map(str, self.shares))
            raise ConfigError(f"expected a share of impressions to hold out, 0 or more and below 1; got {got}.")

    @property
    def parts(self) -> int:
        """The number of parts."""
        return self.train + len(self.shares)

    def by_time(self, times: NDArray[np.float64], train: int) -> "Split":
        """The same shares by time, the rest in `train` parts of equal numbers; by chance still where times tell no order.

        `times` are those of all impressions of the log, in Unix seconds; those without one (-inf) are the oldest.
        """
        N, dated = len(times), times[np.isfinite(times)]
        if not len(dated):
            return self
        period = float(dated.min()), float(dated.max())
        if period[0] == period[1]:
            return replace(self, period=period)
        ends = [N - round(N * share) for share in np.cumsum(self.shares)]  # of what comes before each share
        rest = ends[-1] if ends else N
        train = min(train, max(rest, 1))
        starts = [rest * part // train for part in range(train)] + ends[::-1]
        oldest_first = [*range(train), *range(train + len(ends) - 1, train - 1, -1)]
        order = np.lexsort((self._drawn(np.arange(N)), times))  # chance orders impressions of the same time
        part = np.empty(N, np.int16)
        part[order] = np.repeat(oldest_first, np.diff(starts, append=N))
        return replace(self, train=train, in_time=part, period=period)

    def _drawn(self, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
        return random.uniforms(random.random_keys(self.seed, random.Stream.HELD_OUT, numbers))

    def part(self, numbers: NDArray[np.int64]) -> NDArray[np.integer]:
        """The part of each impression, by its number in the log.  Shapes: [n] -> [n]."""
        if self.in_time is not None:
            return self.in_time[numbers]
        chosen: NDArray[np.int64] = np.searchsorted(np.cumsum([*self.shares, 1.0]), self._drawn(numbers), side="right")
        return (1 + chosen) % self.parts


WHOLE = Split()  # all impressions together


def tally(
    parts: Iterable[FlatImpressions], vocabulary: Callable[[], Vocabulary], split: Split = WHOLE, first: int = 0
) -> tuple[Feedback, ...]:
    """Counts impressions, those of each part of the split apart; `first` is the number of the first one in its log."""
    tallies = [Tally() for _ in range(split.parts)]
    number = first
    for shown in parts:
        if len(tallies) > 1:
            numbers = np.arange(number, number + len(shown.query))
            part = split.part(numbers)
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
