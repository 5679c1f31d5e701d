"""Malformed inputs and damaged files of every kind but logs (those are in `malformed`), each with a command that is given it.

A case is a function: it gets the good files (`Good`) and a folder of its own, puts there what is wrong, and returns the
arguments of the command.
"""

import gzip
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tandemrank._base.files import MARK
from tandemrank._base.ids import Vocabulary
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K = 12, 8, 3
LONG_NAME = "x" * 300


@dataclass(frozen=True)
class Good:
    """Good files of a small world, in one folder: a log, a policy, tables, scores, ratings, a curve."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


def write_good(folder: Path) -> Good:
    """Writes them; ids are integers from 0."""
    rng = np.random.default_rng(0)
    n = 200
    items = np.argsort(rng.random((n, D)), axis=1)[:, :K]
    lists = {"items": items, "clicks": rng.integers(0, 2, (n, K))}
    log = pl.DataFrame({"query_id": rng.integers(0, Q, n), **{c: pl.Series(x).arr.to_list() for c, x in lists.items()}})
    log.write_parquet(folder / "log.parquet")
    vectors = [rng.normal(size=(size, 2)).astype(np.float32) for size in (Q, D)]
    ids = Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
    scorer = MatrixFactorisation(*vectors)
    TwoStagePolicy(scorer, scorer, D, K, ids).save(folder / "policy")
    for name, values in zip(("query", "item"), vectors, strict=True):
        own = {f"{name}_id": np.arange(len(values))}
        pl.DataFrame({**own, "x": values[:, 0], "kind": ["a", "b"] * (len(values) // 2)}).write_parquet(
            folder / f"{name}_features.parquet"
        )
        pl.DataFrame({**own, "embedding": pl.Series(values).arr.to_list()}).write_parquet(
            folder / f"{name}_embeddings.parquet"
        )
    q, d = (x.ravel() for x in np.meshgrid(np.arange(Q), np.arange(D), indexing="ij"))
    scores = {"query_id": q, "item_id": d, "candidate_score": rng.random(Q * D), "ranker_score": rng.random(Q * D)}
    pl.DataFrame(scores).write_parquet(folder / "scores.parquet")
    pl.DataFrame({"user": q, "item": d, "rating": (q * 7 + d * 5) % 5 + 1}).write_csv(folder / "ratings.csv")
    (folder / "curve.json").write_text(json.dumps({"theta": [1.0, 0.5, 0.3]}))
    (folder / "switches.toml").write_text('queries = 60\nitems = 30\nrank = 3\n[learning]\npropensity = "frequency"\n')
    return Good(folder)


Case = Callable[[Good, Path], list[str]]
CASES: dict[str, Case] = {}


def add(name: str, case: Case) -> None:
    assert name not in CASES, name
    CASES[name] = case


# --- what is done to a file ---------------------------------------------------------------------------------------------


def changed(**columns: object) -> Callable[[Path], None]:
    """Columns of a Parquet file replaced; None leaves one out."""

    def damage(path: Path) -> None:
        frame = pl.read_parquet(path)
        gone = [name for name, values in columns.items() if values is None]
        new = [v.alias(n) for n, v in columns.items() if isinstance(v, pl.Expr)]
        new += [pl.Series(n, v, strict=False) for n, v in columns.items() if isinstance(v, pl.Series | list)]
        frame.drop(gone).with_columns(new).write_parquet(path)

    return damage


def rewritten(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    return lambda path: change(pl.read_parquet(path)).write_parquet(path)


def content(data: bytes | str) -> Callable[[Path], None]:
    """Other bytes."""
    return kept(lambda _: data if isinstance(data, bytes) else data.encode())


def kept(part: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Only a part of the bytes, or others; those of no file are none."""

    def damage(path: Path) -> None:
        path.write_bytes(part(path.read_bytes() if path.exists() else b""))

    return damage


def removed(path: Path) -> None:
    path.unlink()


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


