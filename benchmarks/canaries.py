"""How often a live test is wrong, and how soon it is right: simulated canaries in plain NumPy, where the truth is known.

    python benchmarks/canaries.py [--canaries 1000] [--impressions 2000] [--share 0.5] [--seed 0] [--json]


Clicks of an impression are Binomial(K, rate / K); chance gives it to the new policy or to the old. Two questions:

    equal policies           how often is the new one rolled back, if one looks after every single impression?
    half of the clicks    how many impressions, of both policies, until the new one is rolled back?

The bet is that of `serving.verdict.LiveTest`, which a server asks.
"""

import argparse
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from _common import not_negative, options, positive, report
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.sequential import stakes_against_a_loss
from tandemrank.serving.verdict import LEVEL

K, RATE = 10, 0.5  # places, and clicks per impression of the old policy


@dataclass(frozen=True)
class Canaries:
    """Shares of canaries that were rolled back, of equal policies and of some with half the clicks; and when, of the latter.

    `rolled_back_after`: impressions of both policies until 50% and 95% of the bad ones were rolled back; None if fewer were.
    """

    canaries: int
    impressions: int
    share: float
    false_rollbacks: float
    false_promotions: float
    bad_policies: int
    rolled_back: float
    rolled_back_after: dict[str, float | None]


def measure(
    *, canaries: int = 1000, impressions: int = 2000, bad_policies: int = 200, share: float = 0.5, seed: int = 0
) -> Canaries:
    """Both questions."""
    rng = np.random.default_rng(seed)
    ends = [one(rng, RATE, impressions, share) for _ in range(canaries)]
    bad = [one(rng, RATE / 2, impressions, share) for _ in range(bad_policies)]
    when = np.array([n if decision == "roll back" else np.inf for decision, n in bad])
    after = {f"{q:.0%}": float(np.quantile(when, q, method="inverted_cdf")) for q in (0.5, 0.95)} if bad else {}
    wrong = [float(np.mean([decision == x for decision, _ in ends])) for x in ("roll back", "promote")]
    found = {q: n if np.isfinite(n) else None for q, n in after.items()}
    rolled_back = float(np.mean(np.isfinite(when)))
    return Canaries(
        canaries=canaries,
        impressions=impressions,
        share=share,
        false_rollbacks=wrong[0],
        false_promotions=wrong[1],
        bad_policies=bad_policies,
        rolled_back=rolled_back,
        rolled_back_after=found,
    )


def one(rng: np.random.Generator, new: float, impressions: int, share: float) -> tuple[str, int]:
    """A canary that is looked at after every impression: how it ended, and after how many."""
    arm, clicks = drawn(rng, new, impressions, share)
    worse, better = (_looks(arm, clicks, share, sign) for sign in (-1, 1))
    if worse.any():
        return "roll back", int(worse.argmax()) + 1
    return "promote" if better.any() else "continue", impressions


def drawn(
    rng: np.random.Generator, new: float, impressions: int, share: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who answered each impression (1: the new policy), and its clicks.  Shapes: -> [n], [n]."""
    arm = (rng.random(impressions) < share).astype(np.int64)
    return arm, rng.binomial(K, np.where(arm == 1, new, RATE) / K)


def _looks(arm: NDArray[np.int64], clicks: NDArray[np.int64], share: float, sign: int) -> NDArray[np.bool_]:
    """After which impressions the bet on "better" (sign 1) or "worse" (-1) has made 20 of 1.  Shapes: [n] -> [n].

    All looks of a canary at once; `LiveTest` says the same look by look, which a test compares.
    """
    Z = sign * np.where(arm == 1, (clicks - RATE) / share, -(clicks - RATE) / (1 - share))
    possible = np.concatenate([(np.arange(K + 1) - RATE) / share, -(np.arange(K + 1) - RATE) / (1 - share)])
    stakes = bounds.spread_stakes() if sign == 1 else stakes_against_a_loss(K, RATE, share)
    path = np.cumsum(np.log1p(stakes.fractions[:, None] * Z / -(sign * possible).min()), axis=1)
    found: NDArray[np.bool_] = stakes.log_mean(path) > np.log(1 / (1 - LEVEL))
    return found


def proportion(text: str) -> float:
    """Of the new policy: both must answer now and then."""
    found = float(text)
    if not 0.01 <= found <= 0.99:
        raise argparse.ArgumentTypeError(f"expected a share from 0.01 to 0.99; got {text}")
    return found


def main() -> None:
    """Measures and prints."""
    found = options(__doc__)
    found.add_argument("--canaries", type=positive, default=1000, help="simulated canaries of equal policies")
    found.add_argument("--impressions", type=positive, default=2000, help="impressions of a canary, each looked at")
    found.add_argument("--share", type=proportion, default=0.5, help="share of the new policy, 0.01 to 0.99")
    found.add_argument("--seed", type=not_negative, default=0)
    asked = found.parse_args()
    report(
        lambda _: measure(canaries=asked.canaries, impressions=asked.impressions, share=asked.share, seed=asked.seed),
        "simulating canaries",
        as_json=asked.json,
    )


if __name__ == "__main__":
    main()
