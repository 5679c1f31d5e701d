"""Models of one's own: trained, saved by their arguments, loaded by class and by plugin; what goes wrong is a sentence."""

import json
import subprocess
import sys
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import tandemrank as tr
from tandemrank.errors import ConfigError, JobError, PolicyError
from tandemrank.policies.own import import_plugin
from tandemrank.policies.scorers import Scorer
from tandemrank.serving.client import started

Q, D, K2, K = 6, 12, 6, 3
X = np.random.default_rng(0).normal(size=(D, 8)).astype(np.float32)
VOCABULARY = tr.Vocabulary(pl.Series(range(Q)), pl.Series([f"item {d}" for d in range(D)]))
PLUGIN = """
import tandemrank as tr
from torch import nn

class PluginRanker(tr.Ranker):
    def __init__(self, features, *, width=1):
        super().__init__()
        self.x, self.net = tr.buffer(features), nn.Linear(features.shape[1], width)

    def score(self, q, items):
        return self.net(self.x[items]).sum(-1)
"""


class MyRanker(tr.Ranker):
    def __init__(self, features):
        super().__init__()
        self.x, self.net = tr.buffer(features), nn.Linear(8, 1)

    def score(self, q, items):
        return self.net(self.x[items]).squeeze(-1)


class Vectors(tr.Generator):
    def prepare(self):
        generator = torch.Generator().manual_seed(1)
        sizes = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
        self.queries, self.items = (nn.Parameter(torch.randn(n, 3, generator=generator)) for n in sizes)


class Everything(tr.Generator):
    def __init__(self, scores):
        super().__init__()
        self.items = tr.buffer(scores)  # not a vector: `forward` says what it is

    def forward(self, q):
        return self.items.expand(len(q), -1)


class PairFunction(tr.Ranker):
    """Features of a pair, computed when they are asked for."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4, 1))

    def score(self, q, items):
        assert not self.training
        apart = (q[:, None] - items).float() / 10
        return self.net(torch.stack([apart.sin(), apart.cos()], -1)).squeeze(-1)


class Encoder(nn.Module):
    """The interface of sentence-transformers: texts in, vectors out."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(128, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def encode(self, texts):
        codes = [torch.tensor([ord(c) % 128 for c in text]) for text in texts]
        return torch.stack([self.layer(self.letters(code)[None])[0].mean(0) for code in codes])


class TextRanker(tr.Ranker):
    def __init__(self, queries):
        super().__init__()
        self.texts, self.encoder = queries, Encoder()

    def score(self, q, items):
        names = self.vocabulary.item_ids.to_list()
        of_queries = self.encoder.encode([self.texts[n] for n in q.tolist()])
        of_items = self.encoder.encode([names[n] for n in items.ravel().tolist()]).view(*items.shape, -1)
        return (of_queries[:, None] * of_items).sum(-1)


class FromFile(tr.Ranker):
    def __init__(self, path):
        super().__init__()
        self.numbers = tr.buffer(np.load(path))

    def score(self, q, items):
        return self.numbers[q[:, None], items]


class OverHttp(tr.Ranker):
    def __init__(self, url, seconds=0.5):
        super().__init__()
        self.url, self.seconds = url, seconds

    def score(self, q, items):
        body = json.dumps({"q": q.tolist(), "items": items.tolist()}).encode()
        with urlopen(Request(self.url, body), timeout=self.seconds) as answer:
            return torch.tensor(json.load(answer), dtype=torch.float64)


def policy_of(ranker, generator=None) -> tr.TwoStagePolicy:
    return tr.TwoStagePolicy(generator or Vectors(), ranker, K2, K, VOCABULARY)


@pytest.fixture(autouse=True)
def _weights_of_a_seed():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    np.save(tmp_path / "numbers.npy", np.random.default_rng(1).normal(size=(Q, D)))
    return str(tmp_path / "numbers.npy")


