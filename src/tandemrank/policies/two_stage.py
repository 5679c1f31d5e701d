"""`TwoStagePolicy`: a candidate generator and a re-ranker, each Plackett-Luce on its scorer's scores.

A saved policy is a folder: `config.json`, `weights.safetensors`, `vocabulary.parquet`.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.files import Kind, has_keys, replacing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.gradients import race
from tandemrank.policies import towers
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
from tandemrank.policies.towers import TwoTowers

FORMAT = 1
BATCH = 128
SAVED_POLICY = Kind(
    "saved policy",
    r"config\.json|weights\.safetensors|vocabulary\.parquet",
    lambda folder: has_keys(folder / "config.json", "format", "stages"),
)
SCORERS: dict[str, type[Scorer]] = {cls.kind: cls for cls in (MatrixFactorisation, GivenScores, TwoTowers)}


@dataclass(frozen=True)
class TwoStagePolicy:
    """Generator, re-ranker, K2 candidates, K shown. The one-stage policy is the case K2 = D."""

    generator: Scorer
    ranker: Scorer
    K2: int
    K: int
    vocabulary: Vocabulary

    def __post_init__(self) -> None:
        Q, D = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
        for stage, scorer in (("generator", self.generator), ("ranker", self.ranker)):
            sizes = scorer.sizes()
            if (sizes["Q"], sizes["D"]) != (Q, D):
                raise PolicyError(
                    f"the {stage} scores {sizes['Q']} queries and {sizes['D']} items, but the vocabulary has {Q} and {D}."
                )
        if not 1 <= self.K <= self.K2 <= D:
            raise PolicyError(f"needed: 1 <= K <= K2 <= {D}, the number of items; got K = {self.K}, K2 = {self.K2}.")

    def scores(self, q: ArrayLike) -> tuple[Tensor, Tensor]:
        """Both stages' scores.  Shapes: q [B] -> [B, D], [B, D]."""
        positions = torch.as_tensor(np.array(q, np.int64))
        return self.generator(positions), self.ranker(positions)

    def plain_scores(self, q: ArrayLike) -> tuple[Tensor, Tensor]:
        """The same without gradients, whatever a scorer returns: a view of its parameters too."""
        with torch.no_grad():
            s_c, s_r = self.scores(q)
        return s_c.detach(), s_r.detach()

    def batches(self, q: ArrayLike | None = None) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Positions and scores without gradients, a batch of queries at a time: memory is O(batch x D)."""
        everything = np.arange(len(self.vocabulary.query_ids)) if q is None else np.asarray(q, np.int64)
        for first in range(0, len(everything), BATCH):
            part = everything[first : first + BATCH]
            s_c, s_r = self.plain_scores(part)
            yield part, s_c, s_r

    def most_likely(self, q: ArrayLike | None = None) -> NDArray[np.int32]:
        """The list shown if both stages take their highest scores, as positions.  Shapes: q [n] -> [n, K]."""
        return np.concatenate([race.most_likely(s_c, s_r, self.K2, self.K) for _, s_c, s_r in self.batches(q)])

    def recommend(self, query_ids: Sequence[int | str] | pl.Series | None = None) -> pl.DataFrame:
        """The most likely list in outside ids: one row a query, `query_id` and `items`, top first."""
        ids = self.vocabulary.query_ids if query_ids is None else pl.Series("query_id", query_ids)
        shown = self.most_likely(self.vocabulary.queries(ids))
        items = self.vocabulary.item_ids.gather(np.maximum(shown, 0).ravel())
        frame = pl.DataFrame({"row": np.repeat(np.arange(len(ids)), self.K), "items": items, "place": shown.ravel()})
        lists = frame.filter(pl.col("place") >= 0).group_by("row", maintain_order=True).agg("items")
        rows = pl.DataFrame({"row": np.arange(len(ids)), "query_id": ids})
        return rows.join(lists, on="row", how="left", maintain_order="left").select("query_id", "items")

    def sample(self, q: ArrayLike, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """One drawn list for each (query, key), as positions: the sampler of `clicks.simulate`.

        Shapes: q [n], keys [n] -> [n, K]; -1 where too few items are available.
        """
        q = np.asarray(q, np.int64)
        shown = np.empty((len(q), self.K), np.int32)
        distinct, row = np.unique(q, return_inverse=True)
        order = np.argsort(row, kind="stable")
        bounds = np.searchsorted(row[order], np.arange(0, len(distinct) + BATCH, BATCH))
        for number, (_, s_c, s_r) in enumerate(self.batches(distinct)):
            chosen = order[bounds[number] : bounds[number + 1]]
            rows = row[chosen] - number * BATCH
            shown[chosen] = race.draw(s_c, s_r, self.K2, self.K, rows=rows, keys=keys[chosen])
        return shown

    def exposure(
        self, q: ArrayLike, item: ArrayLike, theta: ArrayLike, *, samples: int = 100, seed: int = 0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """rho_cr of (query, item) pairs, and its standard error, by the race.  Shapes: q, item [n] -> [n], [n].

        Queries with the same scores share their races, so a policy that does not know its users costs one query.
        """
        q, item = np.asarray(q, np.int64), np.asarray(item, np.int64)
        rho, error = np.empty(len(q)), np.empty(len(q))
        generator = torch.Generator().manual_seed(seed)
        curve = torch.as_tensor(np.asarray(theta), dtype=torch.float32)
        order = np.argsort(q, kind="stable")
        distinct, first = np.unique(q[order], return_index=True)
        first = np.append(first, len(q))
        for start in range(0, len(distinct), BATCH):
            part = distinct[start : start + BATCH]
            chosen = order[first[start] : first[start + len(part)]]
            s_c, s_r = self.plain_scores(part)
            unique, row_of = _unique_rows(s_c, s_r)
            rows = row_of[np.searchsorted(part, q[chosen])]
            wanted, inverse = np.unique(rows * s_c.shape[1] + item[chosen], return_inverse=True)
            pairs = _pattern(wanted, len(unique), s_c.shape[1])
            found = race.exposure(
                s_c[unique], s_r[unique], curve, self.K2, samples=samples, generator=generator, documents=pairs
            )
            rho[chosen], error[chosen] = (x.double().numpy()[inverse] for x in found)
        return rho, error

    def utility(self, weights: csr_matrix, theta: ArrayLike, *, samples: int = 4, seed: int = 0) -> NDArray[np.float64]:
        """sum_d rho_cr(d) w[q, d] of every query with a weight, by the race.  Shapes: weights [Q, D] -> [Q]."""
        value = np.zeros(weights.shape[0])
        generator = torch.Generator().manual_seed(seed)
        curve = torch.as_tensor(np.asarray(theta), dtype=torch.float32)
        for part, s_c, s_r in self.batches(np.flatnonzero(np.diff(weights.indptr))):
            found = race.utility(s_c, s_r, weights[part], curve, self.K2, samples=samples, generator=generator)
            value[part] = found.double().numpy()
        return value

    def save(self, path: str | Path) -> Path:
        """Writes the folder `path` in one piece."""
        tensors = {f"{stage}.{name}": t for stage, m in self._stages() for name, t in m.state_dict().items()}
        config = {
            "format": FORMAT,
            "K2": self.K2,
            "K": self.K,
            "stages": {stage: {"kind": m.kind, "sizes": m.sizes()} for stage, m in self._stages()},
        }
        with replacing(path, SAVED_POLICY) as folder:
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            save_file({name: t.contiguous().clone() for name, t in tensors.items()}, folder / "weights.safetensors")
            _vocabulary_frame(self.vocabulary).write_parquet(folder / "vocabulary.parquet")
        return Path(path)

    def _stages(self) -> tuple[tuple[str, Scorer], tuple[str, Scorer]]:
        return ("generator", self.generator), ("ranker", self.ranker)

    def copy(self) -> "TwoStagePolicy":
        """The same policy with weights of its own."""
        return TwoStagePolicy(
            copy.deepcopy(self.generator), copy.deepcopy(self.ranker), self.K2, self.K, self.vocabulary
        )


def extended(
    policy: TwoStagePolicy, *, query_features: FeatureSource | None = None, item_features: FeatureSource | None = None
) -> TwoStagePolicy:
    """The policy for more queries and items, known by their features alone; both stages must be two towers.

    The new ids come after the old ones, which keep their positions and, up to rounding, their scores. An old id that is
    in a table takes its features from there and keeps what was learnt of it.
    """
    stages = []
    for stage, scorer in policy._stages():
        if not isinstance(scorer, TwoTowers):
            raise PolicyError(
                f"the {stage} is of the kind {scorer.kind}, which cannot score queries or items that it has not seen. "
                f"Train two towers, with features."
            )
        stages.append(scorer)
    old = policy.vocabulary
    queries, query_ids = towers.more_rows(query_features, "query_id", old.query_ids)
    items, item_ids = towers.more_rows(item_features, "item_id", old.item_ids)
    generator, ranker = (
        TwoTowers(towers.extended(s.queries, queries, query_ids), towers.extended(s.items, items, item_ids))
        for s in stages
    )
    return replace(policy, generator=generator, ranker=ranker, vocabulary=Vocabulary(query_ids, item_ids))


def _unique_rows(s_c: Tensor, s_r: Tensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first row of each kind, and for every row the number of its kind, by the bytes of both scores."""
    both = np.ascontiguousarray(np.concatenate([s_c.numpy(), s_r.numpy()], 1))
    as_bytes = both.view(np.dtype((np.void, both.dtype.itemsize * both.shape[1]))).ravel()
    _, first, inverse = np.unique(as_bytes, return_index=True, return_inverse=True)
    return first, inverse


