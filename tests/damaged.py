"""Malformed inputs and damaged files of every kind but logs (those are in `malformed`), each with a command that is given it.

An entry is a case and what the message must name. A case is a function: it gets the good files (`Good`) and a folder of its
own, puts there what is wrong, and returns the arguments of the command.
"""

import gzip
import json
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from safetensors.torch import load_file, save_file
from torch import Tensor

from tandemrank._base.files import MARK
from tandemrank._base.ids import Vocabulary
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy, load
from tandemrank.serving.engine import Server
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder

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
    looked = np.random.default_rng(1).random((n, K)) < 1 / np.arange(1, K + 1)  # nothing in the log is against 1/k
    lists = {"items": items, "clicks": rng.integers(0, 2, (n, K)) * looked}
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
    numbers = {"query_id": [0, 1, 2], "item_id": [3, 4, 5], "x": [0.5, 1.0, 2.0]}
    pl.DataFrame(numbers).write_parquet(folder / "pair_features.parquet")
    titles = {"item_id": range(D), "title": [f"Item {d}" for d in range(D)], "url": ["https://shop.example"] * D}
    pl.DataFrame(titles).write_parquet(folder / "titles.parquet")
    q, d = (x.ravel() for x in np.meshgrid(np.arange(Q), np.arange(D), indexing="ij"))
    scores = {"query_id": q, "item_id": d, "candidate_score": rng.random(Q * D), "ranker_score": rng.random(Q * D)}
    pl.DataFrame(scores).write_parquet(folder / "scores.parquet")
    pl.DataFrame({"user": q, "item": d, "rating": (q * 7 + d * 5) % 5 + 1}).write_csv(folder / "ratings.csv")
    (folder / "curve.json").write_text(json.dumps({"theta": [1.0, 0.5, 0.3]}))
    write_served(folder, folder / "policy")
    (folder / "switches.toml").write_text('queries = 60\nitems = 30\nrank = 3\npropensity = "frequency"\n')
    return Good(folder)


def write_served(folder: Path, policy: Path) -> None:
    """A segment of a served log."""
    log = Recorder(folder / "served", Propensities(samples=2))
    server = Server(load(policy), recorder=log, seed=0)
    for q in range(Q):
        server.rank(q, items=None if q % 2 else list(range(5)))
    [sealed] = log.seal(everything=True)
    log.close()
    shutil.move(sealed.path, folder / "segment-0-000000.parquet")
    shutil.rmtree(folder / "served")


Case = Callable[[Good, Path], list[str]]
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Between:
    """Two files that are good, but not together: the message need not name this one, but what does not fit."""

    damage: Damage
    told: str


@dataclass(frozen=True)
class Entry:
    """A case, and the words that its message must have: the file, the row, the column, the switch."""

    case: Case
    told: tuple[str, ...]


ENTRIES: dict[str, Entry] = {}


def add(name: str, case: Case, *told: str) -> None:
    assert name not in ENTRIES, name
    ENTRIES[name] = Entry(case, told)


# --- what is done to a file ---------------------------------------------------------------------------------------------


def changed(**columns: object) -> Damage:
    """Columns of a Parquet file replaced; None leaves one out."""

    def damage(path: Path) -> None:
        frame = pl.read_parquet(path)
        gone = [name for name, values in columns.items() if values is None]
        new = [v.alias(n) for n, v in columns.items() if isinstance(v, pl.Expr)]
        new += [pl.Series(n, v, strict=False) for n, v in columns.items() if isinstance(v, pl.Series | list)]
        frame.drop(gone).with_columns(new).write_parquet(path)

    return damage


def rewritten(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Damage:
    return lambda path: change(pl.read_parquet(path)).write_parquet(path)


def content(data: bytes | str) -> Damage:
    """Other bytes."""
    return kept(lambda _: data if isinstance(data, bytes) else data.encode())


def kept(part: Callable[[bytes], bytes]) -> Damage:
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
    name: str, damages: Mapping[str, Damage | tuple[Damage, str] | Between], arguments: Callable[[Good, str], list[str]]
) -> None:
    """For each damage an entry: a copy of a good file is damaged, and a command is given it. The message names the file."""
    for what, damage in damages.items():
        if isinstance(damage, Between):
            do, told = damage.damage, (damage.told,)
        else:
            do, told = (damage[0], (name, damage[1])) if isinstance(damage, tuple) else (damage, (name,))

        def case(good: Good, folder: Path, do: Damage = do) -> list[str]:
            shutil.copy(good.path(name), folder / name)
            do(folder / name)
            return arguments(good, name)

        add(f"{name} {what}", case, *told)


# --- tables of features, of embeddings, of scores -----------------------------------------------------------------------


def with_features(good: Good, name: str) -> list[str]:
    return ["learn", "--logs", good.path("log.parquet"), "--item-features", name, "--set", "propensity=frequency"]


def with_embeddings(good: Good, name: str) -> list[str]:
    both = ["--query-embeddings", good.path("query_embeddings.parquet"), "--item-embeddings", name]
    return ["learn", "--logs", good.path("log.parquet"), *both, "--set", "propensity=frequency"]


def with_scores(good: Good, name: str) -> list[str]:
    sizes = ["--candidates", "5", "--list-length", str(K)]
    return ["estimate", "--logs", good.path("log.parquet"), "--scores", name, *sizes, "--propensity", "frequency"]


