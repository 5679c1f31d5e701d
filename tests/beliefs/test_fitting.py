"""Beliefs of small independent worlds: calibrated, ahead of production and of counting, of use for what has no history."""

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
import torch

from beliefs import lessons
from independent import worlds
from independent.worlds import World
from tandemrank._base.cluster import ALONE
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs import fitting, model_fit, models
from tandemrank.beliefs.belief import Beliefs, Chosen
from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.grades import Grades, sigmoid
from tandemrank.beliefs.levels import Levels
from tandemrank.beliefs.model import RewardModel
from tandemrank.beliefs.model_fit import ModelChoice
from tandemrank.beliefs.models import ProductModel
from tandemrank.beliefs.scorer import FLAT, ranker_of, sharpness_of
from tandemrank.beliefs.space import Vectors
from tandemrank.beliefs.turns import JudgedPairs
from tandemrank.errors import InputError, LogError

TIMES = 8


def counts_of(w: World) -> Counts:
    n, K = w.items.shape
    Q, D = w.R.shape
    return Counts.of_rows(
        np.repeat(w.query, K), w.items.ravel(), np.tile(w.theta, n), np.ones(n * K), w.clicks.ravel().astype(float),
        impressions=np.bincount(w.query, minlength=Q).astype(float), D=D, time=np.repeat(np.arange(n) * TIMES // n, K),
    )  # fmt: skip


@cache
def shop() -> tuple[World, Beliefs]:
    rng = np.random.default_rng(5)
    w = worlds.logged(worlds.graded("small shop", rng, queries=200, items=120, knows=0.5, cold=10), 12_000, rng)
    return w, fit(counts_of(w))


def judge(w: World, found: Beliefs) -> worlds.Judged:
    """By the items that the log knows."""
    return worlds.judge(w, lambda q: found.matrix(q)[:, :-1])


@pytest.mark.parametrize("n", [1, 7, 120, 500])
def test_the_items_that_promise_most_are_those_of_the_product_and_what_was_shown(n: int) -> None:
    """Their means are those of the matrix; of as many as there are items it is all of the matrix."""
    _, found = shop()
    q, c = np.array([5, 0, 199]), found.counts
    top, R = found.top(q, n), found.matrix(q)[:, :-1]
    x, y, level = found.product()
    for row, query in enumerate(q):
        own = c.item[c.query == query]
        s = x[query] @ y.T + level
        assert set(top[row].indices) == {*own, *np.argsort(-s)[:n]}
        assert top[row].data == pytest.approx(R[row, top[row].indices], rel=1e-5)
    assert top.has_sorted_indices
    assert (top.nnz == R.size) == (n >= c.D)


def test_unseen_pairs_are_believed_as_if_they_had_never_been_shown() -> None:
    _, found = shop()
    c = found.counts
    q, d = np.append(c.query[:50], 0), np.append(c.item[:50], np.setdiff1d(np.arange(c.D), c.item[c.query == 0])[0])
    s, v = found.before(q, d)
    assert found.unseen(q, d) == pytest.approx(found.chosen.grades.prior(s, v))
    assert found.unseen(q, d)[-1] == pytest.approx(found.at(q, d).mean[-1], rel=1e-3)  # it never was
    assert np.abs(found.unseen(q, d) - found.at(q, d).mean)[:-1].max() > 0.05


def test_true_clicks_are_above_production_and_above_counting() -> None:
    w, found = shop()
    ours, production = judge(w, found), worlds.judge_production(w)
    c = found.counts
    rate = np.bincount(c.item, c.C, c.D) / np.maximum(np.bincount(c.item, c.E, c.D), 1)
    table = np.tile(rate, (c.Q, 1))
    table[c.query, c.item] = (c.C + 5 * rate[c.item]) / (c.E + 5)
    counting = worlds.judge(w, lambda q: table[q])
    assert ours.all_items > 1.1 * production.all_items
    assert ours.all_items > 1.02 * counting.all_items
    assert ours.new_items > counting.new_items


def test_beliefs_of_shown_pairs_are_calibrated_by_decile_and_in_their_spread() -> None:
    w, found = shop()
    c = found.counts
    mean, variance = found.remembered
    R = w.R[c.query, c.item]
    cut = np.quantile(mean, np.linspace(0, 1, 11))
    decile = np.clip(np.searchsorted(cut, mean) - 1, 0, 9)
    errors = [abs(float(R[decile == k].mean() - mean[decile == k].mean())) for k in range(10)]
    assert np.mean(errors) < 0.1 * R.mean()
    z = (R - mean) / np.sqrt(variance)
    assert 0.85 < np.mean(np.abs(z) < 1.96) < 0.99


def test_mean_and_variance_of_some_items_are_those_of_the_matrix() -> None:
    w, found = shop()
    q = np.concatenate([w.known[:3], w.cold[:2]])
    D = w.R.shape[1]
    matrix, belief = found.matrix(q), found.at(np.repeat(q, D), np.tile(np.arange(D), len(q)))
    assert np.abs(belief.mean.reshape(len(q), D) - matrix[:, :D]).max() < 2e-3
    assert (belief.variance > 0).all()
    c = found.counts
    assert matrix[:, D] == pytest.approx(c.C.sum() / c.E.sum())  # an item that the log does not know is like any
    some = slice(0, len(c.query), 50)
    assert found.at(c.query[some], c.item[some]).variance == pytest.approx(found.remembered[1][some])


def test_the_product_for_a_generator_is_what_is_believed_of_pairs_never_shown() -> None:
    w, found = shop()
    x, y, level = found.product()
    q, d = np.repeat(w.known[:20], w.R.shape[1]), np.tile(np.arange(w.R.shape[1]), 20)
    s = found.before(q, d)[0]
    product = np.einsum("nf,nf->n", x[q], y[d]) + level[d]
    f = found.inputs.model
    if f is not None and not isinstance(f.model, ProductModel):  # then it is not among the vectors
        product += f.at(q, d)
    assert np.abs(product - s).max() < 0.05


def test_what_was_seen_long_ago_counts_less_where_relevance_changed() -> None:
    rng = np.random.default_rng(3)
    before, after = (worlds.graded("drift", rng, queries=100, items=60, K2=20, zipf=0.2) for _ in range(2))
    later = replace(before, R=after.R)
    parts = worlds.logged(before, 6_000, rng), worlds.logged(later, 6_000, rng)
    w = replace(
        later,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "items", "clicks")},
    )
    found = fit(counts_of(w))
    assert np.isfinite(found.chosen.half_life)
    steady = replace(counts_of(w), time=np.zeros_like(counts_of(w).time))
    assert judge(w, found).all_items > 1.02 * judge(w, fit(steady)).all_items


