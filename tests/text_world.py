"""A small collection of texts, two retrievers of it, and users who know what they want: no download, a page of NumPy."""

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank.clicks.simulation import simulate

SYNONYMS = 3
K, K2 = 5, 10
THETA = 1 / np.arange(1, K + 1)


def texts(rng, n: int, of_topic: np.ndarray, names: int, concepts: int, mentions: int) -> np.ndarray:
    """Counts of words: concepts of some topics, each by one of three synonyms, and names, which belong to no topic."""
    topics, total = of_topic.shape
    found = np.zeros((n, total * SYNONYMS + names), int)
    for row in found:
        chosen = rng.choice(total, concepts, p=rng.dirichlet(np.full(topics, 0.2)) @ of_topic)
        np.add.at(row, chosen * SYNONYMS + rng.integers(SYNONYMS, size=concepts), 1)
        np.add.at(row, total * SYNONYMS + rng.integers(names, size=mentions), 1)
    return found


def bm25(documents: np.ndarray, queries: np.ndarray, k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """Robertson and Walker's; it finds names, and a third of the concepts.  Shapes: [D, words], [Q, words] -> [Q, D]."""
    n, length = (documents > 0).sum(0), documents.sum(1)
    idf = np.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
    tf = documents * (k1 + 1) / (documents + k1 * (1 - b + b * length / length.mean())[:, None])
    return queries @ (idf * tf).T


def dense(documents: np.ndarray, queries: np.ndarray, rank: int = 16) -> np.ndarray:
    """Cosines of latent semantic vectors, a truncated SVD: it finds topics, and hardly a name."""
    idf = np.log((1 + len(documents)) / (1 + (documents > 0).sum(0)))
    y, x = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (np.log1p(documents) * idf, queries * idf))
    V = np.linalg.svd(y, full_matrices=False)[2][:rank].T
    y, x = (v @ V / np.linalg.norm(v @ V, axis=1, keepdims=True) for v in (y, x))
    return x @ y.T


class House(tr.Ranker):
    """The re-ranker of the house: it knows relevance up to noise, and is asked about candidates alone."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers = tr.buffer(numbers)

    def score(self, q, items):
        return self.numbers[q[:, None], items]


class TextWorld:
    """Users want names and topics, `wanted` to 1 - `wanted`: these are the best weights of bm25 and dense, nearly."""

    def __init__(self, seed: int, documents: int = 400, queries: int = 80, wanted: float = 0.4) -> None:
        rng = np.random.default_rng(seed)
        of_topic = rng.dirichlet(np.full(150, 0.1), 15)
        of_documents, of_queries = texts(rng, documents, of_topic, 80, 20, 6), texts(rng, queries, of_topic, 80, 3, 3)
        scores = {"bm25": bm25(of_documents, of_queries), "dense": dense(of_documents, of_queries)}
        low, high = ({name: f(s, 1)[:, None] for name, s in scores.items()} for f in (np.min, np.max))
        z = {name: (s - low[name]) / (high[name] - low[name]) for name, s in scores.items()}
        rank = np.argsort(np.argsort(-wanted * z["bm25"] - (1 - wanted) * z["dense"], 1), 1)
        self.R = 0.6 * np.exp(-rank / 5) + 0.005
        self.house = 2 * (np.log(self.R / (1 - self.R)) + 0.3 * rng.normal(size=self.R.shape))
        names = [f"q{n}" for n in range(queries)], [f"d{n}" for n in range(documents)]
        self.vocabulary = tr.Vocabulary(*(pl.Series(x) for x in names))
        q, d = (x.ravel() for x in np.meshgrid(*names, indexing="ij"))
        self.scores = pl.DataFrame({"query_id": q, "item_id": d} | {name: s.ravel() for name, s in scores.items()})

    def hybrid(self, share: float, sharpness: float = 50.0) -> tr.Hybrid:
        """Retrieval with this share of bm25."""
        return tr.Hybrid(self.scores, {"bm25": share, "dense": 1 - share}, sharpness=sharpness)

    def policy(self, generator: tr.Generator, ranker=None) -> tr.TwoStagePolicy:
        return tr.TwoStagePolicy(generator, ranker or House(self.house), K2, K, self.vocabulary)

    def value(self, policy: tr.TwoStagePolicy) -> float:
        """True clicks per impression."""
        return float(policy.utility(csr_matrix(self.R), THETA, samples=20, seed=1).mean())

    def log(self, live: tr.TwoStagePolicy, n: int, seed: int) -> pl.DataFrame:
        """Impressions of a live policy, in the ids of the world."""
        model, relevance = tr.clicks.models.position_based(THETA), csr_matrix(self.R)
        [drawn] = simulate(live.sample, relevance, np.arange(len(self.R)), n, model, seed=seed, part=n)
        query, item = self.vocabulary.query_ids, self.vocabulary.item_ids
        items = item.gather(drawn.items.ravel()).reshape(drawn.items.shape).cast(pl.List(pl.String))
        clicks = pl.Series(drawn.clicks).cast(pl.List(pl.Int64))
        return pl.DataFrame({"query_id": query.gather(drawn.query), "items": items, "clicks": clicks})
