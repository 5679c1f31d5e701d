"""How many candidates? The value of a policy against K2, what its re-ranker costs there, and which stage loses what.

    generator's loss    U(re-ranker over all items) - U(re-ranker behind this generator)
    re-ranker's loss    U(the belief's order of the same candidates) - U(this re-ranker's order)

All of them are valued on one log, by the same propensities and the same races, so their differences are paired.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from tandemrank._base.arguments import checked
from tandemrank._base.results import Result
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.comparison import compare_values
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.strangers import Shown
from tandemrank.offpolicy.valuation import estimate_all
from tandemrank.offpolicy.values import Value
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies import candidates as retrieval
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

ENOUGH = 0.99  # of the clicks of the most candidates, surely: then a smaller K2 is as good
TIMED = 30  # requests that are timed, one by one
EVERYTHING = 20_000_000  # pairs that a re-ranker is asked about at most to know what it would do over all items


@dataclass(frozen=True)
class Loss:
    """Clicks per impression that are lost, with the paired interval."""

    value: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class CandidateCount:
    """One number of candidates: its value, the share of the clicks that it keeps of the most candidates', what the re-ranker
    costs, and what each stage loses; None where that is not known. `seconds`: of the re-ranker, per 1,000 requests."""

    candidates: int
    value: float
    interval: tuple[float, float]
    kept: float
    kept_interval: tuple[float, float]
    seconds: float
    generator_loss: Loss | None
    ranker_loss: Loss | None


@dataclass(frozen=True, kw_only=True, repr=False)
class CandidateCurve(Result):
    """The value against the number of candidates, fewest first. `everything`: of the re-ranker over all items."""

    drawn_by = "how_many"

    counts: tuple[CandidateCount, ...]
    everything: float | None
    verdict: Verdict
    reasons: tuple[str, ...]

    def _lines(self) -> list[str]:
        return [self.sentence, f"{self.verdict}: {'; '.join(self.reasons)}"]

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "candidates": one.candidates, "value": one.value, "low": one.interval[0], "high": one.interval[1],
                "kept": one.kept, "seconds": one.seconds,
            }
            for one in self.counts
        ]  # fmt: skip

    @property
    def enough(self) -> CandidateCount:
        """The fewest candidates that surely keep 99% of the clicks of the most."""
        return next((one for one in self.counts if one.kept_interval[0] >= ENOUGH), self.counts[-1])

    @property
    def sentence(self) -> str:
        """The answer in a line."""
        found, most = self.enough, self.counts[-1]
        if found is most:
            return f"Fewer candidates than {most.candidates:,} may lose more than {1 - ENOUGH:.0%} of its clicks."
        low, high = found.kept_interval
        return (
            f"K2 = {found.candidates:,} keeps {found.kept:.1%} [{low:.1%}, {high:.1%}] of what {most.candidates:,} candidates "
            f"get, with {found.candidates / most.candidates:.0%} of the scored items and "
            f"{found.seconds / most.seconds:.0%} of the re-ranker's time."
        )

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        return asdict(self) | {"enough": self.enough.candidates, "sentence": self.sentence}


@checked
def estimate_candidates(
    policy: TwoStagePolicy,
    log: Source | Feedback,
    candidates: Sequence[int],
    question: Question | None = None,
    *,
    belief: Scorer | None = None,
    most_likely: bool = False,
    **switches: Any,
) -> CandidateCurve:
    """The value of a policy with each of these numbers of candidates, what its re-ranker costs, and what each stage loses.

    `belief`: the re-ranker of a policy that `learn` made of another log, for the loss of a re-ranker that is none.
    `most_likely`: of most likely lists, not of drawn ones. Log and question as in `estimate`.
    """
    D = len(policy.vocabulary.item_ids)
    counts = _checked(candidates, policy)
    asked = Question.of(question, switches)
    pairs = len(policy.vocabulary.query_ids) * D
    sides = [replace(policy, K2=n) for n in (*counts, *([D] if pairs <= EVERYTHING else []))]
    believed = [] if belief is None else [replace(policy, ranker=belief, K2=n) for n in counts]
    every: list[Shown] = [MostLikely(one) if most_likely else one for one in (*sides, *believed)]
    values = estimate_all(every, log, asked)
    whole, most = values[len(counts)] if len(sides) > len(counts) else None, values[len(counts) - 1]
    found = [
        _count(
            n,
            value,
            most,
            seconds=rerank_seconds(side),
            generator=None if whole is None else _loss(whole, value),
            ranker=None if belief is None else _loss(values[len(sides) + place], value),
        )
        for place, (n, value, side) in enumerate(zip(counts, values, sides, strict=False))
    ]
    return CandidateCurve(
        counts=tuple(found),
        everything=None if whole is None else whole.value,
        verdict=most.verdict,
        reasons=most.reasons,
    )


def _checked(candidates: Sequence[int], policy: TwoStagePolicy) -> list[int]:
    """Numbers of candidates, each once, fewest first."""
    D = len(policy.vocabulary.item_ids)
    if not candidates or any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in candidates):
        raise ConfigError(f"candidates: expected whole numbers, such as 20, 50 and 100; got {candidates!r:.60}.")
    if wrong := [n for n in candidates if not policy.K <= n <= D]:
        raise PolicyError(
            f"candidates: expected numbers from {policy.K}, the places of a list, to {D}, the items; got {wrong[0]}."
        )
    return sorted({int(n) for n in candidates})


def _loss(better: Value, value: Value) -> Loss:
    found = compare_values(better, value)
    return Loss(found.difference, found.interval)


def _count(
    n: int, value: Value, most: Value, *, seconds: float, generator: Loss | None, ranker: Loss | None
) -> CandidateCount:
    lost = _loss(most, value)
    total = most.value if most.value > 0 else np.nan
    return CandidateCount(
        candidates=n,
        value=value.value,
        interval=value.interval,
        kept=1 - lost.value / total,
        kept_interval=(1 - lost.interval[1] / total, 1 - lost.interval[0] / total),
        seconds=seconds,
        generator_loss=generator,
        ranker_loss=ranker,
    )


def rerank_seconds(policy: TwoStagePolicy) -> float:
    """Seconds in which the re-ranker scores the candidates of 1,000 requests, one at a time: the median of some."""
    some = np.unique(np.linspace(0, len(policy.vocabulary.query_ids) - 1, TIMED).astype(np.int64))
    items = torch.from_numpy(np.maximum(retrieval.top(policy, some), 0).astype(np.int64))
    taken = []
    with torch.no_grad():
        for q, asked in zip(torch.from_numpy(some), items, strict=True):
            start = time.perf_counter()
            policy.ranker.score(q[None], asked[None])
            taken.append(time.perf_counter() - start)
    return 1000 * float(np.median(taken))