def test_the_same_seed_gives_the_same_beliefs() -> None:
    rng = np.random.default_rng(2)
    w = worlds.logged(worlds.graded("tiny", rng, queries=40, items=30, K2=20), 800, rng)
    a, b = (fit(counts_of(w), seed=3).matrix(np.arange(40)) for _ in range(2))
    assert np.array_equal(a, b)


def test_features_answer_queries_without_history() -> None:
    rng = np.random.default_rng(7)
    w = worlds.taste_and_features("small", rng, queries=300, items=150, shares=(0.5, 0, 1), cold=40)
    w = worlds.logged(w, 15_000, rng)
    without = judge(w, fit(counts_of(w)))
    known = fit(counts_of(w), Features(query=w.query_features, item=w.item_features))
    found = judge(w, known)
    assert known.chosen.f.names
    assert found.cold > 1.1 * without.cold
    assert found.all_items > 0.99 * without.all_items
    ranker, n = ranker_of(known), len(w.cold)
    columns = dict(zip(ranker.query_columns, w.query_features[w.cold].T, strict=True))
    own = pl.DataFrame({"query_id": range(1000, 1000 + n)} | columns)
    strangers = ranker.strangers(own, Vocabulary(range(1000, 1000 + n), range(ranker.D)))
    believed = np.argsort(-known.matrix(w.cold)[:, :-1], 1)[:, :10]
    for scores in (ranker(torch.as_tensor(w.cold)), strangers(torch.arange(n))):
        assert np.array_equal(np.argsort(-scores.numpy(), 1)[:, :10], believed)