@pytest.mark.parametrize("name", ["linear", "pairs", "text", "file", "vectors", "everything"])
def test_it_is_saved_and_loaded_with_its_arguments(name, numbers, tmp_path) -> None:
    stages = {
        "linear": lambda: (MyRanker(X), None),
        "pairs": lambda: (PairFunction(), None),
        "text": lambda: (TextRanker([f"query {q}" for q in range(Q)]), None),
        "file": lambda: (FromFile(numbers), None),
        "vectors": lambda: (MyRanker(torch.from_numpy(X)), Vectors()),
        "everything": lambda: (MyRanker(X), Everything(np.arange(D, dtype=float))),
    }
    policy = policy_of(*stages[name]())
    policy.save(tmp_path / "policy")
    again = tr.load(tmp_path / "policy")
    assert type(again.ranker) is type(policy.ranker)
    assert again.recommend().equals(policy.recommend())
    with torch.no_grad():
        for parameter in again.ranker.parameters():
            parameter.zero_()
    assert again.recommend().equals(policy.recommend()) == (name == "file")  # the weights decide, where there are some


def test_features_are_saved_once(tmp_path) -> None:
    policy_of(MyRanker(X)).save(tmp_path / "policy")
    from safetensors.torch import load_file

    found = [t.shape for name, t in load_file(tmp_path / "policy" / "weights.safetensors").items() if "ranker" in name]
    assert sorted(map(tuple, found)) == sorted([(D, 8), (1, 8), (1,)])


def test_trees_that_were_trained_elsewhere(tmp_path) -> None:
    lightgbm = pytest.importorskip("lightgbm")

    class Trees(tr.Ranker):
        def __init__(self, text, features):
            super().__init__()
            self.booster, self.x = lightgbm.Booster(model_str=text), features

        def score(self, q, items):
            found = self.booster.predict(self.x[items.ravel().numpy()], num_threads=1)
            return torch.from_numpy(found).view(items.shape)

    data = lightgbm.Dataset(X, X[:, 0].copy(), params={"min_data_in_bin": 1, "min_data_in_leaf": 1, "verbose": -1})
    trees = lightgbm.train({"verbose": -1, "num_threads": 1, "min_data_in_leaf": 1}, data, 5)
    policy = policy_of(Trees(trees.model_to_string(), X))
    policy.save(tmp_path / "policy")
    assert tr.load(tmp_path / "policy", models=[Trees]).recommend().equals(policy.recommend())


class Service(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/broken":
            self.send_error(500)
            return
        if self.path == "/slow":
            threading.Event().wait(1)
        body = json.dumps([[-float(item) for item in row] for row in asked["items"]]).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

    def handle_one_request(self):
        with suppress(OSError):  # who asked has gone
            super().handle_one_request()


def test_a_service_that_fails_is_one_error() -> None:
    server = HTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        shown = policy_of(OverHttp(f"{url}/fine"), Everything(np.zeros(D))).recommend([0])["items"].to_list()
        assert shown == [["item 0", "item 1", "item 2"]]
        for path, words in (("broken", "HTTP Error 500"), ("slow", "timed out")):
            with pytest.raises(JobError, match=rf"the re-ranker \(OverHttp\) failed: .*{words}"):
                policy_of(OverHttp(f"{url}/{path}", 0.2)).recommend([0])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda q, items: torch.full(items.shape, torch.nan), "NaN|nan"),
        (lambda q, items: torch.zeros(len(q)), "shape"),
        (lambda q, items: [0.0], "tensor of scores"),
        (lambda q, items: torch.arange(items.numel()).view(items.shape).float(), "order of its candidates"),
    ],
)
def test_answers_that_are_no_scores(answer, words) -> None:
    class Wrong(tr.Ranker):
        def score(self, q, items):
            return answer(q, items)

    with pytest.raises(PolicyError, match=words):
        policy_of(Wrong()).recommend([0])


def test_what_cannot_be_saved_works_and_says_so(tmp_path) -> None:
    class WithFunction(tr.Ranker):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def score(self, q, items):
            return self.function(items)

    policy = policy_of(WithFunction(lambda items: -items.float()))
    assert len(policy.recommend())
    with pytest.raises(PolicyError, match=r"WithFunction cannot be saved: expected numbers.*got function"):
        policy.save(tmp_path / "policy")