def against_scores(good: Good, name: str) -> list[str]:
    pair = ["--policy", good.path("policy"), "--propensity", "frequency", "--candidates", "5", "--list-length", str(K)]
    return ["compare", "--logs", good.path("log.parquet"), *pair, "--against", name]


file_cases(
    "item_features.parquet",
    {
        **PARQUET,
        "has no ids": (changed(item_id=None), "item_id"),
        "has ids of floats": (changed(item_id=pl.col("item_id") + 0.5), "column item_id"),
        "has ids that are texts": Between(changed(item_id=pl.col("item_id").cast(pl.String)), "column item_id"),
        "has a null id": (changed(item_id=[None, *range(1, D)]), "row 0, column item_id"),
        "has an id twice": (changed(item_id=[0, 0, *range(2, D)]), "column item_id"),
        "has no features": changed(x=None, kind=None),
        "has lists": (changed(x=[[1.0]] * D), "column x"),
        "has times": (changed(x=pl.lit("2020-01-01").str.to_datetime()), "column x"),
        "has an infinite number": (changed(x=[float("inf")] * D), "row 0, column x"),
        "has a row for nobody of the log": Between(
            rewritten(lambda frame: frame.with_columns(pl.col("item_id") + 10**6)), "got rows for none of them"
        ),
        "has no rows": rewritten(lambda frame: frame[:0]),
    },
    with_features,
)


file_cases(
    "item_embeddings.parquet",
    {
        **PARQUET,
        "has no embedding": (changed(embedding=None), "embedding"),
        "has numbers for lists": (changed(embedding=[1.0] * D), "column embedding"),
        "has texts": (changed(embedding=[["a", "b"]] * D), "column embedding"),
        "has lists of different lengths": (
            changed(embedding=[[1.0]] + [[1.0, 2.0]] * (D - 1)),
            "row 1, column embedding",
        ),
        "has empty lists": (
            changed(embedding=pl.Series([[]] * D, dtype=pl.List(pl.Float64))),
            "row 0, column embedding",
        ),
        "has null lists": (
            changed(embedding=pl.Series([None] * D, dtype=pl.List(pl.Float64))),
            "row 0, column embedding",
        ),
        "has NaN": (changed(embedding=[[float("nan"), 1.0]] * D), "row 0, column embedding"),
        "is longer than the other": Between(changed(embedding=[[1.0, 2.0, 3.0]] * D), "column embedding"),
        "lacks items of the log": Between(rewritten(lambda frame: frame[:2]), "column item_id: 6 ids (first: 2, 3, 4)"),
        "has no rows": rewritten(lambda frame: frame[:0]),
    },
    with_embeddings,
)
file_cases(
    "scores.parquet",
    {
        **PARQUET,
        "has no ranker's scores": (changed(ranker_score=None), "ranker_score"),
        "has ids of floats": (changed(query_id=pl.col("query_id") + 0.5), "column query_id"),
        "has scores that are texts": (changed(candidate_score=pl.lit("1")), "column candidate_score"),
        "has a null score": (changed(ranker_score=pl.lit(None, pl.Float64)), "row 0, column ranker_score"),
        "has NaN": (changed(ranker_score=pl.lit(float("nan"))), "row 0, column ranker_score"),
        "has infinite scores": (changed(candidate_score=pl.lit(float("inf"))), "row 0, column candidate_score"),
        "has a pair twice": (rewritten(lambda frame: pl.concat([frame, frame[:1]])), "row 96, column item_id"),
        "has no rows": rewritten(lambda frame: frame[:0]),
        "lacks queries of the log": Between(
            rewritten(lambda frame: frame.filter(pl.col("query_id") == 0)),
            "11 unknown query ids (first: 1); 1 are known to the policy",
        ),
        "has ids that are texts": Between(
            changed(query_id=pl.col("query_id").cast(pl.String)), "query ids are strings here"
        ),
    },
    with_scores,
)


for other, damages, arguments in (
    (
        "query_features.parquet",
        {"is cut off": PARQUET["is cut off"], "has no ids": (changed(query_id=None), "query_id")},
        lambda good, name: [*with_features(good, good.path("item_features.parquet")), "--query-features", name],
    ),
    (
        "pair_features.parquet",
        {
            "is cut off": PARQUET["is cut off"],
            "has no items": (changed(item_id=None), "item_id"),
            "has words": (changed(x=["a", "b", "c"]), "column x"),
            "has infinity": (changed(x=[1.0, np.inf, 2.0]), "row 1, column x"),
            "has a pair twice": (changed(query_id=[0, 0, 1], item_id=[3, 3, 3]), "row 1, column item_id"),
            "has other ids": Between(changed(query_id=[90, 91, 92]), "expected pairs of known queries and items"),
        },
        lambda good, name: [*with_features(good, good.path("item_features.parquet")), "--pair-features", name],
    ),
    (
        "query_embeddings.parquet",
        {"is text": PARQUET["is text"], "has NaN": (changed(embedding=[[np.nan, 1.0]] * Q), "row 0, column embedding")},
        lambda good, name: [*with_embeddings(good, good.path("item_embeddings.parquet")), "--query-embeddings", name],
    ),
):
    file_cases(other, damages, arguments)


file_cases(
    "titles.parquet",
    {
        **PARQUET,
        "has no title": (changed(title=None), "expected the columns title and"),
        "has an id twice": (changed(item_id=[0, 0, *range(2, D)]), "row 1, column item_id"),
        "has a link that runs": (changed(url=["javascript:alert(1)"] * D), "row 0, column url"),
    },
    lambda good, name: ["recommend", good.path("policy"), "--titles", name],
)


