"""What contexts change: the likelihood by hand, pairs in a context by enumeration, shifts recovered, nothing invented."""

import math
from itertools import product

import numpy as np
import polars as pl
import pytest

from tandemrank.beliefs import contexts
from tandemrank.beliefs.contexts import ContextLog, in_contexts
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.fitting import fit
from tandemrank.logs import reading
from tandemrank.logs.contexts import Contexts
from tandemrank.policies.contexts import codes_of, places_of
from tandemrank.policies.features import Categorical

K = 3
THETA = 1 / np.arange(1, K + 1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# --- the likelihood ---------------------------------------------------------------------------------------------------


def test_the_likelihood_of_rows_with_a_shift_is_its_formula() -> None:
    rows = {"query": [0, 0, 0, 1], "item": [0, 0, 1, 0], "examined": [1.0, 0.5, 0.5, 1.0], "shown": [4.0, 2, 3, 5]}
    clicks, shift = np.array([3.0, 0, 1, 2]), np.array([7, 7, -12, 0], np.int8)
    columns = [np.array(x) for x in rows.values()]
    counts = Counts.of_rows(*columns, clicks, impressions=np.array([9.0, 5.0]), D=2, shift=shift)
    R = np.array([0.1, 0.6])
    found, best = counts.likelihood(R)
    for pair, own in enumerate(([0, 1], [2], [3])):
        for j, r in enumerate(R):
            expected = 0.0
            for i in own:
                p = sigmoid(math.log(r / (1 - r)) + shift[i] / 10) * rows["examined"][i]
                expected += clicks[i] * math.log(p) + (rows["shown"][i] - clicks[i]) * math.log(1 - p)
            assert math.log(found[pair, j]) + best[pair] == pytest.approx(expected, rel=1e-5)
    kept = counts.only(np.array([False, True, True]))
    assert kept.shift.tolist() == [-12, 0]
    assert np.allclose(kept.likelihood(R)[0], found[1:])
    without = Counts.of_rows(*columns, clicks, impressions=np.array([9.0, 5.0]), D=2)
    zero = Counts.of_rows(*columns, clicks, impressions=np.array([9.0, 5.0]), D=2, shift=np.zeros(4, np.int8))
    assert np.array_equal(zero.likelihood(R)[0], without.likelihood(R)[0])


def test_rows_of_one_pair_rank_and_shift_are_added_up() -> None:
    same = [np.zeros(3, np.int64), np.zeros(3, np.int64), np.ones(3), np.array([1.0, 2, 4]), np.array([1.0, 0, 0])]
    counts = Counts.of_rows(*same, impressions=np.array([7.0]), D=1, shift=np.array([3, -3, 3], np.int8))
    assert (counts.shown.tolist(), counts.shift.tolist()) == ([2, 5], [-3, 3])


# --- pairs in a context, by enumeration -------------------------------------------------------------------------------


def test_a_pair_in_its_contexts_is_the_sum_over_all_levels() -> None:
    """Two pairs, two contexts: every level of the pair, and in each context every level around it."""
    rng = np.random.default_rng(0)
    levels, spread, tenths = np.array([-2.0, -1.0, 0.0, 1.0]), 0.7, np.array([5, -10, 0, 5])
    table = rng.random((4, 4)).astype(np.float32)
    log_w = np.log(rng.dirichlet(np.ones(4), size=2)).astype(np.float32)
    pair = np.array([1, 0, 0, 1])
    groups = contexts._Groups(None, pair, np.zeros(4), np.arange(4, dtype=np.int32), table, np.zeros((4, 1), np.int64))
    found = contexts._Levels(levels, log_w, groups, tenths, table, np.argsort(pair, kind="stable"))
    likelihood, means = found.likelihood(spread), found.means(spread)
    for p in range(2):
        own = np.flatnonzero(pair == p)
        total, mean = 0.0, np.zeros(2)
        for j, a, b in product(range(4), repeat=3):
            weight = math.exp(log_w[p, j])
            for group, i in zip(own, (a, b), strict=True):
                centre = min(max(levels[j] + tenths[group] / 10, levels[0]), levels[-1])
                normal = [math.exp(-((x - centre) ** 2) / (2 * spread**2)) for x in levels]
                weight *= normal[i] / sum(normal) * float(table[i, group])
            total += weight
            mean += weight * sigmoid(levels[[a, b]])
        assert likelihood[p] == pytest.approx(math.log(total), rel=1e-5)
        assert means[own] == pytest.approx(mean / total, rel=1e-5)


def test_without_a_spread_a_level_is_shifted_between_its_neighbours() -> None:
    found = contexts._around(np.array([-1.0, 0.0, 1.0]), 0.25, 0.0)
    assert found == pytest.approx(np.array([[0.75, 0.25, 0], [0, 0.75, 0.25], [0, 0, 1]]))


# --- worlds -----------------------------------------------------------------------------------------------------------


def log_of(shift, *, Q=60, D=25, n=6000, seed=0, tied=False, single=0.0):
    """Random lists; what is relevant depends on the device by the item's shift, and by as much as single pairs differ."""
    rng = np.random.default_rng(seed)
    base = -1 + rng.normal(size=D) + 0.5 * rng.normal(size=(Q, D))
    R = sigmoid(base + np.asarray(shift)[:, None, :] + single * rng.normal(size=(len(shift), Q, D)))
    q = rng.integers(Q, size=n)
    device = (q % len(shift)) if tied else rng.integers(len(shift), size=n)
    items = np.argsort(rng.random((n, D)), axis=1)[:, :K]
    clicks = rng.random((n, K)) < THETA * R[device[:, None], q[:, None], items]
    names = pl.Series("device", [f"d{x}" for x in device])
    frame = pl.DataFrame(
        {"query_id": q, "items": items.tolist(), "clicks": clicks.astype(int).tolist(), "device": names}
    )
    return frame, R


def learned(frame, features=None, columns=("device",)):
    read = reading.read_parts(frame, context=columns)
    found = Contexts.of(read.train[0].vocabulary, columns)
    log = ContextLog.of(read.train, found)
    before = fit(Counts.of([found.pooled(read.train[0])], THETA), features, model="none")

    def again(counts):
        return fit(counts, features, model="none", chosen=before.chosen)

    return before, in_contexts(before, log, THETA, again)


def by_value(effects, names):
    return np.stack([effects.shift[:, effects.columns[0].values.index(name)] for name in names])


@pytest.mark.parametrize("tied", [False, True])
def test_shifts_of_items_are_recovered_also_where_every_query_has_one_device(tied) -> None:
    truth = np.random.default_rng(1).normal(size=(2, 25))
    truth -= truth.mean(0)
    frame, R = log_of(truth, tied=tied)
    before, found = learned(frame)
    shift = by_value(found.contexts, ["d0", "d1"])
    assert np.corrcoef(shift.ravel(), truth.ravel())[0, 1] > 0.9
    assert 0.6 < shift.std() / truth.std() < 1.2
    assert np.abs(shift.mean(0)).max() < 0.1  # the average context has no shift
    logit = [np.log(b.matrix(np.arange(60))[:, :-1] / (1 - b.matrix(np.arange(60))[:, :-1])) for b in (before, found)]
    errors = [np.abs(sigmoid(s + t) - R).mean() for s, t in ((logit[0], 0), (logit[1], shift[:, None, :]))]
    assert errors[1] < 0.7 * errors[0]


def test_features_say_what_a_new_item_is_in_a_context() -> None:
    z = np.random.default_rng(2).normal(size=(25, 2))
    truth = np.stack([z[:, 0], -z[:, 0]])
    _, found = learned(log_of(truth)[0], Features(item=z))
    weights = by_value_of(found.contexts, "d0")
    assert weights[0] > 0.5  # of a deviation of the first feature
    assert abs(weights[1]) < 0.2


def by_value_of(effects, name):
    return effects.by_item[:, effects.columns[0].values.index(name)]


def test_single_pairs_that_differ_are_remembered_in_their_context() -> None:
    frame, R = log_of(np.zeros((2, 25)), Q=15, n=12000, single=1.0)
    _, found = learned(frame)
    e = found.contexts
    assert e.spread >= 0.4
    device = np.array([int(e.columns[0].values[c - 1][1:]) for c in e.codes[:, 0]])
    truth = R[device, e.query, e.item]
    pooled = found.at(e.query, e.item).mean
    assert np.abs(sigmoid(e.value) - truth).mean() < 0.75 * np.abs(pooled - truth).mean()


def test_where_contexts_change_nothing_the_beliefs_stay_to_the_bit_and_it_is_said() -> None:
    before, found = learned(log_of(np.zeros((2, 25)))[0])
    assert found.contexts is None
    assert found.notes == ("The context (device) is not used: held-out pairs are not surely likelier with it.",)
    assert np.array_equal(before.matrix(np.arange(60)), found.matrix(np.arange(60)))


def test_two_columns_add_up() -> None:
    truth = np.random.default_rng(3).normal(size=(4, 25))
    truth = np.stack([truth[0] + truth[2], truth[0] + truth[3], truth[1] + truth[2], truth[1] + truth[3]])
    frame, _ = log_of(truth, n=12000)
    code = frame["device"].str.slice(1).cast(pl.Int64)
    frame = frame.with_columns(device=(code // 2).cast(pl.String), hour=code % 2)
    _, found = learned(frame, columns=("device", "hour"))
    e = found.contexts
    places = places_of(e.columns, codes_of(e.columns, pl.DataFrame({"device": list("0011"), "hour": list("0101")})))
    shift = np.stack([contexts.summed(e.shift, np.arange(25), np.tile(p, (25, 1))) for p in places])
    assert np.corrcoef(shift.ravel(), (truth - truth.mean(0)).ravel())[0, 1] > 0.9


def test_codes_are_by_how_frequent_a_value_is_and_places_follow_each_other() -> None:
    columns = Categorical("a", ("x", "y")), Categorical("b", ("u",))
    codes = codes_of(columns, pl.DataFrame({"a": ["y", "z", None, "x"], "b": ["u", "u", None, "v"]}))
    assert codes.tolist() == [[2, 1], [0, 1], [0, 0], [1, 0]]
    assert places_of(columns, codes).tolist() == [[1, 2], [3, 2], [3, 3], [0, 3]]
