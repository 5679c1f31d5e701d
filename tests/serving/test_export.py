"""Exports: the same candidates in faiss, what engines are given, networks in ONNX, run files, embeddings of others."""

import json
import re
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

import tandemrank as tr
from tandemrank.beliefs.models import MeanModel, Network, Towers, Trees
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies import candidates
from tandemrank.policies.memory import Retrieval, excluding, memory_from, no_memory
from tandemrank.serving import onnx
from tandemrank.serving.export import export

Q, D, r, K2, K = 30, 200, 8, 20, 5
RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(n, r)).astype(np.float32) for n in (Q, D))
IDS = tr.Vocabulary(pl.Series([f"q{n}" for n in range(Q)]), pl.Series(np.arange(D) + 1000))
PAIRS = np.unique(RNG.integers(0, Q * D, 400))
LISTED = memory_from(PAIRS // D, (PAIRS % D).astype(np.int32), 5 * RNG.normal(size=len(PAIRS)).astype(np.float32), Q, D)
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "export.md").read_text(encoding="utf-8")


class House(tr.Ranker):
    def __init__(self, features):
        super().__init__()
        self.x, self.net = tr.buffer(features), nn.Sequential(nn.Linear(r, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 1))
        self.queries = nn.Parameter(torch.ones(Q, r))

    def score(self, q, items):
        return self.net(self.queries[q][:, None] * self.x[items]).squeeze(-1)


class AllItems(tr.Generator):
    def __init__(self, numbers):
        super().__init__()
        self.numbers = tr.buffer(numbers)

    def forward(self, q):
        return self.numbers.expand(q.shape[0], -1) * q[:, None]


class InNumpy(tr.Ranker):
    def score(self, q, items):
        return torch.from_numpy(np.sin(items.numpy() + q.numpy()[:, None])).float()


def policy_of(generator=None, ranker=None, K2: int = K2) -> tr.TwoStagePolicy:
    scorer = tr.MatrixFactorisation(X, Y)
    return tr.TwoStagePolicy(generator or scorer, ranker or scorer, K2, K, IDS)


def merged(found: np.ndarray, scores: np.ndarray, lists: pl.DataFrame | None) -> list[set[int]]:
    """What an index gave, with the list of each query: the recipe of docs/how-to/export.md."""
    out = []
    for q in range(Q):
        scored = dict(zip(found[q].tolist(), scores[q].tolist(), strict=True))
        if lists is not None:
            own = lists.filter(pl.col("query_id") == f"q{q}")
            scored |= dict(zip((own["item_id"] - 1000).to_list(), own["score"].to_list(), strict=True))
        best = sorted((d for d in scored if scored[d] > -np.inf), key=lambda d: -scored[d])
        out.append(set(best[:K2]))
    return out


@pytest.mark.parametrize("kind", ["retrieval", "factorisation", "excluding"])
def test_an_index_has_the_same_candidates(kind, tmp_path) -> None:
    faiss = pytest.importorskip("faiss")
    generator = Retrieval(X, Y, LISTED)
    if kind == "factorisation":
        generator = tr.MatrixFactorisation(X, Y)
    if kind == "excluding":
        gone = csr_matrix((np.ones(Q * 3), (np.repeat(np.arange(Q), 3), RNG.integers(0, D, Q * 3))), (Q, D))
        generator = excluding(generator, gone)
    policy = policy_of(generator)
    folder = export(policy, "faiss", tmp_path / "index")
    index, queries = faiss.read_index(str(folder / "items.faiss")), np.load(folder / "queries.npy")
    _, alone = index.search(queries, K2)
    ours = candidates.top(policy_of(Retrieval(X, Y, no_memory(Q, D))), np.arange(Q))
    assert [set(row) for row in alone] == [set(row) for row in ours]  # all of them, before lists are merged in
    lists = pl.read_parquet(folder / "lists.parquet") if (folder / "lists.parquet").exists() else None
    assert (lists is None) == (kind == "factorisation")
    scores, more = index.search(queries, K2 + 60)
    assert merged(more, scores, lists) == [set(row) for row in candidates.top(policy, np.arange(Q))]
    assert pl.read_parquet(folder / "item_ids.parquet")["item_id"].equals(IDS.item_ids)
    assert json.loads((folder / "export.json").read_text())["K2"] == K2


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_search_engines_get_vectors_line_by_line(tmp_path) -> None:
    policy = policy_of(Retrieval(X, Y, LISTED))
    for engine, vector in (("opensearch", "dimension"), ("elasticsearch", "dims")):
        folder = export(policy, engine, tmp_path / engine)
        found = lines(folder / "items.jsonl")
        assert found[0] == {"index": {"_id": "1000"}}
        np.testing.assert_array_equal(np.array([x["embedding"] for x in found[1::2]], np.float32), Y)
        assert json.loads((folder / "mapping.json").read_text())["mappings"]["properties"]["embedding"][vector] == r
        assert lines(folder / "queries.jsonl")[1]["query_id"] == "q1"
        assert (folder / "lists.parquet").exists()
    folder = export(policy, "vespa", tmp_path / "vespa")
    found = lines(folder / "items.jsonl")
    assert found[2]["put"] == "id:items:item::1002"
    np.testing.assert_array_equal(np.array([x["fields"]["embedding"]["values"] for x in found], np.float32), Y)
    schema = (folder / "item.sd").read_text()
    assert schema.count("tensor<float>(x[8])") == 2
    assert schema.count("{") == schema.count("}")


