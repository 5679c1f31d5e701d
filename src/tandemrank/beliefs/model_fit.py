"""Fitting f by the likelihood of clicks and non-clicks, with all else that is known of s as an offset; and choosing its kind.

A kind is taken where held-out pairs of known queries and items are surely likelier with it than without. Whether it is used of
queries, and of items, that the log has not seen, say those that are held out altogether, each for itself: more information must
not hurt.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank._base.adam import Adam
from tandemrank._base.cluster import ALONE, Group
from tandemrank.beliefs.features import Floats32, PairNumbers, Side
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.models import (
    FeatureModel,
    InputModel,
    Linear,
    MeanModel,
    Network,
    Own,
    Towers,
    Trees,
    one_thread,
)
from tandemrank.errors import ConfigError

Floats = NDArray[np.float64]
Items = NDArray[np.integer]

EPOCHS, RATE = 24, 4e-3
BATCH, BATCHES = (64, 2048), 60  # pairs of a batch: so many that an epoch has 60 of them, if that allows it
PATIENCE = 4  # epochs without a gain after which training ends
ROUNDS, EVERY = 120, 10  # of trees, and after how many it is judged
LEAVES, LEAST = 15, 100  # of a tree, and pairs of a leaf
FOREST = 10  # leaves that the pairs must be enough for
ENOUGH, CHOOSING = 300_000, 120_000  # pairs that are enough to fit f, and to choose its kind
SURE = 2.0  # standard errors by which a choice must be better
KNOWN, NEW_QUERY, NEW_ITEM = 1, 2, 3  # groups of pairs that judge


@dataclass(frozen=True)
class Lesson:
    """Pairs to learn from, or to judge by.

    `known_q`, `known_d`: the first columns of the rows, without the pair's own clicks. `group`: why a pair is held out.
    `features`: whether the user's own columns are among the inputs.
    Shapes: q, d, s, group [n]; L [n, J]; known_q, known_d [n, .].
    """

    grades: Grades
    query: Side
    item: Side
    pairs: PairNumbers
    q: Items
    d: Items
    s: Floats
    L: Floats32
    known_q: Floats32
    known_d: Floats32
    group: NDArray[np.int8]
    features: bool = True

    def part(self, rows: NDArray[Any]) -> "Lesson":
        """Some of the pairs."""
        names = ("q", "d", "s", "L", "known_q", "known_d", "group")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def at_most(self, n: int, seed: int) -> "Lesson":
        """A random part of at most n pairs."""
        if len(self.q) <= n:
            return self
        return self.part(np.sort(np.random.default_rng(seed).permutation(len(self.q))[:n]))

    def together(self, group: Group) -> "Lesson":
        """Everybody's pairs, each with a row of its own for its query."""
        if group.size == 1:
            return self
        names = ("d", "s", "L", "known_q", "known_d", "group")
        columns: dict[str, Any] = {name: group.gather(getattr(self, name)) for name in names}
        rows = group.gather(self.query.rows.numpy()[self.q])
        n, own = len(rows), np.arange(len(self.q))
        query = self.query.with_rows(torch.from_numpy(rows), torch.ones(n, dtype=torch.bool))
        if pairs := self.pairs if self.pairs.width else None:
            numbers = pairs.at(*(torch.from_numpy(np.asarray(x, np.int64)) for x in (self.q, self.d))).numpy()
            pairs = pairs.of_rows(own * pairs.D + self.d, numbers).together(group, group.before(len(own))[0])
        return replace(self, **columns, q=np.arange(n), query=query, pairs=pairs or self.pairs)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """The columns of a query, an item and a pair."""
        if self.features:
            return self.query.width, self.item.width, self.pairs.width
        return self.query.known + self.query.F, self.item.known + self.item.F, 0

    def inputs(self, rows: Tensor | slice = slice(None)) -> tuple[Tensor, Tensor, Tensor]:
        """What a model sees of some pairs.  Shapes: -> [n, Ju], [n, Jz], [n, Jp]."""
        q, d = (torch.from_numpy(np.asarray(x, np.int64))[rows] for x in (self.q, self.d))
        found, sizes = [], self.sizes
        for side, index, known, size in (
            (self.query, q, self.known_q, sizes[0]), (self.item, d, self.known_d, sizes[1]),
        ):  # fmt: skip
            x = side.rows[index, :size]
            x[:, : known.shape[1]] = torch.from_numpy(known)[rows]
            found.append(x)
        return found[0], found[1], self.pairs.at(q, d)[:, : sizes[2]]

    def gains(self, f: Floats) -> Floats:
        """How much likelier pairs are with f than without.  Shapes: [n] -> [n]."""
        return self.grades.terms(self.s + f, self.L)[0] - self.grades.terms(self.s, self.L)[0]

    def value(self, f: Floats) -> float:
        """The gain of pairs of known queries and items, which choose.  Shapes: [n]."""
        return float(self.gains(f)[self.group == KNOWN].sum())


@dataclass(frozen=True)
class Fit:
    """A model, how long it was trained, and its values of the judge's pairs."""

    model: InputModel
    epochs: int
    f: Floats


