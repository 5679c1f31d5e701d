"""The fit by a group, each with some queries: what comes out is that of one who has all of them."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from grouped import in_group
from tandemrank.beliefs import choice, fitting, model_fit, noise, turns
from tandemrank.beliefs.belief import Beliefs, Chosen, merged
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features, KnownFeatures, PairTable
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.space import Vectors

Q, D, N = 60, 30, 1500
BOUNDS = (0, 13, 14, 60)  # parts of very different sizes


def counts_of(times: int = 1) -> Counts:
    rng = np.random.default_rng(0)
    query, item = rng.integers(Q, size=N), rng.integers(D, size=N)
    relevance = 1 / (1 + np.exp(1 - (rng.normal(size=(Q, 3)) @ rng.normal(size=(3, D)))))
    theta = 1 / (1 + rng.integers(3, size=N))
    clicks = (rng.random(N) < theta * relevance[query, item]).astype(np.float64)
    query[query == 20] = 21  # one query has no log
    return Counts.of_rows(
        query, item, theta, np.ones(N), clicks, impressions=np.bincount(query, minlength=Q).astype(np.float64), D=D,
        time=rng.integers(times, size=N) if times > 1 else None,
    )  # fmt: skip


def features() -> KnownFeatures:
    rng = np.random.default_rng(1)
    query, item = (pl.DataFrame({"size": rng.normal(size=n), "kind": rng.choice(list("abcd"), n)}) for n in (Q, D))
    pairs = np.unique(rng.integers(Q * D, size=300))
    table = PairTable(pairs // D, pairs % D, rng.normal(size=(len(pairs), 2)), ("near", "far"))
    return Features(query=query, item=item, pair=table).known(Q, D)


def by_a_group(counts: Counts, known: KnownFeatures, production: Vectors | None = None, **more: object) -> Beliefs:
    def own(group) -> Beliefs:
        first, stop = BOUNDS[group.rank : group.rank + 2]
        vectors = None if production is None else replace(production, queries=production.queries[first:stop])
        part = counts.of_queries(first, stop, group)
        return fit(part, known.of_queries(first, stop), production=vectors, **more)

    return merged(in_group(len(BOUNDS) - 1, own))


def assert_same(ours: Beliefs, theirs: Beliefs) -> None:
    q, pairs = np.arange(Q), (theirs.counts.query, theirs.counts.item)
    assert repr(ours.chosen.words) == repr(theirs.chosen.words)
    assert np.allclose(ours.matrix(q), theirs.matrix(q), atol=1e-5)
    for a, b in ((ours.at(*pairs), theirs.at(*pairs)), (ours.before(*pairs), theirs.before(*pairs))):
        assert np.allclose(a.mean if hasattr(a, "mean") else a[0], b.mean if hasattr(b, "mean") else b[0], atol=1e-5)
    assert np.allclose(ours.top(q, 5).toarray(), theirs.top(q, 5).toarray(), atol=1e-5)
    assert np.allclose(ours.query_spread, theirs.query_spread, rtol=1e-5)
    assert ours.counts.keys.tolist() == theirs.counts.keys.tolist()
    assert ours.notes == theirs.notes


@pytest.mark.parametrize("grades", [Grades.graded(0.3, 0.7), Grades.bit(0.8, 0.1)], ids=["graded", "bit"])
def test_with_features_of_everything(grades: Grades) -> None:
    f = model_fit.ModelChoice(("network", "linear"), (2, 2), (True, False))
    chosen = replace(Chosen.log(grades), f=f, rank=4)
    known = features()
    alone = fit(counts_of(), known, chosen=chosen, seed=3)
    assert alone.inputs.model is not None
    assert_same(by_a_group(counts_of(), known, chosen=chosen, seed=3), alone)


def test_constants_are_chosen_by_samples_of_the_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every sample that is taken of a long log; with times, and production's vectors."""
    for module, name in (
        (fitting, "SEARCH_PAIRS"), (turns, "WEIGHT_PAIRS"), (choice, "PAIRS"), (noise, "PAIRS"), (model_fit, "ENOUGH"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, 300)
    rng = np.random.default_rng(2)
    production = Vectors(*(rng.normal(size=(n, 3)).astype(np.float32) for n in (Q, D)))
    known, counts = Features().known(Q, D), counts_of(times=3)
    alone = fit(counts, known, production=production, seed=1)
    assert_same(by_a_group(counts, known, production, seed=1), alone)


def test_a_group_shares_the_search_and_chooses_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody tries all constants, by the held-out pairs of their own queries alone."""
    judged, tried = list[int](), fitting.judged

    def heard(fitted: turns.FittedBelief, held: turns.Part) -> turns.JudgedPairs:
        judged.append(len(held.counts.query))
        return tried(fitted, held)

    monkeypatch.setattr(fitting, "judged", heard)
    counts, known = counts_of(), Features().known(Q, D)
    alone = fit(counts, known, seed=2)
    of_one = sum(judged)
    judged.clear()
    together = by_a_group(counts, known, seed=2)
    assert repr(together.chosen.words) == repr(alone.chosen.words)
    assert sum(judged) == of_one > 0
