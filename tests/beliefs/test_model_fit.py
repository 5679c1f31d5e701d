"""Fitting f: the likelihood and its gradient against plain Python, what is chosen, and that more information does not hurt."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from beliefs.lessons import TABLES, D, Q, counts_of, lesson_of
from tandemrank.beliefs import fitting, model_fit
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.model_fit import (
    KNOWN,
    NEW_ITEM,
    NEW_QUERY,
    NO_MODEL,
    Fit,
    ModelChoice,
    choose,
    surely,
    train,
)
from tandemrank.beliefs.models import FeatureModel, InputModel


@pytest.mark.parametrize("grades", [Grades.bit(0.8, 0.1), Grades(np.array([0.1, 0.3, 0.6]), 0.7)])
def test_the_likelihood_and_its_gradient_are_those_of_plain_python(grades) -> None:
    L = np.array([[0.2, 1.0, 0.5], [1.0, 0.3, 0.01]])[:, : len(grades.R)].astype(np.float32)

    def plain(s: float, row: int) -> float:
        if grades.is_bit:
            w = [1.0, math.exp(s)]
        else:
            w = [math.exp(-((math.log(r / (1 - r)) - s) ** 2) / (2 * grades.spread**2)) for r in grades.R]
        return math.log(sum(a * b for a, b in zip(w, L[row].tolist(), strict=True)) / sum(w))

    s = np.array([-0.7, 0.4])
    value, slope, _ = grades.terms(s, L)
    for row, at in enumerate(s.tolist()):
        assert value[row] == pytest.approx(plain(at, row), abs=1e-5)
        assert slope[row] == pytest.approx((plain(at + 1e-5, row) - plain(at - 1e-5, row)) / 2e-5, abs=1e-4)


def lessons(
    features: Features | None = None, counts: Counts | None = None
) -> tuple[model_fit.Lesson, model_fit.Lesson]:
    """Three quarters of the pairs, and the rest to judge by."""
    whole = lesson_of(counts or counts_of(), features or Features(**TABLES), Grades.graded(0.3, 0.5))
    held = np.random.default_rng(1).random(len(whole.q)) < 0.25
    return whole.part(~held), whole.part(held)


def test_a_step_of_f_is_along_the_gradient_of_the_mean_log_likelihood(monkeypatch) -> None:
    """f = c for all pairs, one batch, a step of plain descent: its length is the slope of the mean, by differences."""
    lesson = lessons()[0]

    class Constant(InputModel):
        kind = "constant"

        def __init__(self) -> None:
            super().__init__((0, 0, 0))
            self.c = torch.nn.Parameter(torch.tensor(0.3))

        def forward(self, u: torch.Tensor, z: torch.Tensor, pair: torch.Tensor) -> torch.Tensor:
            return self.c.expand(len(u))

    def plain(matrices: list[Any], lr: float, *, decay: float, plain: list[Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD([*matrices, *plain], lr=lr)

    monkeypatch.setattr(model_fit, "Adam", plain)
    monkeypatch.setattr(model_fit, "BATCH", (10**9, 10**9))
    monkeypatch.setattr(model_fit, "RATE", 1.0)
    found = model_fit.descend(lesson, None, Constant(), decay=0.0, epochs=1, seed=0).model.c.item()

    def height(c: float) -> float:
        return float(lesson.grades.terms(lesson.s + c, lesson.L)[0].mean())

    assert found - 0.3 == pytest.approx((height(0.32) - height(0.28)) / 0.04, rel=0.02)


def test_a_kind_is_chosen_where_it_helps_and_none_where_there_is_nothing_to_find() -> None:
    among = {name: model_fit.LEARNERS[name] for name in ("linear", "towers")}
    assert choose(*lessons(), among, 0).names
    c = counts_of()
    rng = np.random.default_rng(5)
    noise = replace(c, clicks=rng.binomial(c.shown.astype(np.int64), 0.3).astype(np.float64))
    lesson, judge = lessons(counts=noise)
    lesson, judge = (replace(x, s=np.full(len(x.q), np.log(0.3 / 0.7))) for x in (lesson, judge))
    assert choose(lesson, judge, among, 0) == NO_MODEL


class Told(model_fit.Lesson):
    """A judge to whom f is the gain."""

    def gains(self, f):
        return f


def test_the_highest_gain_of_known_pairs_is_chosen_and_new_ones_decide_for_themselves() -> None:
    lesson, judge = lessons(Features())
    group = np.resize(np.array([KNOWN, NEW_QUERY, NEW_ITEM], np.int8), len(judge.q))
    judge = Told(**{**vars(judge), "group": group})

    def learner(known: float, query: float, item: float):
        gains = np.select([group == KNOWN, group == NEW_QUERY], [known, query], item)
        return 5, lambda a, b, n, seed: Fit(None, 3, gains)

    among = {"low": learner(1.0, 9.0, 9.0), "best": learner(2.0, 1.0, -1.0), "worst": learner(-1.0, 9.0, 9.0)}
    assert choose(lesson, judge, among, 0) == ModelChoice(("best",), (3,), (True, False))
    assert choose(lesson, judge, {"worst": among["worst"]}, 0) == NO_MODEL


def test_f_is_the_mean_of_kinds_that_err_apart() -> None:
    lesson, judge = lessons(Features())
    judge = replace(judge, group=np.full(len(judge.q), KNOWN, np.int8))
    good = judge.grades.terms(judge.s, judge.L)[1]  # along the slope every pair becomes likelier
    off = np.random.default_rng(0).normal(size=len(good)) * 0.5

    def learner(f):
        return 5, lambda a, b, n, seed: Fit(None, 3, f)

    among = {"one": learner(0.05 * good + off), "other": learner(0.05 * good - off), "apart": learner(-good)}
    assert sorted(choose(lesson, judge, among, 0).names) == ["one", "other"]
    _, f = model_fit._mean(judge, {name: fit_(None, None, 0, 0).f for name, (_, fit_) in among.items()})
    assert np.allclose(f, 0.05 * good)
    whole, _ = lessons()
    one, both = (
        train(ModelChoice(names, (2,) * len(names)), whole, model_fit.LEARNERS, 0)
        for names in (("linear",), ("linear", "network without features"))
    )
    other = train(ModelChoice(("network without features",), (2,)), whole, model_fit.LEARNERS, 0)
    q, d = np.arange(5), np.arange(5)
    assert np.allclose(both.at(q, d), (one.at(q, d) + other.at(q, d)) / 2, atol=1e-6)
    again = FeatureModel.from_spec(json.loads(json.dumps(both.spec())))
    again.load_state_dict(both.state_dict())
    assert np.array_equal(again.at(q, d), both.at(q, d))


def test_the_best_kind_may_be_better_without_the_users_columns() -> None:
    lesson, judge = lessons()
    seen = []

    def fit_(a, b, n, seed):
        seen.append(a.sizes)
        return Fit(None, 3, np.full(len(b.q), 1.0 if a.features else 2.0))

    told = Told(**{**vars(judge), "group": np.full(len(judge.q), KNOWN, np.int8)})
    assert choose(lesson, told, {"linear": (5, fit_)}, 0).names == ("linear without features",)
    assert seen == [lesson.sizes, (lesson.query.known + lesson.query.F, lesson.item.known + lesson.item.F, 0)]
    f = train(ModelChoice(("linear without features",), (3,)), lesson, model_fit.learners("linear"), 0)
    assert f.model.sizes == seen[1]
    assert np.isfinite(f.matrix(np.arange(Q))).all()


def test_sure_is_two_standard_errors() -> None:
    assert surely(np.array([1.0, 1.0, 1.0, 1.0, 0.5]))
    assert not surely(np.array([1.0, 1.0, 1.0, -0.5]))
    assert not surely(np.zeros(0))


def test_training_ends_with_the_weights_of_the_best_epoch() -> None:
    lesson, judge = lessons()
    epochs, learner = model_fit.learners("towers")["towers"]
    found = learner(lesson, judge, epochs, 0)
    with torch.no_grad():
        f = found.model(*judge.inputs()).numpy().astype(np.float64)
    assert np.allclose(f, found.f, atol=1e-5)
    assert judge.value(found.f) > 0
    assert 0 < found.epochs <= epochs


def test_f_is_left_out_where_the_whole_belief_does_not_surely_gain_by_it() -> None:
    # Vectors find in many showings of few pairs what features say.
    assert fit(counts_of(), Features(**TABLES), model="linear").inputs.model is None


def test_a_fit_with_every_kind_of_table_scores_all_queries(monkeypatch) -> None:
    monkeypatch.setattr(fitting, "surely", lambda *_: True)
    monkeypatch.setattr(fitting, "LEAST", -np.inf)
    counts = counts_of()
    found = fit(counts, Features(**TABLES), model="linear")
    scores = found.matrix(np.arange(Q))
    assert found.chosen.f.words.startswith("linear")
    assert found.notes == ()
    young, old = scores[1, 1 : D - 1], scores[Q - 2, 1 : D - 1]
    assert np.corrcoef(young, old)[0, 1] < 0
    assert np.isfinite(scores).all()
    x, y, level = found.product()
    assert (len(x), len(y), len(level)) == (Q, D, D)
    assert fit(counts, Features(**TABLES), model="none").inputs.model is None