def scores_of_the_other_side(good: Good, folder: Path) -> list[str]:
    changed(ranker_score=pl.lit(float("nan")))(Path(shutil.copy(good.path("scores.parquet"), folder / "other.parquet")))
    return against_scores(good, "other.parquet")


add("scores of the other side with NaN", scores_of_the_other_side, "other.parquet", "row 0, column ranker_score")


# --- ratings ------------------------------------------------------------------------------------------------------------


def with_ratings(good: Good, name: str) -> list[str]:
    switches = ["threshold=3", "rank=2", "production=all", f"list_length={K}"]
    return ["simulate", "--data", name, "--impressions", "10", *(x for one in switches for x in ("--set", one))]


file_cases(
    "ratings.csv",
    {
        "is not there": removed,
        "is a folder": folder_instead,
        "has no bytes": content(b""),
        "has a header and no rows": content("user,item,rating\n"),
        "has other columns": (content("a,b\n1,2\n"), "user"),
        "has an empty user": (content("user,item,rating\n,1,5\n"), "row 0, column user"),
        "has an empty rating": (content("user,item,rating\n1,1,\n"), "row 0, column rating"),
        "has a word for a rating": (content("user,item,rating\n1,1,good\n"), "row 0, column rating"),
        "has an infinite rating": (content("user,item,rating\n1,1,inf\n"), "row 0, column rating"),
        "has a pair twice": content("user,item,rating\n1,1,5\n1,1,4\n"),
        "has a long line": content("user,item,rating\n1,1,5\n1,2,4,3\n"),
        "is Latin-1": content("user,item,rating\ncaf\xe9,1,5\n".encode("latin-1")),
        "is zeros": content(bytes(500)),
        "has nothing relevant": content("user,item,rating\n1,1,1\n2,2,1\n"),
        "is of one user": Between(content("user,item,rating\n1,1,5\n1,2,1\n"), "rank"),
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


def policy_cases(damages: dict[str, Damage]) -> None:
    """A damaged policy, given to one command after the other."""
    for number, (what, damage) in enumerate(damages.items()):

        def case(good: Good, folder: Path, number: int = number, damage: Damage = damage) -> list[str]:
            shutil.copytree(good.path("policy"), folder / "policy")
            damage(folder / "policy")
            log = ["--logs", good.path("log.parquet")]
            return [
                ["estimate", *log, "--policy", "policy", "--propensity", "frequency"],
                ["evaluate", "--policy", "policy", "--data", good.path("ratings.csv"), "--set", "threshold=3"],
                ["learn", *log, "--start", "policy"],
                ["compare", *log, "--policy", good.path("policy"), "--against", "policy", "--propensity", "frequency"],
                ["estimate", *log, "--policy", good.path("policy"), "--logging-policy", "policy"],
            ][number % 5]

        add(f"policy {what}", case, "policy")


def config_with(**values: object) -> Damage:
    """Its config.json with some values replaced; None leaves one out."""

    def damage(policy: Path) -> None:
        config = json.loads((policy / "config.json").read_text()) | values
        (policy / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    return damage


def stage_with(**values: object) -> Damage:
    """The same of its generator."""

    def damage(policy: Path) -> None:
        config = json.loads((policy / "config.json").read_text())
        config["stages"]["generator"] |= values
        (policy / "config.json").write_text(json.dumps(config))

    return damage


def of_file(name: str, damage: Damage) -> Damage:
    return lambda policy: damage(policy / name)


def vocabulary_with(**columns: object) -> Damage:
    return of_file("vocabulary.parquet", changed(**columns))


def lying_header(whole: bytes) -> bytes:
    """A safetensors file whose header says that it is longer than the file."""
    return struct.pack("<Q", 2**60) + whole[8:]


def tensors_with(change: Callable[[Tensor], Tensor]) -> Damage:
    """The same names with other numbers."""
    return lambda path: save_file({name: change(t) for name, t in load_file(path).items()}, path)


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
        "with weights of a folder": of_file("weights.safetensors", folder_instead),
        "with weights that are NaN": of_file("weights.safetensors", tensors_with(lambda t: t * float("nan"))),
        "with weights that are infinite": of_file("weights.safetensors", tensors_with(lambda t: t / 0)),
        "with weights whose products are infinite": of_file(
            "weights.safetensors", tensors_with(lambda t: t * 0 + 1e30)
        ),
        "with weights of double precision": of_file("weights.safetensors", tensors_with(lambda t: t.double())),
        "with weights that are integers": of_file("weights.safetensors", tensors_with(lambda t: t.long())),
        "with weights of another shape": of_file("weights.safetensors", tensors_with(lambda t: t[:-1].clone())),
        "with weights of one dimension": of_file("weights.safetensors", tensors_with(lambda t: t.flatten())),
        "with weights of a huge header": of_file(
            "weights.safetensors", content(struct.pack("<Q", 10**6) + b"{" * 10**6)
        ),
        "with a vocabulary that is text": of_file("vocabulary.parquet", content("query_id,item_id\n0,0\n")),
        "with a vocabulary of no rows": of_file("vocabulary.parquet", rewritten(lambda frame: frame[:0])),
        "with a config of NaN": config_with(K=float("nan")),
        "with a config that says more": config_with(colour="red"),
        "with only one stage": config_with(stages={"generator": {"kind": "factorisation", "sizes": {}}}),
        "with weights that are text": of_file("weights.safetensors", content("weights")),
        "with vocabulary cut off": of_file("vocabulary.parquet", kept(lambda whole: whole[:-50])),
        "with other columns in the vocabulary": vocabulary_with(item_id=None),
        "with an item twice": vocabulary_with(item_id=[0, 0, *range(2, D), *[None] * (Q - D)]),
        "with a query twice": vocabulary_with(query_id=[0, 0, *range(2, Q)]),
        "with fewer ids than weights": of_file("vocabulary.parquet", rewritten(lambda frame: frame[:5])),
        "with ids of floats": vocabulary_with(query_id=[x + 0.5 for x in range(Q)]),
    }
)


def policy_of_another_log(good: Good, folder: Path) -> list[str]:
    shutil.copytree(good.path("policy"), folder / "policy")
    vocabulary_with(query_id=[x + 1000 for x in range(Q)])(folder / "policy")
    pair = ["--policy", good.path("policy"), "--logging-policy", "policy"]
    return ["estimate", "--logs", good.path("log.parquet"), *pair]


def policy_without_an_item(good: Good, folder: Path) -> list[str]:
    """What it did not know it cannot have shown; to be refused before the training, not after it."""
    shutil.copytree(good.path("policy"), folder / "policy")
    vocabulary_with(item_id=[*range(D - 1), 1000, *[None] * (Q - D)])(folder / "policy")
    return ["learn", "--logs", good.path("log.parquet"), "--logging-policy", "policy", "--out", "pair"]


add("policy that drew a log with an item it does not know", policy_without_an_item, "known ids")
add("policy with queries of another log", policy_of_another_log, "unknown query ids", "the policy that drew the log")


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
    "with an unknown choice": "propensity = 'guessed'\n",
    "with a section": "[learning]\npropensity = 'frequency'\n",
    "with an infinite number": "temperature = inf\n",
    "with a date": "rank = 2020-01-01\n",
    "with a threshold beyond single precision": "threshold = -1e300\n",
    "with a learning rate beyond single precision": "learning_rate = 1e300\n",
    "with a yes for a number": "rank = 'yes'\n",
    "with half a curve": "examination = [1.0, 'half']\n",
    "with an integer of 5000 hexadecimal digits": "rank = 0x" + "f" * 5000 + "\n",
    "with a share above 1": "production_share = 1.5\n",
    "with switches that exclude each other": "exclude = 'shown'\nsafe = true\n",
    "with half a switch": "safe = 'maybe'\n",
    "with a switch twice": "queries = 60\nqueries = 61\n",
    "nested deeply": "x = " + "[" * 5000 + "]" * 5000 + "\n",
    "with a huge integer": "queries = " + "9" * 5000 + "\n",
    "with an integer of 64 bits": f"queries = {2**63}\n",
    "that is zeros": bytes(100),
}
ABOUT = {  # what the message names: the switch, or the file where it cannot be read
    "with an unknown switch": "quries",
    "with a word for a number": "queries",
    "with half a query": "queries",
    "with a negative number": "items",
    "with NaN": "temperature",
    "with an infinite number": "temperature",
    "with a list for a number": "rank",
    "with a date": "rank",
    "with a threshold beyond single precision": "threshold",
    "with a learning rate beyond single precision": "learning_rate",
    "with a yes for a number": "rank",
    "with an integer of 5000 hexadecimal digits": "rank",
    "with an unknown choice": "propensity",
    "with half a curve": "examination",
    "with an integer of 64 bits": "queries",
    "with a share above 1": "production_share",
    "with switches that exclude each other": "exclude",
    "with half a switch": "safe",
}
for what, text in CONFIGS.items():
    add(f"configuration {what}", config_case(text), ABOUT.get(what, "switches.toml"))
