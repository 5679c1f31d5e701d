"""f: models over features of queries and items, fitted by the likelihood of clicks and non-clicks, the rest as an offset.

    linear     u' A z + a . z                        u, z the features of query and item
    towers     <g(u), h(z)> + a . h(z)               two networks of one hidden layer
    trees      LightGBM on (u, z, u * z, counts), with the likelihood's own gradient and Hessian          (extra `trees`)

A model sees pairs, s as far as it is known, and L; how long it is trained is chosen on pairs and queries that are held out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tandemrank.beliefs.grades import Floats32, Grades

Floats = NDArray[np.float64]
Items = NDArray[np.integer]

EPOCHS, BATCH = 24, 2048
PATIENCE = 4  # epochs without a gain after which training ends
ROUNDS = 120  # of trees
ROWS = 64  # queries whose items trees score at once


class Model(Protocol):
    """What a model of features must do."""

    def at(self, q: Items, d: Items) -> Floats:
        """f of pairs.  Shapes: [n] each -> [n]."""

    def matrix(self, q: Items) -> Floats:
        """f of all items.  Shapes: q [B] -> [B, D]."""


@dataclass(frozen=True)
class Lesson:
    """Pairs to learn from.  Shapes: q, d, s [n]; L [n, J]; u [Q, J]; z [D, J]; known_q [Q, .], known_d [D, .], counts."""

    grades: Grades
    q: Items
    d: Items
    s: Floats
    L: Floats32
    u: Floats
    z: Floats
    known_q: Floats
    known_d: Floats

    def part(self, rows: NDArray[np.bool_]) -> "Lesson":
        """Some of the pairs."""
        return Lesson(
            grades=self.grades, q=self.q[rows], d=self.d[rows], s=self.s[rows], L=self.L[rows], u=self.u, z=self.z,
            known_q=self.known_q, known_d=self.known_d,
        )  # fmt: skip


@dataclass(frozen=True)
class Product:
    """f as a product of vectors: <a_q, b_d>.  Shapes: a [Q, F]; b [D, F]."""

    a: Floats
    b: Floats

    def at(self, q: Items, d: Items) -> Floats:
        """f of pairs."""
        found: Floats = np.einsum("nf,nf->n", self.a[q], self.b[d])
        return found

    def matrix(self, q: Items) -> Floats:
        """f of all items."""
        return self.a[q] @ self.b.T


class _Towers(nn.Module):
    """Two networks whose product is f; without hidden layers a bilinear form."""

    def __init__(self, u: int, z: int, hidden: int, out: int) -> None:
        super().__init__()

        def tower(n: int) -> nn.Module:
            if not hidden:
                return nn.Linear(n, out)
            return nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, out))

        self.query, self.item, self.level = tower(u), tower(z), nn.Linear(out, 1, bias=False)
        for parameter in self.query.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.5 / np.sqrt(parameter.shape[1]))
        nn.init.zeros_(self.level.weight)

    def vectors(self, u: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors of queries, with a constant for the level, and of items."""
        a, b = self.query(u), self.item(z)
        return torch.cat([a, torch.ones(len(a), 1)], 1), torch.cat([b, self.level(b)], 1)

    def forward(self, u: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        a, b = self.vectors(u, z)
        return (a * b).sum(1)


def log_likelihood(family: torch.Tensor, s: torch.Tensor, L: torch.Tensor) -> torch.Tensor:
    """Log-likelihood of the showings of each pair, as `Grades.terms`, differentiable.  Shapes: s [n]; L [n, J] -> [n]."""
    J = L.shape[1]
    t = s.clamp(family[2, 1], family[2, 2])[:, None]
    log_w = family[0, :J] + (family[1, :J] - family[2, 0] * t) * t
    return torch.logsumexp(log_w + L.clamp_min(1e-30).log(), 1) - torch.logsumexp(log_w, 1)


def towers(
    lesson: Lesson, judge: Lesson | None, *, hidden: int, decay: float, epochs: int, seed: int
) -> tuple[Model, int]:
    """Two towers, and the number of epochs that the judge found best; without a judge all epochs are taken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small products on several threads wait for each other
    try:
        return _trained(lesson, judge, hidden, decay, epochs, seed)
    finally:
        torch.set_num_threads(threads)


def _trained(
    lesson: Lesson, judge: Lesson | None, hidden: int, decay: float, epochs: int, seed: int
) -> tuple[Model, int]:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = _Towers(lesson.u.shape[1], lesson.z.shape[1], hidden, 16)
    decayed = [p for p in net.parameters() if p.ndim == 2]
    others = [p for p in net.parameters() if p.ndim != 2]
    optimiser = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}], lr=4e-3
    )
    u, z, family = (torch.as_tensor(x, dtype=torch.float32) for x in (lesson.u, lesson.z, lesson.grades.family()))
    q, d = torch.as_tensor(lesson.q), torch.as_tensor(lesson.d.astype(np.int64))
    s, L = torch.as_tensor(lesson.s, dtype=torch.float32), torch.as_tensor(lesson.L)
    best, best_epoch, state = -np.inf, 0, net.state_dict()
    for epoch in range(epochs):
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * (1 - 0.9 * epoch / EPOCHS)
        for rows in torch.split(torch.randperm(len(q), generator=generator), BATCH):
            loss = -log_likelihood(family, s[rows] + net(u[q[rows]], z[d[rows]]), L[rows]).mean()
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        if judge is None:
            continue
        value = _value(_product(net, u, z), judge)
        if value > best:
            best, best_epoch, state = value, epoch + 1, {k: v.clone() for k, v in net.state_dict().items()}
        elif epoch + 1 - best_epoch >= PATIENCE:
            break
    if judge is not None:
        net.load_state_dict(state)
    return _product(net, u, z), best_epoch if judge is not None else epochs


@torch.no_grad()
def _product(net: _Towers, u: torch.Tensor, z: torch.Tensor) -> Product:
    a, b = net.vectors(u, z)
    return Product(a.numpy().astype(np.float64), b.numpy().astype(np.float64))


def _value(model: Model, judge: Lesson) -> float:
    """Log-likelihood of the judge's pairs."""
    return float(judge.grades.terms(judge.s + model.at(judge.q, judge.d), judge.L)[0].sum())


@dataclass(frozen=True)
class Trees:
    """f as a sum of trees.  Shapes: query [Q, .]; item [D, .], what they see."""

    booster: Any
    query: Floats32
    item: Floats32
    shared: int

    def table(self, q: Items, d: Items) -> Floats32:
        """What the trees see of pairs.  Shapes: [n] each -> [n, J]."""
        a, b = self.query[q], self.item[d]
        return np.hstack([a, b, (a[:, : self.shared] * b[:, : self.shared])])

    def at(self, q: Items, d: Items) -> Floats:
        """f of pairs."""
        return np.asarray(self.booster.predict(self.table(q, d), num_threads=1), np.float64)

    def matrix(self, q: Items) -> Floats:
        """f of all items, some queries at a time."""
        D = len(self.item)
        parts = [np.zeros((0, D))]
        for first in range(0, len(q), ROWS):
            part = np.asarray(q[first : first + ROWS])
            parts.append(self.at(np.repeat(part, D), np.tile(np.arange(D), len(part))).reshape(len(part), D))
        return np.concatenate(parts)


def trees(lesson: Lesson, judge: Lesson | None, *, leaves: int, epochs: int, seed: int) -> tuple[Model, int]:
    """LightGBM with gradient and Hessian of the marginal likelihood, s as the start."""
    import lightgbm

    query = np.hstack([lesson.u, lesson.known_q]).astype(np.float32)
    item = np.hstack([lesson.z, lesson.known_d]).astype(np.float32)
    seen = Trees(None, query, item, min(lesson.u.shape[1], lesson.z.shape[1]))

    def objective(found: Floats, data: Any) -> tuple[Floats, Floats]:
        _, slope, h = lesson.grades.terms(lesson.s + found, lesson.L)
        return -slope, np.maximum(h, 0.02 * h.mean())

    settings = {
        "objective": objective, "learning_rate": 0.1, "num_leaves": leaves, "min_data_in_leaf": 100, "lambda_l2": 10.0,
        "feature_fraction": 0.7, "verbose": -1, "num_threads": 1, "seed": seed, "deterministic": True,
    }  # fmt: skip
    data = lightgbm.Dataset(seen.table(lesson.q, lesson.d), np.zeros(len(lesson.q)), free_raw_data=True)
    booster = lightgbm.train(settings, data, num_boost_round=epochs)
    model = Trees(booster, query, item, seen.shared)
    if judge is None:
        return model, epochs
    table = model.table(judge.q, judge.d)
    values = []
    for rounds in range(10, epochs + 1, 10):
        f = np.asarray(booster.predict(table, num_iteration=rounds, num_threads=1))
        values.append(float(judge.grades.terms(judge.s + f, judge.L)[0].sum()))
    return model, 10 * (int(np.argmax(values)) + 1)


Fit = Callable[[Lesson, Lesson | None, int, int], tuple[Model, int]]
MODELS: dict[str, tuple[int, Fit]] = {
    "linear": (EPOCHS, lambda a, b, n, seed: towers(a, b, hidden=0, decay=0.03, epochs=n, seed=seed)),
    "towers": (EPOCHS, lambda a, b, n, seed: towers(a, b, hidden=48, decay=0.03, epochs=n, seed=seed)),
    "towers, careful": (EPOCHS, lambda a, b, n, seed: towers(a, b, hidden=48, decay=0.6, epochs=n, seed=seed)),
    "trees": (ROUNDS, lambda a, b, n, seed: trees(a, b, leaves=15, epochs=n, seed=seed)),
}


def choose(lesson: Lesson, judge: Lesson, seed: int) -> tuple[str, int]:
    """The model, and how long it is trained, by the judge's pairs; none where none helps."""
    from importlib.util import find_spec

    nothing = float(judge.grades.terms(judge.s, judge.L)[0].sum())
    best, gain = ("none", 0), 0.0
    for name, (epochs, fit) in MODELS.items():
        if name == "trees" and find_spec("lightgbm") is None:
            continue
        model, taken = fit(lesson, judge, epochs, seed)
        if name == "trees":
            model, _ = fit(lesson, None, taken, seed)
        found = _value(model, judge) - nothing
        if found > gain:
            best, gain = (name, taken), found
    return best


def train(name: str, epochs: int, lesson: Lesson, seed: int) -> Model | None:
    """A model of the kind and length that were chosen."""
    return None if name == "none" else MODELS[name][1](lesson, None, epochs, seed)[0]