def test_hybrid_weights_are_written_for_engines(tmp_path) -> None:
    q, d = (x.ravel() for x in np.meshgrid([f"q{n}" for n in range(Q)], np.arange(D) + 1000, indexing="ij"))
    table = pl.DataFrame({"query_id": q, "item_id": d, "bm25": RNG.random(Q * D), "dense": RNG.random(Q * D)})
    features = pl.DataFrame({"query_id": IDS.query_ids, "long": np.arange(Q) % 2})
    policy = policy_of(tr.Hybrid(table, {"bm25": 0.25, "dense": 0.75}, query_features=features))
    found = json.loads((export(policy, "opensearch", tmp_path / "o") / "opensearch.json").read_text())
    processor = found["phase_results_processors"][0]["normalization-processor"]
    assert processor["combination"]["parameters"]["weights"] == pytest.approx([0.25, 0.75])
    assert "bm25, dense" in found["description"]
    found = json.loads((export(policy, "elasticsearch", tmp_path / "e") / "elasticsearch.json").read_text())
    linear = found["retriever"]["linear"]
    assert [one["weight"] for one in linear["retrievers"]] == pytest.approx([0.25, 0.75])
    assert linear["rank_window_size"] == K2
    folder = export(policy, "vespa", tmp_path / "v")
    profile = (folder / "hybrid.profile").read_text()
    [terms] = re.findall(r"expression: (.*)", profile)
    weights = {name: float(x) for x, name in re.findall(r"([\d.]+) \* normalize_linear\(score_(\w+)\)", terms)}
    assert weights == pytest.approx({"bm25": 0.25, "dense": 0.75})
    assert pl.read_parquet(folder / "weights.parquet").columns == ["query_id", "bm25", "dense"]
    with pytest.raises(PolicyError, match=r"got a Hybrid\. Its weights are for opensearch"):
        export(policy, "numpy", tmp_path / "n")


def test_run_files_are_read_as_such(tmp_path) -> None:
    policy = policy_of(Retrieval(X, Y, LISTED), tr.GivenScores(RNG.normal(size=(Q, D))))
    folder = export(policy, "trec", tmp_path / "run")
    measures = pytest.importorskip("ir_measures")
    shown = list(measures.read_trec_run(str(folder / "shown.trec")))
    by_query = {f"q{n}": [] for n in range(Q)}
    for one in sorted(shown, key=lambda one: -one.score):
        by_query[one.query_id].append(int(one.doc_id))
    assert by_query == dict(policy.recommend().iter_rows())
    found = list(measures.read_trec_run(str(folder / "candidates.trec")))
    ours = candidates.top(policy, np.arange(Q))
    assert [int(one.doc_id) - 1000 for one in found] == ours.ravel().tolist()
    spaces = tr.Vocabulary(pl.Series([f"q {n}" for n in range(Q)]), IDS.item_ids)
    with pytest.raises(PolicyError, match="without spaces; got 'q 0' among the query ids"):
        export(tr.TwoStagePolicy(policy.generator, policy.ranker, K2, K, spaces), "trec", tmp_path / "spaces")