def test_noise_for_features_costs_next_to_nothing() -> None:
    w, plain = shop()
    rng = np.random.default_rng(0)
    noise = Features(query=rng.normal(size=(len(w.R), 5)), item=rng.normal(size=(w.R.shape[1], 5)))
    found = judge(w, fit(counts_of(w), noise))
    assert found.all_items > 0.985 * judge(w, plain).all_items


def test_a_log_of_one_click_and_a_log_of_none_have_beliefs() -> None:
    rng = np.random.default_rng(0)
    w = worlds.logged(worlds.graded("tiny", rng, queries=5, items=12, K=3, K2=6), 12, rng)
    for clicks in (np.zeros_like(w.clicks), np.eye(12, 3, dtype=np.int64)[::1] * 0 + (np.arange(12) == 0)[:, None]):
        found = fit(counts_of(replace(w, clicks=clicks.astype(np.int64)))).matrix(np.arange(5))
        assert np.isfinite(found).all()
        assert ((found >= 0) & (found <= 1)).all()


def test_what_cannot_be_fitted_is_refused() -> None:
    nothing = np.zeros(0)
    empty = Counts.of_rows(
        nothing.astype(int), nothing.astype(int), nothing, nothing, nothing, impressions=np.zeros(2), D=4
    )
    with pytest.raises(LogError, match="expected a log with impressions"):
        fit(empty)
    w, _ = shop()
    with pytest.raises(InputError, match="expected vectors of 200 queries"):
        fit(counts_of(w), production=Vectors(np.ones((3, 2), np.float32), np.ones((120, 2), np.float32)))


def sparse(*, graded: bool) -> Counts:
    """A log that shows hardly a pair again, of relevance that is a bit, or that varies little around each item's mean."""
    rng = np.random.default_rng(4)
    Q, D, n = 500, 400, 30_000
    level = rng.normal(-2.5, 0.7, D)
    R = np.tile(worlds.sigmoid(level), (Q, 1))
    R = R if graded else (rng.random((Q, D)) < R).astype(float)
    query, item = rng.integers(0, Q, n), rng.integers(0, D, n)
    clicks = (rng.random(n) < R[query, item]).astype(float)
    return Counts.of_rows(
        query, item, np.ones(n), np.ones(n), clicks, impressions=np.bincount(query, minlength=Q).astype(float), D=D
    )


def test_pairs_that_were_shown_again_choose_the_bit_of_a_sparse_log() -> None:
    counts = sparse(graded=False)
    assert (counts.n >= 2).mean() < 0.08
    found = fit(counts)
    assert found.chosen.grades.is_bit
    clicked = counts.C > 0
    assert found.remembered[0][clicked].mean() > 0.85
    assert not fit(sparse(graded=True)).chosen.grades.is_bit


def test_half_of_the_pairs_shown_again_are_held_out_where_they_are_few() -> None:
    shares = {}
    for again in (2, 10, 90):
        n = np.where(np.arange(100) < again, 2.0, 1.0)
        counts = Counts.of_rows(
            np.zeros(100, int), np.arange(100), np.ones(100), n, np.zeros(100), impressions=np.ones(1), D=100
        )
        chance = fitting._held_out(counts)
        assert (chance[again:] == fitting.HELD_OUT).all()
        shares[again] = chance[0]
    assert shares == pytest.approx({2: 0.5, 10: 0.2, 90: fitting.HELD_OUT})