add("configuration of learn with a switch of simulate", config_case("queries = 60\n", "learn"), "queries")
add("configuration that is not there", lambda good, folder: ["simulate", "--config", "nothing.toml"], "nothing.toml")
add("configuration that is a folder", lambda good, folder: ["simulate", "--config", good.path("policy")], "policy")

USAGE = {
    "a switch without a value": ["simulate", "--set", "queries"],
    "a switch of no name": ["simulate", "--set", "=5"],
    "a switch that is none": ["simulate", "--set", "speed=fast"],
    "a value that is none": ["simulate", "--set", "queries=[1"],
    "a switch under a value": ["simulate", "--set", "queries=5", "--set", "queries.more=1"],
    "an unknown preset": ["table", "--preset", "other"],
    "an unknown method": ["learn", "--logs", "LOG", "--method", "magic"],
    "an unknown methods list": ["table", "--methods", "joint,,magic"],
    "a study with methods": ["table", "--preset", "stages", "--methods", "joint"],
    "a study without references": ["table", "--preset", "stages", "--no-references"],
    "a study of few items": ["table", "--preset", "stages", "--set", "items=100", "--set", "queries=100"],
    "a study of two lengths": ["table", "--preset", "stages", "--impressions", "10,20"],
    "a study of other stages": ["table", "--preset", "stages", "--set", "ranker=towers"],
    "auto and another method": ["learn", "--logs", "LOG", "--method", "auto", "--method", "joint"],
    "candidates in words": ["table", "--candidates", "many"],
    "candidates of nothing": ["table", "--candidates", ""],
    "negative candidates": ["table", "--candidates", "-5"],
    "more candidates than items": ["table", "--candidates", "100000"],
    "an unknown propensity": ["learn", "--logs", "LOG", "--set", "propensity=magic"],
    "an unknown objective": ["learn", "--logs", "LOG", "--set", "objective=magic"],
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
    "a seed beyond 63 bits": ["evaluate", "--policy", "POLICY", "--data", "RATINGS", "--seed", str(2**63)],
    "a seed in words": ["simulate", "--seed", "many"],
    "an unknown command": ["magic"],
    "a live demonstration into a file": ["demo", "--live", "--out", "LOG"],
    "a live demonstration under a file": ["demo", "--live", "--out", "LOG/demo"],
    "a live demonstration over a policy": ["demo", "--live", "--out", "POLICY"],
    "a live demonstration with a negative seed": ["demo", "--live", "--seed", "-1"],
    "too long a name of a live demonstration": ["demo", "--live", "--out", LONG_NAME],
    "a live demonstration on several processes": ["demo", "--live", "--jobs", "2", "--out", "out"],
    "a demonstration with a negative seed": ["demo", "--seed", "-1"],
    "a demonstration on no processes": ["demo", "--jobs", "0"],
    "a demonstration into a file": ["demo", "--out", "LOG"],
    "a demonstration under a file": ["demo", "--out", "LOG/demo"],
    "too long a name of a demonstration": ["demo", "--out", LONG_NAME],
    "recommendations of nothing": ["recommend"],
    "recommendations of a log": ["recommend", "LOG"],
    "recommendations without what to leave out": ["recommend", "POLICY", "--logs", "LOG"],
    "recommendations without the log to leave out": ["recommend", "POLICY", "--exclude", "clicked"],
    "recommendations without what is unknown": ["recommend", "POLICY", "--exclude", "magic", "--logs", "LOG"],
    "recommendations with a seed and nothing drawn": ["recommend", "POLICY", "--seed", "3"],
    "recommendations drawn without some": ["recommend", "POLICY", "--sample", "--exclude", "clicked", "--logs", "LOG"],
    "recommendations to queries in words": ["recommend", "POLICY", "--queries", "1,two"],
    "recommendations to queries of a file that is not there": ["recommend", "POLICY", "--queries", "nothing.parquet"],
    "recommendations over the log": ["recommend", "POLICY", "--out", "LOG"],
    "too long a name of recommendations": ["recommend", "POLICY", "--out", LONG_NAME],
    "an unknown exclusion": ["learn", "--logs", "LOG", "--set", "exclude=magic"],
    "an exclusion of all that is learned from": [
        "learn",
        "--logs",
        "LOG",
        "--set",
        "exclude=clicked",
        "--set",
        "objective=ips",
    ],
    "an evaluation of nothing": ["evaluate"],
    "an evaluation of a log": ["evaluate", "--policy", "LOG"],
    "an evaluation on data that is not there": ["evaluate", "--policy", "POLICY", "--data", "nothing.csv"],
    "an evaluation without a threshold": ["evaluate", "--policy", "POLICY", "--data", "RATINGS"],
    "an evaluation of no samples": ["evaluate", "--policy", "POLICY", "--samples", "0"],
    "an evaluation on other items": ["evaluate", "--policy", "POLICY", "--set", "queries=60", "--set", "items=30"],
    "an evaluation of queries of a log that is not there": [
        *["evaluate", "--policy", "POLICY", "--data", "RATINGS", "--set", "threshold=3"],
        *["--logs", "nothing.parquet"],
    ],
    "a simulation into a file": ["simulate", "--out", "LOG"],
    "a simulation of data and sizes": ["simulate", "--data", "RATINGS", "--set", "queries=60", "--set", "threshold=3"],
    "a simulation of lists longer than the items": ["simulate", "--set", "queries=20", "--set", "items=5"],
    "a table with a learning rate of 0": ["table", "--set", "learning_rate=0"],
    "a table of no runs": ["table", "--runs", "0"],
    "a table on an unknown engine": ["table", "--engine", "magic"],
    "a table of both numbers of candidates": ["table", "--candidates", "10,ten"],
    "a table of half an impression": ["table", "--impressions", "0.5"],
    "learning over a saved policy": ["learn", "--logs", "LOG", "--out", "POLICY"],
    "learning into the log": ["learn", "--logs", "LOG", "--out", "LOG"],
    "learning from two starts": [
        *["learn", "--logs", "LOG", "--start", "POLICY"],
        *["--item-embeddings", "EMBEDDINGS", "--query-embeddings", "EMBEDDINGS"],
    ],
    "learning from half the embeddings": ["learn", "--logs", "LOG", "--item-embeddings", "EMBEDDINGS"],
    "learning with more places than candidates": [
        *["learn", "--logs", "LOG", "--set", "list_length=5", "--candidates", "4", "--set", "propensity=frequency"]
    ],
    "learning with a switch without effect": ["learn", "--logs", "LOG", "--method", "beliefs", "--set", "epochs=3"],
    "learning without propensities": ["learn", "--logs", "LOG", "--set", "propensity=logged"],
    "learning exactly without a logger": ["learn", "--logs", "LOG", "--set", "propensity=exact"],
    "learning from ratings": ["learn", "--logs", "RATINGS"],
    "learning from no log": ["learn"],
    "learning from a log that is not there": ["learn", "--logs", "nothing*.parquet"],
    "valuing ratings": ["estimate", "--logs", "RATINGS", "--policy", "POLICY"],
    "valuing a log": ["estimate", "--logs", "LOG", "--policy", "LOG"],
    "valuing scores that are ratings": ["estimate", "--logs", "LOG", "--scores", "RATINGS"],
    "valuing scores with more places than candidates": [
        *["estimate", "--logs", "LOG", "--scores", "SCORES", "--candidates", "2", "--list-length", "3"]
    ],
    "valuing candidates in words": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--candidates", "4,many"],
    "valuing more candidates than items": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--candidates", "4,900"],
    "a page of one number of candidates": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--report", "page.html"],
    "comparing two K2": ["compare", "--logs", "LOG", "--scores", "SCORES", "--candidates", "4,5"],
    "exporting a log": ["export", "LOG", "--to", "numpy"],
    "exporting to nobody": ["export", "POLICY", "--to", "paper"],
    "exporting networks that are not there": ["export", "POLICY", "--to", "onnx"],
    "exporting over the policy": ["export", "POLICY", "--to", "numpy", "--out", "POLICY"],
    "comparing with ratings": ["compare", "--logs", "LOG", "--policy", "POLICY", "--against", "RATINGS"],
    "comparing nothing": ["compare", "--logs", "LOG"],
    "deciding about nothing": ["decide", "--logs", "LOG"],
    "titles without a page": ["decide", "--logs", "LOG", "--policy", "POLICY", "--titles", "FEATURES"],
    "pictures of no table": ["learn", "--logs", "LOG", "--images"],
    "deciding about a pair twice": ["decide", "--logs", "LOG", "--policy", "POLICY", "--policy", "POLICY"],
    "deciding about ratings": ["decide", "--logs", "LOG", "--scores", "RATINGS"],
    "deciding on ratings": ["decide", "--logs", "RATINGS", "--policy", "POLICY"],
    "deciding at a level of 2": ["decide", "--logs", "LOG", "--policy", "POLICY", "--level", "2"],
    "deciding by at least NaN": ["decide", "--logs", "LOG", "--policy", "POLICY", "--at-least", "nan"],
    "deciding by a share of the clicks above 1": [
        *["decide", "--logs", "LOG", "--policy", "POLICY", "--risk", "2", "--propensity", "frequency"]
    ],
    "deciding by an unknown column": [
        *["decide", "--logs", "LOG", "--policy", "POLICY", "--segment", "country", "--propensity", "frequency"]
    ],
    "deciding with a report over a log": [
        *["decide", "--logs", "LOG", "--policy", "POLICY", "--report", "LOG", "--propensity", "frequency"]
    ],
    "serving nothing": ["serve", "nothing"],
    "serving a log": ["serve", "LOG"],
    "serving with an unknown exploration": ["serve", "POLICY", "--exploration", "temperature:hot"],
    "serving with a log that is a file": ["serve", "POLICY", "--log", "LOG", "--port", "0"],
    "serving with a token that is not there": ["serve", "POLICY", "--token-file", "nothing"],
    "serving to everybody without a token": ["serve", "POLICY", "--host", "0.0.0.0", "--port", "0"],
    "serving at a level of 1": ["serve", "POLICY", "--level", "1"],
    "validating a URL of nobody's protocol": ["validate", "magic://bucket/log"],
    "validating a URL with nothing there": ["validate", "memory://nothing/log"],
    "estimating by a URL with nothing there": ["estimate", "--logs", "memory://nothing/log", "--policy", "POLICY"],
    "estimating by a pattern at a URL": ["estimate", "--logs", "memory://nothing/*.parquet", "--policy", "POLICY"],
    "learning from a URL with nothing there": ["learn", "--logs", "memory://nothing/log", "--out", "out"],
    "learning from a file:// URL that is not there": ["learn", "--logs", "file:///nothing/log", "--out", "out"],
    "deciding by a URL of nobody's protocol": ["decide", "--logs", "magic://bucket/log", "--policy", "POLICY"],
    "replaying a URL with nothing there": ["replay", "memory://nothing/log", "--policies", "."],
    "sealing nothing": ["seal", "nothing", "--policies", "."],
    "sealing a file": ["seal", "LOG", "--policies", "."],
    "serving under a strange name": ["serve", "POLICY", "--log", "log", "--replica", "a/b", "--port", "0"],
    "sealing with a window that is not a number": ["seal", ".", "--policies", ".", "--window", "nan"],
    "sealing with a window in words": ["seal", ".", "--policies", ".", "--window", "long"],
    "a doctor of something": ["doctor", "something"],
    "replaying nothing": ["replay", "nothing", "--policies", "."],
    "replaying a log that was not served": ["replay", "LOG", "--policies", "."],
    "replaying ratings": ["replay", "RATINGS", "--policies", "."],
    "replaying with policies that are not there": ["replay", "SERVED", "--policies", "nothing"],
    "replaying with policies in a file": ["replay", "SERVED", "--policies", "LOG"],
    "replaying without the folder of policies": ["replay", "SERVED"],
    "replaying a folder without segments": ["replay", "POLICY", "--policies", "."],
    "examining one rank": ["examine", "LOG", "--list-length", "1"],
    "examining ratings": ["examine", "RATINGS"],
    "examining a policy": ["examine", "POLICY/weights.safetensors"],
    "valuing a shadow list that is not there": ["estimate", "--logs", "LOG", "--shadow", "nothing"],
    "valuing shadow lists that are clicks twice": [
        "estimate",
        "--logs",
        "LOG",
        "--shadow",
        "a=items",
        "--shadow",
        "a=items",
    ],
    "valuing a shadow list without a name": ["estimate", "--logs", "LOG", "--shadow", "=items"],
    "valuing a policy beside a shadow list": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--shadow", "a=items"],
    "comparing a shadow list with itself": ["compare", "--logs", "LOG", "--shadow", "a=items", "--against", "a"],
    "comparing a shadow list with nothing": ["compare", "--logs", "LOG", "--shadow", "a=items", "--against", "b"],
    "deciding about a shadow list that is a log": ["decide", "--logs", "LOG", "--shadow", "a=RATINGS"],
    "learning a reward that is not there": ["learn", "--logs", "LOG", "--out", "out", "--reward", "nothing"],
    "learning a reward by training": ["learn", "--logs", "LOG", "--out", "out", "--reward", "x", "--method", "joint"],
    "valuing by a reward that is not there": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--reward", "nothing"],
    "valuing by a reward that is no number": ["estimate", "--logs", "LOG", "--policy", "POLICY", "--reward", "items"],
    "valuing by a reward of lists that is not there": [
        *["estimate", "--logs", "LOG", "--policy", "POLICY", "--list-reward", "nothing"]
    ],
    "deciding with a guardrail that is not there": [
        *["decide", "--logs", "LOG", "--policy", "POLICY", "--guardrail", "nothing", "--propensity", "frequency"]
    ],
    "deciding with a guardrail in words": ["decide", "--logs", "LOG", "--policy", "POLICY", "--guardrail", "x=much"],
    "judging nothing": ["judge", "--out", "out.qrels"],
    "judging ratings": ["judge", "RATINGS", "--out", "out.qrels"],
    "judging into an unknown format": ["judge", "LOG", "--out", "out.xml"],
    "judging over the log": ["judge", "LOG", "--out", "LOG"],
    "judging at a level of 2": ["judge", "LOG", "--out", "out.csv", "--level", "2"],
    "evaluating by judgements that are a log": ["evaluate", "--policy", "POLICY", "--qrels", "LOG"],
    "evaluating by judgements that are not there": ["evaluate", "--policy", "POLICY", "--qrels", "nothing.qrels"],
    "evaluating by judgements and ratings": [
        *["evaluate", "--policy", "POLICY", "--qrels", "nothing.qrels", "--data", "RATINGS"]
    ],
    "evaluating a run that is a log": ["evaluate", "--policy", "LOG", "--qrels", "nothing.qrels"],
    "cleaning a log into itself": ["validate", "LOG", "--fix", "LOG"],
    "cleaning a log over a policy": ["validate", "LOG", "--fix", "POLICY"],
    "a name with a null byte": ["estimate", "--logs", "LOG", "--policy", "a\0b"],
    "a log with a null byte": ["examine", "a\0b"],
    "an unknown option": ["validate", "LOG", "--magic"],
    "deciding about a policy that is a log": ["decide", "--logs", "LOG", "--policy", "LOG"],
    "deciding by segments that are not there": [
        "decide",
        "--logs",
        "LOG",
        "--policy",
        "POLICY",
        "--segments",
        "country",
    ],
    "importing an unknown format": ["import", "LOG", "--from", "bing", "--out", "out"],
    "importing without a format": ["import", "LOG", "--out", "out"],
    "importing a log of ours as a long table": ["import", "LOG", "--from", "long", "--out", "out"],
    "importing ratings as sessions": ["import", "RATINGS", "--from", "clax", "--out", "out"],
    "importing a folder": ["import", "POLICY", "--from", "ubi", "--out", "out"],
    "importing a column without a name": ["import", "LOG", "--from", "long", "--column", "user", "--out", "out"],
    "importing a column that is not there": [
        "import",
        "LOG",
        "--from",
        "clax",
        "--column",
        "clicks=no",
        "--out",
        "out",
    ],
    "importing over a policy": [
        "import",
        "RATINGS",
        "--from",
        "long",
        "--column",
        "query_id=user",
        "--column",
        "item_id=item",
        "--column",
        "click=rating",
        "--out",
        "POLICY",
    ],
    "importing too long a name": ["import", LONG_NAME + ".csv", "--from", "long", "--out", "out"],
}