def test_a_model_is_of_one_vocabulary() -> None:
    ranker = MyRanker(X)
    policy_of(ranker)
    with pytest.raises(PolicyError, match=r"other queries or items\. Make another MyRanker"):
        tr.TwoStagePolicy(Vectors(), ranker, K2, K, tr.Vocabulary(pl.Series(range(9)), VOCABULARY.item_ids))


def test_a_generator_without_scores() -> None:
    class Nothing(tr.Generator):
        pass

    with pytest.raises(PolicyError, match=r"expected a generator \(Nothing\) with vectors"):
        policy_of(MyRanker(X), Nothing()).recommend()


def log_of(n: int = 1500) -> pl.DataFrame:
    rng = np.random.default_rng(2)
    chance = 1 / (1 + np.exp(-3 * X[:, 0]))
    items = np.stack([rng.permutation(D)[:4] for _ in range(n)])
    clicks = rng.random((n, 4)) < chance[items] / np.arange(1, 5)
    named = [[f"item {d}" for d in row] for row in items.tolist()]
    return pl.DataFrame({"query_id": rng.integers(30, size=n), "items": named, "clicks": clicks.astype(int).tolist()})


class Ordered(MyRanker):
    """Rows of the features by id."""

    def prepare(self):
        rows = [int(name.split()[1]) for name in self.vocabulary.item_ids]
        self.x = tr.buffer(self.x[rows])


@pytest.mark.parametrize("method", ["joint", None])
def test_learn_trains_a_copy_of_it(method) -> None:
    given = Ordered(X)
    before = given.net.weight.detach().clone()
    config = tr.LearningConfig(candidates=6, training={"epochs": 4, "shared_rate": 0.5})
    found = tr.learn(log_of(), config, ranker=given, method=method)
    assert type(found.policy.ranker) is Ordered
    assert torch.equal(given.net.weight, before)
    assert given.vocabulary is None
    weight = found.policy.ranker.net.weight.detach()[0]
    assert weight.argmax() == 0
    assert weight[0] > before[0, 0] + 0.3


def test_learn_with_a_generator_and_dropout() -> None:
    config = tr.LearningConfig(candidates=6, training={"epochs": 1})
    found = tr.learn(log_of(600), config, generator=Vectors(), ranker=PairFunction(), method="joint")
    assert (type(found.policy.generator), type(found.policy.ranker)) == (Vectors, PairFunction)
    assert found.policy.recommend().equals(found.policy.recommend())


def test_learn_refuses_what_is_no_model() -> None:
    with pytest.raises(ConfigError, match="ranker: expected a Scorer or None; got Linear"):
        tr.learn(log_of(50), ranker=nn.Linear(8, 1))
    with pytest.raises(ConfigError, match="expected method or methods; got both"):
        tr.learn(log_of(50), method="joint", methods=["joint"])


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tandemrank", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_in_another_process_by_plugin(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(Scorer, "kinds", dict(Scorer.kinds))
    plugin, folder = tmp_path / "my_models.py", tmp_path / "policy"
    plugin.write_text(PLUGIN, encoding="utf-8")
    generator = tr.MatrixFactorisation(np.ones((Q, 2)), np.arange(2 * D).reshape(D, 2) / D)
    policy = policy_of(import_plugin(str(plugin)).PluginRanker(X, width=2), generator)
    policy.save(folder)
    unknown = command("recommend", folder)
    assert unknown.returncode == 2
    assert "unknown kind 'PluginRanker'" in unknown.stderr
    assert "models=[PluginRanker]" in unknown.stderr
    assert "--plugin" in unknown.stderr
    found = command("recommend", folder, "--plugin", plugin, "--json")
    assert json.loads(found.stdout) == policy.recommend().to_dicts()
    with started(str(folder), "--plugin", str(plugin), token="a-token-for-tests-only") as server:
        asked = Request(f"{server.url}/rank", b'{"query_id": 0}', {"Content-Type": "application/json"})
        answer = json.loads(urlopen(asked).read())
    assert len(answer["items"]) == K
    missing = command("recommend", folder, "--plugin", tmp_path / "none.py")
    assert missing.returncode == 2
    assert "--plugin: expected a module or a .py file" in missing.stderr