def test_a_gain_is_sure_by_two_of_its_standard_errors() -> None:
    assert model_fit.surely(np.full(5, 1.0))
    assert not model_fit.surely(np.full(4, 1.0))
    assert not model_fit.surely(np.zeros(0))


def test_how_often_an_item_is_shown_counts_from_when_it_first_was() -> None:
    item, time, n = np.array([0, 1, 2]), np.array([0, TIMES - 1, 0]), np.array([9.5, 9.5, 1.5])
    counts = Counts.of_rows(np.zeros(3, int), item, np.ones(3), n, np.zeros(3), impressions=np.ones(1), D=4, time=time)
    expected = np.array([np.log(10 / TIMES), np.log(10), np.log(2 / TIMES)])
    found = fitting._shown(counts, np.zeros((4, 0)))
    assert np.diff(found[:3]) == pytest.approx(np.diff(expected))
    assert found.mean() == pytest.approx(0)


def test_of_items_that_were_never_shown_new_ones_are_believed_by_their_features_and_disliked_ones_less() -> None:
    w, new = worlds.never_shown(1)
    rows, n = np.tile(w.theta, len(w.query)), w.items.size
    counts = Counts.of_rows(
        np.repeat(w.query, len(w.theta)), w.items.ravel(), rows, np.ones(n), w.clicks.ravel().astype(float),
        impressions=np.bincount(w.query, minlength=len(w.R)).astype(float), D=w.R.shape[1],
    )  # fmt: skip
    rate = float(counts.C.sum() / counts.E.sum())
    found = fit(counts, Features(item=w.item_features), chosen=Chosen.log(Grades.graded(rate, 0.25)), model="none")
    R, disliked = found.matrix(np.arange(len(w.R)))[:, :-1], (counts.by_item(counts.n) == 0) & ~new
    ratio = {name: R[:, some].mean() / w.R[:, some].mean() for name, some in (("new", new), ("disliked", disliked))}
    assert disliked.sum() > 10
    assert 0.8 < ratio["new"] < 1.25
    assert 0.5 < ratio["disliked"] < 1.25


def test_items_that_were_never_shown_lose_by_what_is_expected_of_production_and_are_less_known() -> None:
    counts = Counts.of_rows(
        np.zeros(2, int), np.arange(2), np.ones(2), np.array([5.0, 1.0]), np.zeros(2), impressions=np.ones(1), D=4
    )
    given = fitting._given(counts, Features().known(1, 4), Choice.of(counts), None, {})
    design = np.column_stack([np.ones(4), [2.0, -1.0, -2.0, 0.5]])
    before = np.array([0.0, 0.0, 0.0, 1.0])
    for by_shown, lost in ((0.1, 0.4), (0.5, 0.0)):
        levels = Levels(before=before, after=before, w=np.array([0.0, by_shown]), knowledge=8.0, evidence=0.0)
        less, variance = fitting._unseen_items(levels, replace(given, design=design))
        assert less == pytest.approx([0, 0, lost, 0])
        assert variance == pytest.approx([0, 0, 0.5, 1 / (8 * sigmoid(np.array(1.0)) * sigmoid(np.array(-1.0)))])


@pytest.mark.parametrize(("n", "is_bit"), [(4, False), (5, True)])
def test_the_bit_is_chosen_only_where_it_is_surely_likelier(n: int, is_bit: bool) -> None:
    """Held-out pairs that all gain the same: of four the sum is two of its standard errors, of five it is more."""
    counts = sparse(graded=True)
    given = fitting._given(counts, Features().known(counts.Q, counts.D), Choice.of(counts), None, {})
    held = np.arange(len(counts.query)) % 10 == 0
    search = fitting.Search(counts, np.zeros((len(counts.query), 3)), held, given, 0)

    def score(chosen: Chosen) -> JudgedPairs:
        return JudgedPairs(np.full(n, float(chosen.grades.is_bit)), np.zeros(n), np.eye(1))

    search.score = score  # type: ignore[method-assign]
    assert search.best(Grades.bit(0.9, 0.1)).grades.is_bit == is_bit