def usage_case(arguments: list[str]) -> Case:
    names = {
        "LOG": "log.parquet", "POLICY": "policy", "SCORES": "scores.parquet", "RATINGS": "ratings.csv",
        "FEATURES": "item_features.parquet", "EMBEDDINGS": "item_embeddings.parquet", "SERVED": "segment-0-000000.parquet",
    }  # fmt: skip

    def path(good: Good, argument: str) -> str:
        name, slash, rest = argument.partition("/")
        return good.path(names[name]) + slash + rest if name in names else argument

    return lambda good, folder: [path(good, a) for a in arguments]


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
        "is shorter than the lists": Between(content("[1, 0.5]"), "examination curve"),
        "is nested": content("[[1, 0.5, 0.3]]"),
        "is nested deeply": content("[" * 100_000),
        "has an integer of 5000 digits": content("[" + "9" * 5000 + "]"),
        "is 0 where there are clicks": Between(content("[1, 0, 0.3]"), "examination curve is 0 at rank 2"),
        "is too small to be true": content("[1, 1e-300, 0.3]"),
        "has an integer of 400 digits": content("[1, " + "9" * 400 + ", 0.1]"),
    },
    with_curve,
)


def blind_curve(good: Good, folder: Path) -> list[str]:
    (folder / "curve.json").write_text("[1, 0, 0.3]")
    more = ["--set", "propensity=frequency", "--out", "pair"]
    return ["learn", "--logs", good.path("log.parquet"), "--curve", "curve.json", *more]