# What may happen to any Parquet file.
PARQUET = {
    "is not there": removed,
    "is a folder": folder_instead,
    "has no bytes": content(b""),
    "is text": content("query_id,item_id\n1,2\n"),
    "is cut off": kept(lambda whole: whole[: len(whole) // 2]),
    "is overwritten": kept(lambda whole: whole[:8] + b"\xff" * (len(whole) - 16) + whole[-8:]),
}


def file_cases(
    name: str, damages: dict[str, Callable[[Path], None]], arguments: Callable[[Good, str], list[str]]
) -> None:
    """For each damage a case: a copy of a good file is damaged, and a command is given it."""
    for what, damage in damages.items():

        def case(good: Good, folder: Path, damage: Callable[[Path], None] = damage) -> list[str]:
            shutil.copy(good.path(name), folder / name)
            damage(folder / name)
            return arguments(good, name)

        add(f"{name} {what}", case)


# --- tables of features, of embeddings, of scores -----------------------------------------------------------------------


def with_features(good: Good, name: str) -> list[str]:
    return ["learn", "--logs", good.path("log.parquet"), "--item-features", name, "--epochs", "1"]


def with_embeddings(good: Good, name: str) -> list[str]:
    both = ["--query-embeddings", good.path("query_embeddings.parquet"), "--item-embeddings", name]
    return ["learn", "--logs", good.path("log.parquet"), *both, "--epochs", "1"]


def with_scores(good: Good, name: str) -> list[str]:
    return ["estimate", "--logs", good.path("log.parquet"), "--scores", name, "--candidates", "5"]


file_cases(
    "item_features.parquet",
    {
        **PARQUET,
        "has no ids": changed(item_id=None),
        "has ids of floats": changed(item_id=pl.col("item_id") + 0.5),
        "has ids that are texts": changed(item_id=pl.col("item_id").cast(pl.String)),
        "has a null id": changed(item_id=[None, *range(1, D)]),
        "has an id twice": changed(item_id=[0, 0, *range(2, D)]),
        "has no features": changed(x=None, kind=None),
        "has lists": changed(x=[[1.0]] * D),
        "has times": changed(x=pl.lit("2020-01-01").str.to_datetime()),
        "has an infinite number": changed(x=[float("inf")] * D),
        "lacks items of the log": rewritten(lambda frame: frame[:2]),
        "has no rows": rewritten(lambda frame: frame[:0]),
    },
    with_features,
)
file_cases(
    "item_embeddings.parquet",
    {
        **PARQUET,
        "has no embedding": changed(embedding=None),
        "has numbers for lists": changed(embedding=[1.0] * D),
        "has texts": changed(embedding=[["a", "b"]] * D),
        "has lists of different lengths": changed(embedding=[[1.0]] + [[1.0, 2.0]] * (D - 1)),
        "has empty lists": changed(embedding=pl.Series([[]] * D, dtype=pl.List(pl.Float64))),
        "has null lists": changed(embedding=pl.Series([None] * D, dtype=pl.List(pl.Float64))),
        "has NaN": changed(embedding=[[float("nan"), 1.0]] * D),
        "is longer than the other": changed(embedding=[[1.0, 2.0, 3.0]] * D),
        "lacks items of the log": rewritten(lambda frame: frame[:2]),
        "has no rows": rewritten(lambda frame: frame[:0]),
    },
    with_embeddings,
)
file_cases(
    "scores.parquet",
    {
        **PARQUET,
        "has no ranker's scores": changed(ranker_score=None),
        "has ids of floats": changed(query_id=pl.col("query_id") + 0.5),
        "has scores that are texts": changed(candidate_score=pl.lit("1")),
        "has a null score": changed(ranker_score=pl.lit(None, pl.Float64)),
        "has NaN": changed(ranker_score=pl.lit(float("nan"))),
        "has infinite scores": changed(candidate_score=pl.lit(float("inf"))),
        "has a pair twice": rewritten(lambda frame: pl.concat([frame, frame[:1]])),
        "has no rows": rewritten(lambda frame: frame[:0]),
        "lacks queries of the log": rewritten(lambda frame: frame.filter(pl.col("query_id") == 0)),
        "has ids that are texts": changed(query_id=pl.col("query_id").cast(pl.String)),
    },
    with_scores,
)


# --- ratings ------------------------------------------------------------------------------------------------------------


def with_ratings(good: Good, name: str) -> list[str]:
    return ["simulate", "--data", name, "--set", "threshold=3", "--set", "rank=2", "--impressions", "10"]


file_cases(
    "ratings.csv",
    {
        "is not there": removed,
        "is a folder": folder_instead,
        "has no bytes": content(b""),
        "has a header and no rows": content("user,item,rating\n"),
        "has other columns": content("a,b\n1,2\n"),
        "has an empty user": content("user,item,rating\n,1,5\n"),
        "has an empty rating": content("user,item,rating\n1,1,\n"),
        "has a word for a rating": content("user,item,rating\n1,1,good\n"),
        "has an infinite rating": content("user,item,rating\n1,1,inf\n"),
        "has a pair twice": content("user,item,rating\n1,1,5\n1,1,4\n"),
        "has a long line": content("user,item,rating\n1,1,5\n1,2,4,3\n"),
        "is Latin-1": content("user,item,rating\ncaf\xe9,1,5\n".encode("latin-1")),
        "is zeros": content(bytes(500)),
        "has nothing relevant": content("user,item,rating\n1,1,1\n2,2,1\n"),
        "is of one user": content("user,item,rating\n1,1,5\n1,2,1\n"),
    },
    with_ratings,
)


def ratings_called(suffix: str, data: bytes) -> Case:
    def case(good: Good, folder: Path) -> list[str]:
        (folder / f"ratings{suffix}").write_bytes(data)
        return with_ratings(good, f"ratings{suffix}")

    return case


def zipped(**files: str) -> bytes:
    from io import BytesIO

    holder = BytesIO()
    with zipfile.ZipFile(holder, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/") + ".dat", text)
    return holder.getvalue()


add("ratings.txt", ratings_called(".txt", b"user,item,rating\n1,1,5\n"))
add("ratings.parquet that is text", ratings_called(".parquet", b"user,item,rating\n1,1,5\n"))
add("ratings.zip that is none", ratings_called(".zip", b"nothing"))
add("ratings.zip that is empty", ratings_called(".zip", zipped()))
add("ratings.zip that is gzip", ratings_called(".zip", gzip.compress(b"nothing")))
add("ratings.zip without ratings", ratings_called(".zip", zipped(**{"ml-1m__users": "1::F::1::10::48067\n"})))
add("MovieLens with a broken line", ratings_called(".zip", zipped(**{"ml-1m__ratings": "1::2::5::9\n1::2\n"})))
add("MovieLens cut off", ratings_called(".zip", zipped(**{"ml-1m__ratings": "1::2::5::9\n" * 99})[:-40]))
add("an empty folder as data", lambda good, folder: with_ratings(good, "."))
add("data of no name", lambda good, folder: with_ratings(good, ""))


# --- saved policies -----------------------------------------------------------------------------------------------------


def policy_cases(damages: dict[str, Callable[[Path], None]]) -> None:
    """A damaged policy, given to one command after the other."""
    for number, (what, damage) in enumerate(damages.items()):

        def case(good: Good, folder: Path, number: int = number, damage: Callable[[Path], None] = damage) -> list[str]:
            shutil.copytree(good.path("policy"), folder / "policy")
            damage(folder / "policy")
            log = ["--logs", good.path("log.parquet")]
            return [
                ["estimate", *log, "--policy", "policy", "--propensity", "frequency"],
                ["evaluate", "--policy", "policy", "--data", good.path("ratings.csv"), "--set", "threshold=3"],
                ["learn", *log, "--start", "policy", "--epochs", "1"],
                ["compare", *log, "--policy", good.path("policy"), "--against", "policy", "--propensity", "frequency"],
                ["estimate", *log, "--policy", good.path("policy"), "--logging-policy", "policy"],
            ][number % 5]

        add(f"policy {what}", case)


def config_with(**values: object) -> Callable[[Path], None]:
    """Its config.json with some values replaced; None leaves one out."""

    def damage(policy: Path) -> None:
        config = json.loads((policy / "config.json").read_text()) | values
        (policy / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return damage


def stage_with(**values: object) -> Callable[[Path], None]:
    """The same of its generator."""

    def damage(policy: Path) -> None:
        config = json.loads((policy / "config.json").read_text())
        config["stages"]["generator"] |= values
        (policy / "config.json").write_text(json.dumps(config))

    return damage


def of_file(name: str, damage: Callable[[Path], None]) -> Callable[[Path], None]:
    return lambda policy: damage(policy / name)


def vocabulary_with(**columns: object) -> Callable[[Path], None]:
    return of_file("vocabulary.parquet", changed(**columns))


def lying_header(whole: bytes) -> bytes:
    """A safetensors file whose header says that it is longer than the file."""
    return struct.pack("<Q", 2**60) + whole[8:]


policy_cases(
    {
        "is not there": shutil.rmtree,
        "without config.json": of_file("config.json", removed),
        "without weights": of_file("weights.safetensors", removed),
        "without vocabulary": of_file("vocabulary.parquet", removed),
        "with a config that is no JSON": of_file("config.json", content("{")),
        "with a config that is a list": of_file("config.json", content("[]")),
        "with a config that is no text": of_file("config.json", content(b"\xff\xfe\x00")),
        "with a config nested deeply": of_file("config.json", content("[" * 100_000)),
        "with a config of a huge number": of_file("config.json", content('{"format": ' + "9" * 5000 + "}")),
        "of another format": config_with(format=99),
        "without a format": config_with(format=None),
        "with K = 2.5": config_with(K=2.5),
        "with K = 0": config_with(K=0),
        "with K = true": config_with(K=True),
        "with K that is a text": config_with(K="3"),
        "with K above K2": config_with(K=7, K2=5),
        "with K2 above the items": config_with(K2=1000),
        "with K2 = -1": config_with(K2=-1),
        "without stages": config_with(stages=None),
        "with stages that are none": config_with(stages=7),
        "of an unknown kind": stage_with(kind="oracle"),
        "with other sizes": stage_with(sizes={"Q": Q, "D": D, "F": 99}),
        "with negative sizes": stage_with(sizes={"Q": -1, "D": D, "F": 2}),
        "with sizes beyond memory": stage_with(sizes={"Q": 2**40, "D": 2**40, "F": 2**40}),
        "with sizes that are none": stage_with(sizes="large"),
        "with weights of no bytes": of_file("weights.safetensors", content(b"")),
        "with weights cut off": of_file("weights.safetensors", kept(lambda whole: whole[:-8])),
        "with weights of a lying header": of_file("weights.safetensors", kept(lying_header)),
        "with weights that are text": of_file("weights.safetensors", content("weights")),
        "with vocabulary cut off": of_file("vocabulary.parquet", kept(lambda whole: whole[:-50])),
        "with other columns in the vocabulary": vocabulary_with(item_id=None),
        "with an item twice": vocabulary_with(item_id=[0, 0, *range(2, D), *[None] * (Q - D)]),
        "with a query twice": vocabulary_with(query_id=[0, 0, *range(2, Q)]),
        "with fewer ids than weights": of_file("vocabulary.parquet", rewritten(lambda frame: frame[:5])),
        "with ids of floats": vocabulary_with(query_id=[x + 0.5 for x in range(Q)]),
        "with queries of another log": vocabulary_with(query_id=[x + 1000 for x in range(Q)]),
    }
)


# --- configurations and switches ----------------------------------------------------------------------------------------


def config_case(text: str | bytes, command: str = "simulate") -> Case:
    def case(good: Good, folder: Path) -> list[str]:
        (folder / "switches.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        given = ["--logs", good.path("log.parquet")] if command == "learn" else []
        return [command, *given, "--config", "switches.toml"]

    return case


CONFIGS: dict[str, str | bytes] = {
    "that is no TOML": "queries = = 3\n",
    "that is JSON": '{"queries": 60}\n',
    "in Latin-1": "data = 'caf\xe9'\n".encode("latin-1"),
    "with an unknown switch": "quries = 60\n",
    "with a word for a number": "queries = 'many'\n",
    "with half a query": "queries = 1.5\n",
    "with a negative number": "items = -3\n",
    "with NaN": "temperature = nan\n",
    "with a list for a number": "rank = [1, 2]\n",
    "with a table for a number": "[rank]\nx = 1\n",
    "with an unknown choice": "[learning]\npropensity = 'guessed'\n",
    "with a switch twice": "queries = 60\nqueries = 61\n",
    "nested deeply": "x = " + "[" * 5000 + "]" * 5000 + "\n",
    "with a huge integer": "queries = " + "9" * 5000 + "\n",
    "with an integer of 64 bits": f"queries = {2**63}\n",
    "that is zeros": bytes(100),
}
for what, text in CONFIGS.items():
    add(f"configuration {what}", config_case(text))
add("configuration of train with a switch of simulate", config_case("queries = 60\n", "learn"))
add("configuration that is not there", lambda good, folder: ["simulate", "--config", "nothing.toml"])
add("configuration that is a folder", lambda good, folder: ["simulate", "--config", good.path("policy")])

USAGE = {
    "a switch without a value": ["simulate", "--set", "queries"],
    "a switch of no name": ["simulate", "--set", "=5"],
    "a switch that is none": ["simulate", "--set", "speed=fast"],
    "a value that is none": ["simulate", "--set", "queries=[1"],
    "a switch under a value": ["simulate", "--set", "queries=5", "--set", "queries.more=1"],
    "an unknown preset": ["simulate", "--preset", "other"],
    "an unknown method": ["learn", "--logs", "LOG", "--method", "magic"],
    "an unknown methods list": ["table", "--methods", "joint,,magic"],
    "candidates in words": ["table", "--candidates", "many"],
    "candidates of nothing": ["table", "--candidates", ""],
    "negative candidates": ["table", "--candidates", "-5"],
    "more candidates than items": ["table", "--candidates", "100000"],
    "an unknown propensity": ["learn", "--logs", "LOG", "--propensity", "magic"],
    "an unknown objective": ["learn", "--logs", "LOG", "--objective", "magic"],
    "an unknown estimator": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--estimator", "magic"],
    "no policy": ["estimate", "--logs", "LOG"],
    "policy and scores": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--scores", "SCORES"],
    "logged propensities of a log without": [
        "estimate",
        "--logs",
        "LOG",
        "--policy",
        "POLICY",
        "--propensity",
        "logged",
    ],
    "exact propensities without a logger": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--propensity", "exact"],
    "compare with nothing": ["compare", "--logs", "LOG", "--policy", "POLICY", "--against", "nothing"],
    "an unknown engine": ["examine", "LOG", "--engine", "magic"],
    "an unknown method of examination": ["examine", "LOG", "--method", "magic"],
    "too long a name of a log": ["validate", LONG_NAME],
    "too long a name of a log with a suffix": ["examine", LONG_NAME + ".csv"],
    "too long a name of a policy": ["estimate", "--logs", "LOG", "--policy", LONG_NAME],
    "too long a name of scores": ["estimate", "--logs", "LOG", "--scores", LONG_NAME],
    "too long a name of data": ["simulate", "--data", LONG_NAME],
    "too long a name of features": ["learn", "--logs", "LOG", "--item-features", LONG_NAME],
    "too long a name of a configuration": ["simulate", "--config", LONG_NAME],
    "too long a name of a curve": ["learn", "--logs", "LOG", "--curve", LONG_NAME],
    "too long a name of a result": ["learn", "--logs", "LOG", "--out", LONG_NAME],
    "too long a name of a grid": ["table", "--out", LONG_NAME],
    "too long a name of a simulation": ["simulate", "--out", LONG_NAME],
    "too long a name of a cleaned copy": ["validate", "LOG", "--fix", LONG_NAME],
    "a log of no name": ["validate", ""],
    "a negative seed": ["simulate", "--seed", "-1"],
    "a seed in words": ["simulate", "--seed", "many"],
    "an unknown command": ["magic"],
    "an unknown option": ["validate", "LOG", "--magic"],
}


def usage_case(arguments: list[str]) -> Case:
    names = {"LOG": "log.parquet", "POLICY": "policy", "SCORES": "scores.parquet"}
    return lambda good, folder: [good.path(names[a]) if a in names else a for a in arguments]


for what, arguments in USAGE.items():
    add(f"usage: {what}", usage_case(arguments))


# --- curves -------------------------------------------------------------------------------------------------------------


def with_curve(good: Good, name: str) -> list[str]:
    pair = ["--policy", good.path("policy"), "--propensity", "frequency"]
    return ["estimate", "--logs", good.path("log.parquet"), *pair, "--curve", name]


file_cases(
    "curve.json",
    {
        "is not there": removed,
        "is a folder": folder_instead,
        "has no bytes": content(b""),
        "is no JSON": content("1, 0.5, 0.3"),
        "is no text": content(b"\xff\xfe\x00\x01"),
        "is a number": content("1"),
        "has no theta": content('{"curve": [1, 0.5]}'),
        "is empty": content('{"theta": []}'),
        "has null": content("[1, null, 0.5]"),
        "has a word": content('["much", "little"]'),
        "is above 1": content("[1, 2, 3]"),
        "is negative": content("[1, -0.5, 0.3]"),
        "has NaN": content("[1, NaN, 0.3]"),
        "begins with 0": content("[0, 0.5, 0.3]"),
        "is shorter than the lists": content("[1, 0.5]"),
        "is nested": content("[[1, 0.5, 0.3]]"),
        "is nested deeply": content("[" * 100_000),
        "has an integer of 5000 digits": content("[" + "9" * 5000 + "]"),
        "has an integer of 400 digits": content("[1, " + "9" * 400 + ", 0.1]"),
    },
    with_curve,
)


# --- checkpoints and grids ----------------------------------------------------------------------------------------------


def checkpoint_case(damage: Callable[[Good, Path], None]) -> Case:
    """A training that goes on from a checkpoint that is none of its own."""

    def case(good: Good, folder: Path) -> list[str]:
        path = folder / "pairs" / "checkpoints" / "generator-alone.safetensors"
        path.parent.mkdir(parents=True)
        (folder / "pairs" / MARK).write_text("training\n")
        damage(good, path)
        begin = ["--start", good.path("policy"), "--propensity", "frequency", "--candidates", "5", "--epochs", "1"]
        return ["learn", "--logs", good.path("log.parquet"), *begin, "--out", "pairs", "--resume"]

    return case


def weights_of_a_policy(good: Good, path: Path) -> None:
    shutil.copy(Path(good.path("policy")) / "weights.safetensors", path)


add("checkpoint of no bytes", checkpoint_case(lambda good, path: content(b"")(path)))
add("checkpoint that is text", checkpoint_case(lambda good, path: content("checkpoint" * 9)(path)))
add("checkpoint of zeros", checkpoint_case(lambda good, path: content(bytes(1000))(path)))
add("checkpoint with a lying header", checkpoint_case(lambda good, path: content(lying_header(bytes(100)))(path)))
add("checkpoint that is a policy", checkpoint_case(weights_of_a_policy))
add("checkpoint that is a folder", checkpoint_case(lambda good, path: path.mkdir()))


def grid_case(config: bytes | None, mark: str = "grid\n", more: dict[str, bytes] | None = None) -> Case:
    """A folder with a finished cell, of which it cannot be told whose it is."""

    def case(good: Good, folder: Path) -> list[str]:
        cell = folder / "grid" / "cells" / "joint-K2-10-N-100-run-0"
        cell.mkdir(parents=True)
        (cell / "record.json").write_text("{}")
        (folder / "grid" / MARK).write_text(mark)
        for name, data in ({} if config is None else {"config.json": config} | (more or {})).items():
            (folder / "grid" / name).write_bytes(data)
        small = [
            "--candidates",
            "10",
            "--impressions",
            "100",
            "--runs",
            "1",
            "--set",
            "queries=60",
            "--set",
            "items=30",
        ]
        return ["table", "--out", "grid", "--resume", *small, "--set", "rank=3"]

    return case


add("grid without its configuration", grid_case(None))
add("grid with a configuration of no bytes", grid_case(b""))
add("grid with a configuration that is no text", grid_case(b"\xff\xfe"))
add("grid with a configuration that is no object", grid_case(b"[1, 2]"))
add("grid with a configuration nested deeply", grid_case(b"[" * 100_000))
add("grid with a configuration of a huge number", grid_case(b'{"seed": ' + b"9" * 5000 + b"}"))
add("grid that is a training", grid_case(b"{}", "training\n"))
add("grid with a mark that is none", grid_case(b"{}", "\x00"))
