"""What `learn` gives, made by hand: Joint, which can be trusted, and Baseline, which the log cannot answer for."""

import numpy as np
import polars as pl

from tandemrank._base.ids import Vocabulary
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.bounds import value_terms
from tandemrank.offpolicy.comparison import Comparison
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.values import Sample, Value
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.checkpoint import Epoch
from tandemrank.training.config import LearningConfig
from tandemrank.training.loop import Trained
from tandemrank.training.parts import LogFacts
from tandemrank.training.results import Difference, Learned
from tandemrank.training.start import Start

TRUST, CARE, CANNOT = Verdict.TRUST, Verdict.CARE, Verdict.REFUSE
RESTS = Diagnostics(
    queries=90, impressions=1000.0, clicks=800.0, examined=2000.0, effective_sample_size=1234.0, largest_weight=9.0,
    largest_share=0.1, clipped=0.0, unsupported=0.123, lost_at_generator=0.1, lost_at_ranker=0.023, balance=0.98,
    balance_error=0.01,
)  # fmt: skip
SHOWN = Impressions(np.zeros(1, np.int32), np.zeros((1, 1), np.int32), np.zeros((1, 1), np.uint8))
LOG = counting.from_impressions([SHOWN], Vocabulary(pl.Series([1]), pl.Series([1])))
SAMPLE = Sample(queries=90, impressions=1000.0, level=0.95, independent="queries")


def value(size: float, verdict: Verdict, rests: Diagnostics | None = RESTS, half: float = 0.1) -> Value:
    """A value with its interval on both sides."""
    estimate = Estimate(np.array([size]), np.ones(1))
    found = Value(
        log=LOG,
        sample=SAMPLE,
        estimate=estimate,
        terms=value_terms(estimate),
        ceiling_terms=value_terms(estimate),
        verdict=verdict,
        reasons=("because <of> this",),
        diagnostics=rests,
    )
    found.__dict__.update(standard_error=half / 1.96, lower_bound=size - 0.3)  # what would be computed
    return found


JOINT, BASELINE = value(1.2, TRUST), value(1.1, CANNOT)
LIVE = value(0.8, Verdict.OBSERVED, None, 0.05)


def gap(
    method: str, against: str, size: float, verdict: Verdict = TRUST, new: Value = JOINT, old: Value = LIVE
) -> Difference:
    found = Comparison(
        new=new,
        old=old,
        difference=size,
        standard_error=0.05,
        interval=(size - 0.1, size + 0.1),
        over_queries=(size - 0.3, size + 0.3),
        lower_bound=size - 0.2,
        verdict=verdict,
        reasons=(),
    )
    return Difference(method, against, found)


def trained(*phases: tuple[str, list[float]]) -> Trained:
    """A pair whose phases have these objectives."""
    scorer = GivenScores(np.full((2, 60), float(len(phases))))
    pair = TwoStagePolicy(scorer, scorer, 50, 10, Vocabulary(pl.Series([1, 2]), pl.Series(range(60))))
    epochs = [Epoch(name, n + 1, x, 0.1, {}) for name, heard in phases for n, x in enumerate(heard)]
    return Trained(pair, tuple(epochs))


LEARNED = Learned(
    config=LearningConfig(list_length=10, candidates=50),
    start=Start(),
    log=LogFacts(5000.0, 90, 70, 3000, 4000.0, 10, 4000.0, 1000.0),
    propensity="fitted",
    propensity_reason="there are none",
    trained={
        "joint": trained(("both", [0.30, 0.32, 0.34, 0.36])),
        "baseline": trained(("one", [0.30, 0.32, 0.10, 0.10]), ("two", [0.3, 0.1, 0.1, 0.1])),
    },
    values={"joint": JOINT, "baseline": BASELINE},
    production=LIVE,
    differences=(
        gap("joint", "production", 0.4),
        gap("baseline", "production", 0.3, CANNOT, BASELINE),
        gap("joint", "baseline", 0.1, CANNOT, JOINT, BASELINE),
    ),
)
COMMAND = "tandemrank learn --logs 'a <b>'"