def test_vectors_of_production_that_know_how_queries_differ_are_of_use() -> None:
    rng = np.random.default_rng(6)
    Q, D, F = 300, 100, 3
    x, y = rng.normal(size=(Q, F)), rng.normal(size=(D, F))
    R = worlds.sigmoid(x @ y.T - 2.5)
    query, item = np.repeat(np.arange(Q), 30), rng.integers(0, D, 30 * Q)
    clicks = (rng.random(30 * Q) < R[query, item]).astype(float)
    counts = Counts.of_rows(query, item, np.ones(30 * Q), np.ones(30 * Q), clicks, impressions=np.full(Q, 30.0), D=D)
    # It knows how others differ, and of these queries nothing.
    others = np.concatenate([rng.normal(size=(Q - 200, F)), np.zeros((200, F))])
    found = fit(counts, production=Vectors(others.astype(np.float32), y.astype(np.float32)))
    alone = fit(counts)
    assert found.chosen.source == "production"

    def error(b: Beliefs) -> float:
        return float(np.abs(b.matrix(np.arange(Q))[:, :-1] - R)[Q - 200 :].mean())

    assert error(found) < 0.85 * error(alone)


def test_to_a_query_of_which_nothing_is_known_an_item_is_as_its_mean_relevance() -> None:
    w, found = shop()
    scorer = ranker_of(found)
    mean = found.matrix(found.counts.rows)[:, :-1].mean(0)
    unknown = scorer.strangers(None, Vocabulary([0], range(scorer.D)))(torch.arange(1)).numpy()[0]
    flat = np.sqrt(1 + FLAT * (scorer.around**2 + scorer.nobody.spread[0] * scorer.item_spread.numpy()))
    log_odds = np.log(mean / (1 - mean)) / flat
    assert np.corrcoef(unknown, log_odds)[0, 1] == pytest.approx(1, abs=1e-6)
    cold = scorer(torch.as_tensor(w.cold[:1])).numpy()[0]  # in the vocabulary, and not in the log
    assert np.corrcoef(cold, unknown)[0, 1] == pytest.approx(1, abs=1e-3)


def test_of_pairs_never_shown_the_opinion_stands_for_the_choice_unless_it_is_held_against_production() -> None:
    _, found = shop()
    inputs = found.inputs
    q, d = np.array([0, 3]), np.array([5, 7])
    opinion = np.einsum("nf,nf->n", inputs.opinion[0][q], inputs.opinion[1][d])
    choice = inputs.choice.at(q, d, 1.0)
    for w, weight in (((0.3, 0.2, 0.1), 0.5), ((0.3, -0.2, 0.1), -0.2)):
        other = replace(inputs, w=np.array(w), model=None)
        wanted = 0.3 * choice + weight * opinion - (other.centre @ other.w)[d]
        assert other.never(q, d) == pytest.approx(wanted)


def test_drawn_lists_lose_little_where_relevances_are_close_too() -> None:
    class Close:
        counts, top = shop()[1].counts, RewardModel.top

        def __init__(self, width: float) -> None:
            rng = np.random.default_rng(0)
            self.R = 0.5 + width * (rng.random((self.counts.Q, 51)) - 0.5)

        def matrix(self, q):
            return self.R[q]

    wide, close = (sharpness_of(Close(width)) for width in (0.99, 0.2))
    assert wide < close
    R = Close(0.2).R[:, :-1]
    theta, rng = 1 / np.arange(1, 11), np.random.default_rng(3)
    order = np.argsort(-(close * np.log(R / (1 - R)) + rng.gumbel(size=R.shape)), axis=1)[:, :10]
    drawn = (np.take_along_axis(R, order, 1) @ theta).mean()
    assert drawn > 0.985 * (-np.sort(-R, axis=1)[:, :10] @ theta).mean()