add("curve of learn that is 0 where there are clicks", blind_curve, "examination curve is 0 at rank 2")


# --- segments of a served log -------------------------------------------------------------------------------------------


def in_each_row(**columns: pl.Expr) -> Damage:
    def do(path: Path) -> None:
        pl.read_parquet(path).with_columns(**columns).write_parquet(path)

    return do


def replayed(good: Good, name: str) -> list[str]:
    return ["replay", name, "--policies", str(good.folder)]


file_cases(
    "segment-0-000000.parquet",
    {
        "is not there": removed,
        "is a folder": folder_instead,
        "has no bytes": content(b""),
        "is text": content("a segment\n" * 20),
        "has a mixture in words": in_each_row(mixture=pl.lit("both")),
        "has a mixture of numbers": in_each_row(mixture=pl.lit("[[1, 2, 3]]")),
        "has an empty mixture": in_each_row(mixture=pl.lit("[]")),
        "has shares above 1": in_each_row(mixture=pl.col("mixture").str.replace("1.0", "3.5", literal=True)),
        "has no mixture": in_each_row(mixture=pl.lit(None, pl.String)),
        "has mixtures that are numbers": in_each_row(mixture=pl.lit(1)),
        "names a pair that is not there": Between(
            in_each_row(policy=pl.lit("0" * 16), mixture=pl.lit('[["0000000000000000", 1.0]]')), "0000000000000000"
        ),
        "names a pair that is not in its mixture": in_each_row(policy=pl.lit("0" * 16)),
        "has an unknown strategy": in_each_row(strategy=pl.lit("magic")),
        "has a strategy of NaN": in_each_row(strategy=pl.lit("temperature:nan")),
        "has strategies that are numbers": in_each_row(strategy=pl.lit(1)),
        "has keys in words": in_each_row(key=pl.lit("a key")),
        "has negative keys": in_each_row(key=pl.lit(-1)),
        "has no keys": in_each_row(key=pl.lit(None, pl.UInt64)),
        "has no places": in_each_row(places=pl.lit(0)),
        "has more places than the pair": in_each_row(places=pl.lit(1000)),
        "has places in words": in_each_row(places=pl.lit("three")),
        "has available items that are no JSON": in_each_row(available=pl.lit("[1, 2")),
        "has available items that are no list": in_each_row(available=pl.lit("7")),
        "has items that are no lists": in_each_row(items=pl.lit(1)),
        "has no items": in_each_row(items=pl.lit(None, pl.List(pl.Int64))),
        "has features that are no JSON": in_each_row(features=pl.lit("{")),
        "has features that are a list": in_each_row(features=pl.lit("[1]")),
    },
    replayed,
)


