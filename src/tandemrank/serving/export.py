"""A policy for the systems of others: its generator for vector indexes and search engines, its networks, its lists.

    numpy           vectors of queries and items, whose products are the generator's scores, and the ids in their order
    faiss           an exact index of the items, which `faiss.read_index` reads; the vectors of queries beside it
    opensearch, elasticsearch, vespa        items as lines to be loaded, with the mapping or schema; of a `Hybrid` its weights
    onnx            towers, networks and own torch models (`serving.onnx`)
    trec            run files: candidates of the generator, lists of the re-ranker

What a generator remembers of single pairs is no product: it is a list beside (`lists.parquet`), to be merged in after
retrieval. A pair in a list has the score of the list, -inf where it is not available. Then candidates are those of the policy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.arguments import checked
from tandemrank._base.files import Kind, as_json, has_keys, replacing
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies import candidates
from tandemrank.policies.hybrid import Hybrid
from tandemrank.policies.memory import Memory, Retrieval, WithMemory, base_of
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import onnx

EXPORT = Kind(
    "export",
    r"export\.json|[a-z_]+\.(npy|parquet|faiss|jsonl|json|sd|profile|onnx|trec)",
    lambda folder: has_keys(folder / "export.json", "export", "files"),
)
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """The generator as products, and the lists that are merged in.  Shapes: queries [Q, r]; items [D, r]."""

    queries: Floats
    items: Floats
    lists: pl.DataFrame | None

    @property
    def r(self) -> int:
        """Dimensions."""
        return int(self.items.shape[1])


@checked
def export(policy: TwoStagePolicy, to: str, folder: str | Path) -> Path:
    """Writes the policy for another system into a new folder; `to` is one of `FORMATS`.

    What it knows of contexts is left out: all is as in the average one. `export.json` names their columns.
    """
    if to not in FORMATS:
        raise ConfigError(f"export: expected one of {', '.join(FORMATS)}; got {to!r}.")
    with replacing(folder, EXPORT) as place:
        place.mkdir()
        FORMATS[to](policy, place)
        files = sorted(path.name for path in place.iterdir())
        about = {"export": to, "K2": policy.K2, "K": policy.K, "files": files}
        about |= {"average_over": list(policy.context_columns)} if policy.context_columns else {}
        _write_json(place / "export.json", about)
    return Path(folder)


# --- the generator as vectors -----------------------------------------------------------------------------------------


def vectors_of(policy: TwoStagePolicy) -> Vectors:
    """The generator's product and its lists; refuses a generator that is no product."""
    generator, memories = base_of(policy.generator), [m.memory for m in _remembering(policy.generator)]
    if isinstance(generator, Retrieval):
        vectors: tuple[Tensor, Tensor] = generator.queries, generator.items
    else:
        found = generator.factors(torch.arange(len(policy.vocabulary.query_ids)))
        if found is None:
            raise PolicyError(
                f"expected a generator that is a product of vectors; got a {generator.kind}. {_advice(policy)}"
            )
        vectors = found.queries, found.items
    queries, items = (np.ascontiguousarray(x.detach().float().numpy()) for x in vectors)
    return Vectors(queries, items, _lists(memories, policy))


def _remembering(generator: Scorer) -> list[WithMemory]:
    """Who of a generator and its base remembers pairs."""
    return [one for one in dict.fromkeys((generator, base_of(generator))) if isinstance(one, WithMemory)]


def _advice(policy: TwoStagePolicy) -> str:
    if isinstance(policy.generator, Hybrid):
        return "Its weights are for opensearch, elasticsearch and vespa."
    if candidates.is_one_stage(policy):
        return "All items are candidates, so there is one stage: learn with fewer (--candidates)."
    return "Export its lists (trec) or its networks (onnx)."


def _lists(memories: list[Memory], policy: TwoStagePolicy) -> pl.DataFrame | None:
    """The pairs that are remembered, with the scores that the generator gives them; None where there are none."""
    pairs = [np.column_stack([memory.query, memory.item]) for memory in memories]
    every = np.unique(np.concatenate([np.zeros((0, 2), np.int64), *pairs]), axis=0)
    if not len(every):
        return None
    q, d = (torch.from_numpy(x) for x in every.T.copy())
    with torch.no_grad():
        score = policy.generator.score(q, d[:, None])[:, 0].numpy()
    ids = policy.vocabulary
    named = {"query_id": ids.query_ids.gather(every[:, 0]), "item_id": ids.item_ids.gather(every[:, 1])}
    return pl.DataFrame({**named, "score": score})


def _numpy(policy: TwoStagePolicy, place: Path) -> None:
    found = vectors_of(policy)
    np.save(place / "items.npy", found.items)
    _beside(found, policy, place)