def test_how_much_queries_differ_goes_down_as_far_as_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other constants move once."""
    search = object.__new__(fitting.Search)
    search.rate, search.group = 0.1, ALONE
    monkeypatch.setattr(
        search, "score",
        lambda chosen: JudgedPairs(np.array([-chosen.total - chosen.rank]), np.zeros(1), np.zeros((1, 1))),
        raising=False,
    )  # fmt: skip
    start = Chosen.log(Grades.graded(0.1, 0.7))
    found, _ = search._moved(start, search.score(start), fitting.LOG_MOVES)
    assert found.total == pytest.approx(0.02)
    assert found.rank == start.rank // 2


def test_another_spread_needs_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    search = object.__new__(fitting.Search)
    search.rate, search.group = 0.1, ALONE
    for gain, wanted in ((1.0, 0.7), (-1.0, 0.7), (3.0, 2.5), (-3.0, 0.15)):
        terms = {spread: np.array([gain * k]) for k, spread in enumerate(fitting.SPREADS)}
        monkeypatch.setattr(
            search, "score",
            lambda c, terms=terms: JudgedPairs(terms[c.grades.spread], np.zeros(1), np.zeros((1, 1))),
            raising=False,
        )  # fmt: skip
        start = Chosen.log(Grades.graded(0.1, 0.7))
        found, _ = search._moved(start, search.score(start), fitting.FIRST_MOVES)
        assert found.grades.spread == wanted


def test_items_that_were_never_shown_take_no_part_in_the_search_and_change_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_items, searched = list[int](), fitting._searched

    def heard(search: fitting.Search, *rest: object) -> Chosen:
        of_items.append(search.counts.D)
        return searched(search, *rest)

    monkeypatch.setattr(fitting, "_searched", heard)
    rng = np.random.default_rng(6)
    counts = counts_of(
        worlds.logged(worlds.graded("small shop", rng, queries=60, items=80, knows=0.5, cold=10), 2_000, rng)
    )
    among = np.sort(np.random.default_rng(0).permutation(5_000)[: counts.D]).astype(np.int32)
    few = counts.of_items(counts.items)
    many = replace(few, item=among[few.item], D=5_000)
    with_all = fit(many)
    alone = fit(few, chosen=with_all.chosen)
    assert of_items == [few.D]
    pairs = [fitted.before(fitted.counts.query, fitted.counts.item)[0] for fitted in (with_all, alone)]
    assert np.corrcoef(pairs)[0, 1] > 0.97  # production's choice knows how many it left out


def test_f_of_all_items_is_kept_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, frames = lessons.counts_of(), lessons.TABLES
    grades = Grades.graded(float(counts.C.sum() / counts.E.sum()), 0.7)
    chosen = replace(Chosen.log(grades), rank=2, f=ModelChoice(("network",), (3,), (True, True)))
    known = Features.of(
        Vocabulary(range(lessons.Q), range(lessons.D)), query=frames["query"].with_row_index("query_id")
    )
    f = fit(counts, known, chosen=chosen).inputs.model
    assert f is not None
    q = np.array([5, 2, 5])
    first, kept = f.matrix(q[:2]), f.matrix(q)
    monkeypatch.setattr(models, "KEPT", 0)
    again = f.matrix(q)
    assert np.array_equal(kept, again)
    assert np.array_equal(kept[:2], first)


@pytest.mark.parametrize("knows", [0.1, 0.5, 0.9])
def test_what_was_never_shown_is_believed_less_by_what_production_knows(knows: float) -> None:
    """About as it truly is, whether production knows nothing, little or much."""
    rng = np.random.default_rng(8)
    w = worlds.logged(worlds.graded("never", rng, queries=300, items=200, knows=knows), 15_000, rng)
    found = fit(counts_of(w))
    c, R = found.counts, found.matrix(np.arange(300))[:, :-1]
    never = np.ones(R.shape, np.bool_)
    never[c.query, c.item] = False
    assert 0.7 < R[never].mean() / w.R[never].mean() < 1.35