# --- checkpoints and grids ----------------------------------------------------------------------------------------------


def checkpoint_case(damage: Callable[[Good, Path], None]) -> Case:
    """A training that goes on from a checkpoint that is none of its own."""

    def case(good: Good, folder: Path) -> list[str]:
        path = folder / "pairs" / "checkpoints" / "generator-alone.safetensors"
        path.parent.mkdir(parents=True)
        (folder / "pairs" / MARK).write_text("training\n")
        damage(good, path)
        begin = [
            "--start",
            good.path("policy"),
            "--method",
            "joint",
            "--set",
            "propensity=frequency",
            "--candidates",
            "5",
        ]
        begin += ["--set", "epochs=1"]
        return ["learn", "--logs", good.path("log.parquet"), *begin, "--out", "pairs", "--resume"]

    return case


def weights_of_a_policy(good: Good, path: Path) -> None:
    shutil.copy(Path(good.path("policy")) / "weights.safetensors", path)


add("checkpoint of no bytes", checkpoint_case(lambda good, path: content(b"")(path)), "generator-alone.safetensors")
add(
    "checkpoint that is text",
    checkpoint_case(lambda good, path: content("checkpoint" * 9)(path)),
    "generator-alone.safetensors",
)
add(
    "checkpoint of zeros", checkpoint_case(lambda good, path: content(bytes(1000))(path)), "generator-alone.safetensors"
)
add(
    "checkpoint with a lying header",
    checkpoint_case(lambda good, path: content(lying_header(bytes(100)))(path)),
    "generator-alone.safetensors",
)
add("checkpoint that is a policy", checkpoint_case(weights_of_a_policy), "generator-alone.safetensors")
add("checkpoint that is a folder", checkpoint_case(lambda good, path: path.mkdir()), "generator-alone.safetensors")


def grid_case(config: bytes | None, mark: str = "grid\n", more: dict[str, bytes] | None = None) -> Case:
    """A folder with a finished cell, of which it cannot be told whose it is."""

    def case(good: Good, folder: Path) -> list[str]:
        cells = folder / "grid" / "cells"
        cells.mkdir(parents=True)
        (cells / "joint-K2-10-N-100-run-0.json").write_text("{}")
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