def _faiss(policy: TwoStagePolicy, place: Path) -> None:
    found = vectors_of(policy)
    faiss = onnx.extra("faiss")
    index = faiss.IndexFlatIP(found.r)
    index.add(found.items)
    faiss.write_index(index, str(place / "items.faiss"))
    _beside(found, policy, place)


def _beside(found: Vectors, policy: TwoStagePolicy, place: Path) -> None:
    """Vectors of queries, ids in the order of the vectors, and the lists."""
    np.save(place / "queries.npy", found.queries)
    for name in ("query", "item"):
        ids = getattr(policy.vocabulary, f"{name}_ids")
        pl.DataFrame({f"{name}_id": ids}).write_parquet(place / f"{name}_ids.parquet")
    _write_lists(found, place)


def _write_lists(found: Vectors, place: Path) -> None:
    if found.lists is not None:
        found.lists.write_parquet(place / "lists.parquet")


# --- search engines ---------------------------------------------------------------------------------------------------


def _engine(
    name: str,
    definition: Callable[[int], Mapping[str, Any]],
    hybrid: Callable[[Mapping[str, float], int], Mapping[str, Any]],
) -> Callable[[TwoStagePolicy, Path], None]:
    """OpenSearch and Elasticsearch: a bulk file and a mapping, or the weights of a hybrid."""

    def write(policy: TwoStagePolicy, place: Path) -> None:
        if isinstance(policy.generator, Hybrid):
            _write_json(place / f"{name}.json", hybrid(policy.generator.shares, policy.K2))
            _write_weights(policy.generator, place)
            return
        found = vectors_of(policy)
        frame = _items(found, policy)
        index = pl.struct(index=pl.struct(_id=pl.col("item_id"))).struct.json_encode()
        _write_lines(place / "items.jsonl", frame, pl.concat_str(index, pl.lit("\n"), _json("item_id", "embedding")))
        _write_json(place / "mapping.json", definition(found.r))
        _write_queries(found, policy, place)

    return write


def _items(found: Vectors, policy: TwoStagePolicy) -> pl.DataFrame:
    """Ids as texts, and vectors."""
    ids = policy.vocabulary.item_ids.cast(pl.String)
    return pl.DataFrame({"item_id": ids, "embedding": pl.Series(found.items).cast(pl.List(pl.Float32))})


def _json(*columns: str) -> pl.Expr:
    return pl.struct(*columns).struct.json_encode()


def _write_queries(found: Vectors, policy: TwoStagePolicy, place: Path) -> None:
    """The vectors that known queries are asked with, and the lists."""
    vectors = pl.Series(found.queries).cast(pl.List(pl.Float32))
    frame = pl.DataFrame({"query_id": policy.vocabulary.query_ids.cast(pl.String), "embedding": vectors})
    _write_lines(place / "queries.jsonl", frame, _json("query_id", "embedding"))
    _write_lists(found, place)


def _write_lines(path: Path, frame: pl.DataFrame, line: pl.Expr) -> None:
    path.write_text("\n".join([*frame.select(line).to_series().to_list(), ""]), encoding="utf-8")


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(as_json(value), encoding="utf-8")