def descend(lesson: Lesson, judge: Lesson | None, model: InputModel, *, decay: float, epochs: int, seed: int) -> Fit:
    """Adam on the likelihood; with a judge the weights of the epoch that it found best, without one those of the last."""
    generator = torch.Generator().manual_seed(seed)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimiser = Adam(matrices, RATE, decay=decay, plain=others)
    inputs, size = lesson.inputs(), int(np.clip(len(lesson.q) // BATCHES, *BATCH))
    seen = None if judge is None else judge.inputs()
    best, f, taken = 0.0, np.zeros(0 if judge is None else len(judge.q)), 0
    state = {name: t.clone() for name, t in model.state_dict().items()}
    for epoch in range(epochs):
        optimiser.lr = RATE * (1 - 0.9 * epoch / EPOCHS)
        for rows in torch.split(torch.randperm(len(lesson.q), generator=generator), size):
            found, own = model(*(x[rows] for x in inputs)), rows.numpy()
            slope = lesson.grades.terms(lesson.s[own] + found.detach().numpy(), lesson.L[own])[1]
            optimiser.zero_grad()
            found.backward(torch.from_numpy(-slope / len(own)).to(found.dtype))
            optimiser.step()
        if judge is None or seen is None:
            continue
        with torch.no_grad():
            now = model(*seen).numpy().astype(np.float64)
        if (value := judge.value(now)) > best:
            best, f, taken = value, now, epoch + 1
            state = {name: t.clone() for name, t in model.state_dict().items()}
        elif epoch + 1 - taken >= PATIENCE:
            break
    if judge is None:
        return Fit(model, epochs, f)
    model.load_state_dict(state)
    return Fit(model, taken, f)


def grow(lesson: Lesson, judge: Lesson | None, *, epochs: int, seed: int) -> Fit:
    """LightGBM with gradient and Hessian of the likelihood in s, the rest of s as the start."""
    import lightgbm

    trees = Trees(lesson.sizes, (lesson.query.known, lesson.item.known), lesson.query.F, 0)

    def objective(found: Floats, data: Any) -> tuple[Floats, Floats]:
        _, slope, h = lesson.grades.terms(lesson.s + found, lesson.L)
        return -slope, np.maximum(h, 0.02 * h.mean())

    settings = {
        "objective": objective, "learning_rate": 0.1, "num_leaves": LEAVES, "min_data_in_leaf": LEAST, "lambda_l2": 10.0,
        "feature_fraction": 0.7, "verbose": -1, "num_threads": 1, "seed": seed, "deterministic": True,
    }  # fmt: skip
    data = lightgbm.Dataset(trees.table(*lesson.inputs()), np.zeros(len(lesson.q)), free_raw_data=True)
    booster = lightgbm.train(settings, data, num_boost_round=epochs)
    taken, f = epochs, np.zeros(0)
    if judge is not None:
        table, taken, f, best = trees.table(*judge.inputs()), 0, np.zeros(len(judge.q)), 0.0
        for rounds in range(EVERY, epochs + 1, EVERY):
            now = np.asarray(booster.predict(table, num_iteration=rounds, num_threads=1), np.float64)
            if (value := judge.value(now)) > best:
                taken, f, best = rounds, now, value
    text = np.frombuffer(booster.model_to_string(num_iteration=max(taken, 1)).encode(), np.uint8).copy()
    trees.text = torch.from_numpy(text)
    return Fit(trees, taken, f)


def _torch(kind: Callable[[tuple[int, int, int]], InputModel], decay: float) -> "Learner":
    def fit(lesson: Lesson, judge: Lesson | None, epochs: int, seed: int) -> Fit:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = kind(lesson.sizes)
        return descend(lesson, judge, model, decay=decay, epochs=epochs, seed=seed)

    return fit


Learner = Callable[[Lesson, Lesson | None, int, int], Fit]
LEARNERS: dict[str, tuple[int, Learner]] = {
    "linear": (EPOCHS, _torch(Linear, 0.3)),
    "towers": (EPOCHS, _torch(Towers, 0.6)),
    "network": (EPOCHS, _torch(Network, 0.6)),
    "trees": (ROUNDS, lambda a, b, n, seed: grow(a, b, epochs=n, seed=seed)),
}
KINDS = ("none", "linear", "towers", "network", "trees")  # by name
WITHOUT = " without features"  # a kind that sees production's opinion and counts alone
AGAIN = 2  # kinds that are tried without features, too: the best
FEW = ("linear", "network")  # what is tried where the user has no features
MEMBERS, PLUS = 3, " + "  # kinds whose mean f is, at most


def own(module: nn.Module) -> dict[str, tuple[int, Learner]]:
    """The user's own module as the only kind: every fit is of a copy, and begins with its weights as they were given."""

    def fit(lesson: Lesson, judge: Lesson | None, epochs: int, seed: int) -> Fit:
        model = Own(lesson.sizes, copy.deepcopy(module))
        if not any(p.requires_grad for p in model.parameters()):  # made elsewhere: it stays as it is
            return Fit(model, 1, np.zeros(0) if judge is None else model(*judge.inputs()).double().numpy())
        return descend(lesson, judge, model, decay=0.15, epochs=epochs, seed=seed)

    return {"own": (EPOCHS, fit)}


def learners(wanted: str | nn.Module | None) -> dict[str, tuple[int, Learner]]:
    """What may be chosen: all that is installed, one kind by its name, or the user's own module; "none" is no model."""
    if isinstance(wanted, nn.Module):
        return own(wanted)
    if wanted not in (None, *KINDS):
        raise ConfigError(
            f"model: expected {', '.join(KINDS)}, or the class of a module of your own (--plugin); got {str(wanted)[:60]!r}."
        )
    installed = {k: v for k, v in LEARNERS.items() if k != "trees" or find_spec("lightgbm") is not None}
    if wanted == "trees" and wanted not in installed:
        raise ConfigError("model: trees need LightGBM. Install it: pip install 'tandemrank[trees]'.")
    return {k: v for k, v in installed.items() if wanted is None or k == wanted}


@dataclass(frozen=True)
class ModelChoice:
    """The kinds whose mean f is, how long each is trained, and whether f is used of new queries and of new items."""

    names: tuple[str, ...] = ()
    epochs: tuple[int, ...] = ()
    of_new: tuple[bool, bool] = (False, False)

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        return PLUS.join(self.names) or "none"


NO_MODEL = ModelChoice()


def choose(
    lesson: Lesson, judge: Lesson, among: dict[str, tuple[int, Learner]], seed: int, group: Group = ALONE
) -> ModelChoice:
    """The kinds of f; none where none surely helps. The best kinds are tried without the user's columns, too.

    `group`: who shares the work.

    The mean of some kinds is likelier than each of them, as they err apart: the best is joined by the one that helps most.
    """
    lesson = lesson.at_most(CHOOSING, seed)
    tried: dict[str, tuple[int, Floats]] = {}  # epochs, and f of the judge's pairs

    def attempt(name: str, lesson: Lesson, judge: Lesson) -> tuple[int, Floats]:
        epochs, fit = among[name.removesuffix(WITHOUT)]
        found = fit(lesson, judge, epochs, seed)
        return found.epochs, found.f

    def attempts(names: list[str], lesson: Lesson, judge: Lesson) -> None:
        found = group.shared([partial(attempt, name, lesson, judge) for name in names])
        tried.update((name, one) for name, one in zip(names, found, strict=True) if one[0])

    narrow = replace(lesson, features=False), replace(judge, features=False)
    has_features = lesson.sizes != narrow[0].sizes
    with one_thread():
        names = [name for name in among if has_features or name in FEW or FEW[0] not in among]
        enough = len(lesson.q) >= FOREST * LEAST
        attempts([name for name in names if name != "trees" or enough], lesson, judge)
        best = sorted(tried, key=lambda name: -judge.value(tried[name][1]))[:AGAIN]
        attempts([name + WITHOUT for name in best if has_features and name != "own"], *narrow)
    members, f = _mean(judge, {name: f for name, (_, f) in tried.items()})
    gains = judge.gains(f)
    known, *of_new = (surely(gains[judge.group == g]) for g in (KNOWN, NEW_QUERY, NEW_ITEM))
    if not known:
        return NO_MODEL
    return ModelChoice(members, tuple(tried[name][0] for name in members), (of_new[0], of_new[1]))


def _mean(judge: Lesson, tried: dict[str, Floats]) -> tuple[tuple[str, ...], Floats]:
    """The kinds whose mean the judge finds best, one after the other, and that mean."""
    members: tuple[str, ...] = ()
    f, best = np.zeros(len(judge.q)), 0.0
    while len(members) < MEMBERS:
        means = {name: (len(members) * f + tried[name]) / (len(members) + 1) for name in tried if name not in members}
        values = {name: judge.value(mean) for name, mean in means.items()}
        name = max(values, key=lambda name: values[name], default=None)
        if name is None or values[name] <= best:
            break
        members, f, best = (*members, name), means[name], values[name]
    return members, f


def surely(gains: Floats, group: Group = ALONE) -> bool:
    """Whether the sum of everybody's gains is above 0 by two of its standard errors.  Shapes: [n]."""
    total, squares = group.total(gains.sum(), np.square(gains).sum())
    return bool(total > SURE * np.sqrt(squares))


def train(
    choice: ModelChoice, lesson: Lesson, among: dict[str, tuple[int, Learner]], seed: int, group: Group = ALONE
) -> FeatureModel:
    """The models of the kinds and lengths that were chosen, and their mean. `group`: who shares the work."""
    lesson = lesson.at_most(ENOUGH, seed)

    def one(name: str, epochs: int) -> InputModel:
        own = replace(lesson, features=not name.endswith(WITHOUT))
        return among[name.removesuffix(WITHOUT)][1](own, None, epochs, seed).model

    with one_thread():
        members = group.shared([partial(one, *kind) for kind in zip(choice.names, choice.epochs, strict=True)])
    model = members[0] if len(members) == 1 else MeanModel(members)
    model.requires_grad_(False)
    return FeatureModel(model, lesson.query, lesson.item, lesson.pairs, choice.of_new)