def test_own_models_are_the_same_in_onnx(tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    policy = policy_of(AllItems(np.arange(D, dtype=float)), House(Y))
    folder = export(policy, "onnx", tmp_path / "net")
    q, items = torch.tensor([3, 1, 2]), torch.from_numpy(RNG.permutation(D)[:21].reshape(3, 7))
    [scores] = runtime.InferenceSession(str(folder / "ranker.onnx")).run(None, {"q": q.numpy(), "items": items.numpy()})
    np.testing.assert_allclose(scores, policy.ranker.score(q, items).detach(), rtol=1e-5, atol=1e-5)
    [scores] = runtime.InferenceSession(str(folder / "generator.onnx")).run(None, {"q": q.numpy()})
    np.testing.assert_allclose(scores, policy.generator(q), rtol=1e-5)
    with pytest.raises(PolicyError, match=r"the ranker .*(no function of tensors|outside of torch)"):
        export(policy_of(ranker=InNumpy()), "onnx", tmp_path / "numpy")
    with pytest.raises(PolicyError, match="expected a model of one's own"):
        export(policy_of(), "onnx", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize(("kind", "pair"), [(Towers, 0), (Towers, 2), (Network, 0), (Network, 2)])
def test_towers_and_networks_of_the_belief_are_the_same_in_onnx(kind, pair, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = kind((3, 4, pair))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    found = {one.name: one for one in onnx._of_features(SimpleNamespace(model=model))}
    assert set(found) == ({"f", "query_tower", "item_tower"} if kind is Towers else {"f"})
    u, z, p = (torch.randn(6, n) for n in (3, 4, pair))
    for name, network in found.items():
        onnx._write(network, tmp_path / f"{name}.onnx", runtime)
    given = {"u": u.numpy(), "z": z.numpy()} | ({"pair": p.numpy()} if pair else {})
    [scores] = runtime.InferenceSession(str(tmp_path / "f.onnx")).run(None, given)
    np.testing.assert_allclose(scores, model(u, z, p).detach(), rtol=1e-4, atol=1e-5)
    if kind is Towers and not pair:
        a, b = (
            runtime.InferenceSession(str(tmp_path / f"{name}_tower.onnx")).run(None, {x: given[x]})[0]
            for name, x in (("query", "u"), ("item", "z"))
        )
        np.testing.assert_allclose((a * b).sum(1), scores, rtol=1e-4, atol=1e-5)
    trees = Trees((3, 4, pair), (0, 0), 1, 1)
    assert not list(onnx._of_features(SimpleNamespace(model=MeanModel([model, trees]))))
    assert [one.name for one in onnx._of_features(SimpleNamespace(model=MeanModel([model, model])))] == ["f"]


def test_what_cannot_be_exported_is_refused(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"expected one of numpy, faiss, .*; got 'tensorflow'"):
        export(policy_of(), "tensorflow", tmp_path / "x")
    one_stage = policy_of(tr.GivenScores(np.zeros((Q, D))), K2=D)
    with pytest.raises(PolicyError, match=r"All items are candidates, so there is one stage"):
        export(one_stage, "numpy", tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_the_recipe_for_mlflow_runs(tmp_path, monkeypatch) -> None:
    """Against its interface: the package itself is large."""
    told: list[tuple[str, tuple]] = []
    names = ("log_params", "log_metrics", "log_artifact", "log_artifacts")
    fake = {name: lambda *given, name=name: told.append((name, given)) for name in names}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(start_run=nullcontext, **fake))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((900, 8)), 1)[:, :3]
    clicks = (rng.random(items.shape) < np.where(items < 3, 0.7, 0.1)).astype(int)
    log = pl.DataFrame({"query_id": rng.integers(0, 6, 900), "items": items, "clicks": clicks})
    [recipe] = [block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if "mlflow" in block]
    exec(recipe, {"new": tr.learn(log)})
    given = dict(told)
    assert {name for name, _ in told} == set(names)
    assert "difference" in given["log_metrics"][0]
    assert {Path(path).exists() for path in (given["log_artifact"][0], given["log_artifacts"][0])} == {True}


# --- embeddings of others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["sentence_transformers", "implicit", "rectools"])
@pytest.mark.filterwarnings("ignore")
def test_the_recipe_for_embeddings_of_another_package_runs(package, monkeypatch) -> None:
    """The code of docs/how-to/export.md, as it stands there; models of sentences need weights, so only their interface."""
    if package == "sentence_transformers":
        monkeypatch.setitem(sys.modules, package, SimpleNamespace(SentenceTransformer=Sentences))
    pytest.importorskip(package)
    [recipe] = [block for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if package in block]
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    clicked = (RNG.random((12, 9)) < 0.4).astype(np.float32)
    clicked[0], clicked[:, 0] = 1, 1  # everybody has a click
    query_ids, item_ids = [f"q{n}" for n in range(12)], list(range(9))
    given = {"tr": tr, "pl": pl, "query_ids": query_ids, "item_ids": item_ids, "clicked": csr_matrix(clicked)}
    given |= GIVEN[package](clicked) if package in GIVEN else {}
    exec(recipe, given)
    ids = tr.Vocabulary(pl.Series(query_ids), pl.Series(item_ids))
    found = given["start"].vectors(ids)
    assert (len(found.queries), len(found.items)) == (12, 9)
    assert np.isfinite(found.queries @ found.items.T).all()


def _dataset(clicked: np.ndarray) -> dict:
    import pandas as pd
    from rectools import Columns
    from rectools.dataset import Dataset

    q, d = np.nonzero(clicked)
    rows = {Columns.User: [f"q{n}" for n in q], Columns.Item: d, Columns.Weight: 1, Columns.Datetime: "2026-01-01"}
    return {"dataset": Dataset.construct(pd.DataFrame(rows))}


def _texts(clicked: np.ndarray) -> dict:
    return {"name": "a model", "query_texts": ["a", "bc"] * 6, "item_texts": ["b"] * 9}


class Sentences:
    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.array([[len(text), 1.0] for text in texts], np.float32)


GIVEN = {"rectools": _dataset, "sentence_transformers": _texts}