def _pattern(pairs: NDArray[np.int64], rows: int, D: int) -> csr_matrix:
    """A CSR pattern of sorted, distinct row * D + item."""
    indptr = np.searchsorted(pairs, np.arange(rows + 1) * D)
    return csr_matrix((np.ones(len(pairs), np.float32), pairs % D, indptr), shape=(rows, D))


def _vocabulary_frame(vocabulary: Vocabulary) -> pl.DataFrame:
    """One table for both sides; the number of rows is the longer side's, the other is padded with nulls."""
    n = max(len(vocabulary.query_ids), len(vocabulary.item_ids))
    return pl.DataFrame(
        {
            "query_id": vocabulary.query_ids.extend_constant(None, n - len(vocabulary.query_ids)),
            "item_id": vocabulary.item_ids.extend_constant(None, n - len(vocabulary.item_ids)),
        }
    )


def load(path: str | Path) -> TwoStagePolicy:
    """The policy in the folder `path`; a folder that is damaged or of another version is refused."""
    folder = Path(path)
    for name in ("config.json", "weights.safetensors", "vocabulary.parquet"):
        if not (folder / name).is_file():
            raise PolicyError(f"{folder} is not a whole saved policy: {name} is missing. Save the policy again.")
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        version = config["format"]
        if version != FORMAT:
            raise PolicyError(
                f"{folder} has format {version}, this version reads format {FORMAT}. "
                f"Save the policy again with this version."
            )
        ids = pl.read_parquet(folder / "vocabulary.parquet")
        vocabulary = Vocabulary(ids["query_id"].drop_nulls(), ids["item_id"].drop_nulls())
        tensors = load_file(folder / "weights.safetensors")
        stages = [_restore(stage, config["stages"][stage], tensors) for stage in ("generator", "ranker")]
        return TwoStagePolicy(stages[0], stages[1], config["K2"], config["K"], vocabulary)
    except (
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        OSError,
        SafetensorError,
        pl.exceptions.PolarsError,
    ) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{folder} is a damaged saved policy ({error}). Save the policy again.") from error


def _restore(stage: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> Scorer:
    scorer = SCORERS[config["kind"]].rebuild(config["sizes"])
    prefix = f"{stage}."
    scorer.load_state_dict({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    return scorer
