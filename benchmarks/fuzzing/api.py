"""The public names of Python, with one or two arguments that are other than they should be.

Refusals are errors of `tandemrank.errors`; of configurations, which are pydantic models, also `ValidationError`.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from pydantic import ValidationError
from scipy.sparse import coo_matrix, csr_matrix

import tandemrank as tr
from fuzzing.calls import Call
from tandemrank.errors import TandemRankError
from tandemrank.gradients import race

PLAIN: list[Any] = [
    None, True, -1, 0, 1, 2, 10**30, 0.5, float("nan"), float("inf"), -1e308, "", "x", "é\0", b"x", [], {}, (), [None], [[]],
    [1, "1"], [float("nan")], np.array(3), np.array([]), np.array([[1]]), np.array(["a"]), np.float64(2), pl.Series([1, 1]),
    pl.DataFrame(), torch.ones(2, requires_grad=True), object(), int, lambda: None, Path("nowhere"), {"x": 1}, range(3), 1j,
]  # fmt: skip


def changed(rng: random.Random, value: Any) -> Any:
    """The same thing in another form, or damaged; else something else."""
    if rng.random() < 0.3:
        return rng.choice(PLAIN)
    if isinstance(value, pl.DataFrame):
        return _other_frame(rng, value)
    if isinstance(value, csr_matrix):
        return _other_matrix(rng, value)
    if isinstance(value, np.ndarray):
        return _other_array(rng, value)
    if isinstance(value, tr.TwoStagePolicy):
        return rng.choice([value.generator, value.vocabulary, [value], {"a": value}, {"": value, 1: value}])
    if isinstance(value, tr.Vocabulary):
        ids = value.item_ids
        return rng.choice([(value.query_ids, ids), ids, value.query_ids.to_list(), {"query_ids": [0]}])
    return rng.choice(PLAIN)


def _other_array(rng: random.Random, x: np.ndarray) -> Any:
    spoilt = x.astype(np.float64)
    spoilt.flat[rng.randrange(max(x.size, 1)) : 1] = np.nan
    with_nan = np.where(np.arange(x.size).reshape(x.shape) == 0, np.nan, x.astype(np.float64))
    with_inf = np.where(np.arange(x.size).reshape(x.shape) == 0, np.inf, x.astype(np.float64))
    gradient = torch.tensor(x.astype(np.float32), requires_grad=True)
    return rng.choice(
        [
            *[
                x[::-1],
                x.T,
                x[:-1],
                x[:0],
                x[None],
                x.ravel(),
                np.concatenate([x, x]),
                np.asfortranarray(x),
                x.tolist(),
            ],
            *[
                with_nan,
                with_inf,
                -x,
                x * 1e300,
                x.astype(np.float16),
                x.astype(object),
                x.astype(complex),
                x.astype(str),
            ],
            *[gradient, gradient.flip(0), torch.as_tensor(x.astype(np.float64)), x > 0, pl.Series(x.ravel()), spoilt],
        ]
    )


def _other_matrix(rng: random.Random, x: csr_matrix) -> Any:
    unsorted = x.copy()
    unsorted.indices = unsorted.indices[::-1].copy()
    with_nan, negative = x.copy(), x.copy()
    with_nan.data = with_nan.data * np.nan
    negative.data = -negative.data
    twice = csr_matrix((np.r_[x.data, x.data], np.r_[x.indices, x.indices], x.indptr * 2), x.shape)
    return rng.choice(
        [
            x.toarray(),
            coo_matrix(x),
            x.T,
            x[:-1],
            x[:, :-1],
            x[:0],
            x.astype(np.int8),
            x.tocsc(),
            with_nan,
            negative,
            twice,
            unsorted,
        ]
    )


def _other_frame(rng: random.Random, frame: pl.DataFrame) -> Any:
    column = rng.choice(frame.columns)
    values = frame[column]
    constant = [None, -1, "x", 0.5, float("nan"), [1], [None], True, {"a": 1}]
    weight = rng.choice([float("nan"), -1.0, 0.0, float("inf"), 1e300, None, "1", True])
    return rng.choice(
        [
            frame.drop(column),
            frame.rename({column: column.upper()}),
            frame.reverse(),
            frame.head(0),
            frame.head(1),
            pl.concat([frame, frame]),
            frame.with_columns(pl.Series(column, [rng.choice(constant)] * len(frame), strict=False)),
            frame.with_columns(values.reverse().alias(column)),
            frame.with_columns(weight=pl.lit(weight)),
            frame.with_columns(timestamp=pl.lit(weight), policy=pl.lit("a")),
            frame.lazy(),
            frame.to_pandas(),
            frame.to_dicts(),
            frame.to_dict(),
            frame.with_columns(
                values.cast(pl.String, strict=False) if values.dtype != pl.List else values.list.reverse()
            ),
            frame.with_columns(values.list.concat(values) if values.dtype == pl.List else values.shift(1)),
            frame.with_columns(impression_id=pl.lit(7)),
        ]
    )


def _functions(good: Path, place: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Each function with arguments that are good."""
    log = pl.read_parquet(good / "log.parquet")
    policy = tr.load(good / "policy")
    rng = np.random.default_rng(0)
    Q, D, K = len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids), policy.K
    users, items = rng.normal(size=(Q, 2)), rng.normal(size=(D, 2))
    relevance = csr_matrix((rng.random((Q, D)) < 0.3).astype(np.float32))
    theta, q = 1 / np.arange(1.0, K + 1), np.arange(4)
    s = torch.tensor(rng.normal(size=(4, D)), dtype=torch.float32)
    weights = csr_matrix(rng.random((4, D)).astype(np.float32))
    asked: dict[str, Any] = {"propensity": "frequency", "estimator": "ips", "seed": 0}
    keys = np.arange(4, dtype=np.uint64)

    def learn(log: Any, config: Any, switches: dict[str, Any], **more: Any) -> object:
        is_made = isinstance(config, str) and isinstance(switches, dict)
        return tr.learn(log, tr.LearningConfig(**switches) if is_made else config, **more)

    def train(**switches: Any) -> object:
        return tr.TrainingConfig(**switches)

    def utility(s_c: Any, s_r: Any, w: Any, theta: Any, K2: Any, samples: Any) -> object:
        generator = torch.Generator().manual_seed(0)
        return race.utility(s_c, s_r, w, theta, K2, samples=samples, generator=generator)

    two = tr.GivenScores(users @ items.T)
    sessions = log.with_row_index("step").with_columns(pl.col("step").cast(pl.Int64), session_id="query_id")
    return {
        "MatrixFactorisation": (tr.MatrixFactorisation, {"queries": users, "items": items}),
        "GivenScores": (tr.GivenScores, {"scores": users @ items.T}),
        "Vocabulary": (tr.Vocabulary, {"query_ids": pl.Series(range(4)), "item_ids": pl.Series(list("abc"))}),
        "TwoStagePolicy": (
            tr.TwoStagePolicy,
            {"generator": two, "ranker": two, "K2": D, "K": K, "vocabulary": policy.vocabulary},
        ),
        "most_likely": (policy.most_likely, {"q": q, "exclude": relevance}),
        "recommend": (
            policy.recommend,
            {"query_ids": q, "exclude": relevance, "sample": False, "seed": 0, "unknown": "refuse"},
        ),
        "recommend a frame": (policy.recommend, {"query_ids": q, "exclude": log.select("query_id", item_id=0)}),
        "sample": (policy.sample, {"q": q, "keys": keys}),
        "exposure": (policy.exposure, {"q": q, "item": q, "theta": theta, "samples": 3, "seed": 0}),
        "utility": (policy.utility, {"weights": relevance, "theta": theta, "samples": 2, "seed": 0}),
        "save": (policy.save, {"path": place / "saved"}),
        "load": (tr.load, {"path": good / "policy"}),
        "race.utility": (
            utility,
            {"s_c": s, "s_r": s, "w": weights, "theta": torch.tensor(theta).float(), "K2": 5, "samples": 1},
        ),
        "evaluate": (
            tr.evaluate,
            {"policy": policy, "relevance": relevance, "theta": theta, "q": q, "samples": 2, "clicked": relevance},
        ),
        "validate": (tr.validate, {"source": log}),
        "examine": (tr.examine, {"log": log}),
        "estimate": (tr.estimate, {"policy": policy, "log": log, **asked}),
        "sessions.estimate": (
            tr.sessions.estimate,
            {"policy": policy, "log": sessions, "horizon": 2, "discount": 0.9, "state": "query_id"},
        ),
        "compare": (tr.compare, {"new": policy, "old": policy, "log": log, **asked}),
        "decide": (
            tr.decide,
            {"policies": policy, "log": log, "against": "production", "at_least": 0.0, "risk": 0.05, **asked},
        ),
        "learn": (
            learn,
            {"log": log, "config": "made", "switches": {"candidates": 5}, "seed": 0, "methods": ["beliefs"]},
        ),
        "learn, trained": (
            learn,
            {
                "log": log,
                "config": "made",
                "switches": {"candidates": 5, "training": {"epochs": 1}},
                "methods": ["joint"],
                "start": None,
            },
        ),
        "TrainingConfig": (train, {"epochs": 2, "samples": 1, "learning_rate": 0.2, "rank_weights": "flat"}),
        "ExperimentConfig": (tr.ExperimentConfig, {"queries": 20, "items": 10, "rank": 2, "temperature": 1.0}),
    }


def calls(good: Path, place: Path, rng: random.Random) -> Iterator[Call]:
    """Calls without end, function after function."""
    place.mkdir(exist_ok=True)
    functions = _functions(good, place)
    for _ in itertools.count():
        for name, (function, arguments) in functions.items():
            wrong = rng.sample(list(arguments), rng.choice([0, 1, 1, 1, 1, 2]) if len(arguments) > 1 else 1)
            given = {key: changed(rng, value) if key in wrong else value for key, value in arguments.items()}
            told = ", ".join(f"{key}={_shown(given[key])}" for key in wrong)
            refusals = (TandemRankError, ValidationError) if wrong else ()  # what is good must be taken
            yield Call(f"{name}({told})", partial(_called, function, given, refusals))


def _shown(value: Any) -> str:
    try:
        words = f"{type(value).__name__}: {value!r}"
    except Exception:
        words = type(value).__name__
    return " ".join(words.split())[:160]


def _called(function: Callable[..., Any], given: dict[str, Any], refusals: tuple[type[Exception], ...]) -> None:
    with suppress(*refusals):
        function(**given)