def _opensearch(r: int) -> dict[str, Any]:
    method = {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"}
    vector = {"type": "knn_vector", "dimension": r, "method": method}
    properties = {"item_id": {"type": "keyword"}, "embedding": vector}
    return {"settings": {"index": {"knn": True}}, "mappings": {"properties": properties}}


def _elasticsearch(r: int) -> dict[str, Any]:
    vector = {"type": "dense_vector", "dims": r, "index": True, "similarity": "max_inner_product"}
    return {"mappings": {"properties": {"item_id": {"type": "keyword"}, "embedding": vector}}}


def _vespa(policy: TwoStagePolicy, place: Path) -> None:
    """A feed and a schema, or the rank profile of a hybrid."""
    if isinstance(policy.generator, Hybrid):
        (place / "hybrid.profile").write_text(_profile(policy.generator.shares, policy.K2), encoding="utf-8")
        _write_weights(policy.generator, place)
        return
    found = vectors_of(policy)
    frame = _items(found, policy).with_columns(
        put=pl.concat_str(pl.lit("id:items:item::"), "item_id"),
        fields=pl.struct("item_id", embedding=pl.struct(values="embedding")),
    )
    _write_lines(place / "items.jsonl", frame, _json("put", "fields"))
    (place / "item.sd").write_text(SCHEMA.replace("DIMENSIONS", str(found.r)), encoding="utf-8")
    _write_queries(found, policy, place)


SCHEMA = """schema item {
    document item {
        field item_id type string {
            indexing: summary | attribute
        }
        field embedding type tensor<float>(x[DIMENSIONS]) {
            indexing: summary | attribute | index
            attribute {
                distance-metric: dotproduct
            }
        }
    }
    rank-profile generator {
        inputs {
            query(q) tensor<float>(x[DIMENSIONS])
        }
        first-phase {
            expression: sum(query(q) * attribute(embedding))
        }
    }
}
"""


# --- hybrid weights ---------------------------------------------------------------------------------------------------


def _pipeline(shares: Mapping[str, float], K2: int) -> dict[str, Any]:
    """A search pipeline of OpenSearch: the weights in the order of the clauses of the hybrid query."""
    combination = {"technique": "arithmetic_mean", "parameters": {"weights": list(shares.values())}}
    processor = {"normalization": {"technique": "min_max"}, "combination": combination}
    return {
        "description": f"clauses of the hybrid query in this order: {', '.join(shares)}; {K2} candidates",
        "phase_results_processors": [{"normalization-processor": processor}],
    }


def _retriever(shares: Mapping[str, float], K2: int) -> dict[str, Any]:
    """A linear retriever of Elasticsearch: put the query of each retriever in the place of match_none."""
    parts = [
        {
            "retriever": {"standard": {"_name": name, "query": {"match_none": {}}}},
            "weight": share,
            "normalizer": "minmax",
        }
        for name, share in shares.items()
    ]
    return {"retriever": {"linear": {"retrievers": parts, "rank_window_size": K2}}}


def _profile(shares: Mapping[str, float], K2: int) -> str:
    """A rank profile of Vespa; `retrievers` is the user's, with a function for each retriever."""
    terms = " + ".join(f"{share!r} * normalize_linear(score_{name})" for name, share in shares.items())
    functions = ", ".join(f"score_{name}()" for name in shares)
    return (
        f"# The profile `retrievers` has a function for the scores of each retriever: {functions}.\n"
        "rank-profile hybrid inherits retrievers {\n    global-phase {\n"
        f"        rerank-count: {K2}\n        expression: {terms}\n    }}\n}}\n"
    )


def _write_weights(generator: Hybrid, place: Path) -> None:
    """Where weights differ by query: those of every query."""
    assert generator.vocabulary is not None
    ids = generator.vocabulary.query_ids
    with torch.no_grad():
        weights = generator.weights(torch.arange(len(ids))).numpy()
    if generator.features is not None:
        columns = dict(zip(generator.names, weights.T, strict=True))
        pl.DataFrame({"query_id": ids, **columns}).write_parquet(place / "weights.parquet")


# --- run files --------------------------------------------------------------------------------------------------------


def _trec(policy: TwoStagePolicy, place: Path) -> None:
    """What the generator retrieves, and what the re-ranker shows of it: query, Q0, item, rank, score, name."""
    _check_names(policy)
    stages: dict[str, tuple[Scorer, Callable[[NDArray[np.int64]], NDArray[np.int32]]]] = {
        "shown": (policy.ranker, policy.most_likely)
    }
    if not candidates.is_one_stage(policy):
        stages["candidates"] = policy.generator, lambda q: candidates.top(policy, q)
    for name, (scorer, lists) in stages.items():
        with (place / f"{name}.trec").open("w", encoding="utf-8") as file:
            for part in policy.parts():
                file.write(_run(policy, scorer, part, lists(part), name))


def _run(policy: TwoStagePolicy, scorer: Scorer, q: NDArray[np.int64], lists: NDArray[np.int32], name: str) -> str:
    """The lines of some queries.  Shapes: q [B]; lists [B, n]."""
    with torch.no_grad():
        score = scorer.score(torch.from_numpy(q), torch.from_numpy(np.maximum(lists, 0).astype(np.int64))).numpy()
    row, k = np.nonzero(lists >= 0)
    frame = pl.DataFrame(
        {
            "query": policy.vocabulary.query_ids.gather(q[row]).cast(pl.String),
            "item": policy.vocabulary.item_ids.gather(lists[row, k]).cast(pl.String),
            "rank": k + 1,
            "score": score[row, k],
        }
    ).filter(pl.col("score").is_finite())
    line = pl.concat_str("query", pl.lit("Q0"), "item", "rank", "score", pl.lit(f"tandemrank-{name}"), separator=" ")
    return "".join(f"{words}\n" for words in frame.select(line).to_series())


def _check_names(policy: TwoStagePolicy) -> None:
    """Refuses ids that a line of words cannot have."""
    for name, ids in vars(policy.vocabulary).items():
        if name.endswith("_ids") and ids.dtype == pl.String and (wrong := ids.filter(ids.str.contains(r"^$|\s"))).len():
            raise PolicyError(
                f"trec: expected ids without spaces; got {wrong[0]!r} among the {name.replace('_', ' ')}."
            )


FORMATS: dict[str, Callable[[TwoStagePolicy, Path], None]] = {
    "numpy": _numpy,
    "faiss": _faiss,
    "opensearch": _engine("opensearch", _opensearch, _pipeline),
    "elasticsearch": _engine("elasticsearch", _elasticsearch, _retriever),
    "vespa": _vespa,
    "onnx": onnx.write,
    "trec": _trec,
}
