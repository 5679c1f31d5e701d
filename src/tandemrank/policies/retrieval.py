"""Retrieval: the items with the highest generator scores, exactly by blocks of products, or fast by an index of the items.

    exact   every product once, in blocks, nothing of the size queries x items     (`gradients.products.top`)
            for a few queries at a time, again and again: bounds of all products, and the few that count (`gradients.coarse`)
    index   inverted lists of faiss (extra `ann`): the items of the lists nearest to the query, scored exactly

An index may miss items: `recall` measures how many, against the exact ones. What it misses is never a candidate, so lists
that are drawn through it are not those of the policy; exposures, values and training therefore stay exact, and an index serves
`most_likely` only. It belongs to the embeddings it was made of: others are refused.
"""

import hashlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients._bridge import row_major
from tandemrank.gradients.coarse import Coarse
from tandemrank.gradients.products import Products
from tandemrank.policies.scorers import MatrixFactorisation, Scorer

PROBED = 32  # inverted lists that a search looks into
FEW, PAYS = 4, 4  # queries at a time for which bounds are faster than blocks; such calls from which on they are made


def faiss_library() -> Any:
    """faiss, or one line that says how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise ConfigError("an index needs faiss: pip install 'tandemrank[ann]'.") from error
    return faiss


def digest(items: NDArray[np.float32]) -> str:
    """A name for exactly these embeddings.  Shapes: items [D, F]."""
    found = hashlib.sha256(repr(items.shape).encode())
    found.update(np.ascontiguousarray(items, np.float32).tobytes())
    return found.hexdigest()[:32]


@dataclass(frozen=True)
class Index:
    """An index of a generator's item embeddings, and the digest of those."""

    searcher: Any
    digest: str
    D: int

    def top(self, queries: NDArray[np.float32], n: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """About the n highest products and their items, the highest first; -1 and -inf where fewer were found.

        Shapes: queries [B, F] -> two of [B, n].
        """
        scores, found = self.searcher.search(np.ascontiguousarray(queries, np.float32), n)
        return found.astype(np.int32), np.where(found >= 0, scores, -np.inf).astype(np.float32)


def factors_of(scorer: Scorer, q: NDArray[np.int64]) -> Products:
    """The factors of a generator; refuses one whose scores are no products.  Shapes: q [B] -> [B, F], [D, F]."""
    with torch.no_grad():
        found = scorer.factors(torch.from_numpy(q))
    if found is None:
        raise PolicyError(
            f"an index is of embeddings, and a {scorer.kind} has none: its scores are no products. Retrieve exactly."
        )
    return Products(found.queries.detach(), found.items.detach())


def has_products(scorer: Scorer) -> bool:
    """Whether its scores are products of factors, so that an index can serve it: not with a memory, nor if they were given."""
    with torch.no_grad():
        return scorer.factors(torch.zeros(1, dtype=torch.int64)) is not None


class _Seen:
    """How often a factorisation was asked about few queries with the items it has now, and bounds of them."""

    def __init__(self, items: tuple[int, int]) -> None:
        self.items, self.calls, self.coarse = items, 0, cast("Coarse | None", None)


_seen: "WeakKeyDictionary[Scorer, _Seen]" = WeakKeyDictionary()
_lock = threading.Lock()


def within_bounds(scorer: Scorer, q: NDArray[np.int64], n: int) -> NDArray[np.int32] | None:
    """The n highest items of a few queries, the same as `products.top` has; None where blocks of products are as good.

    Items that have moved are known by PyTorch's count of their changes.  Shapes: q [B] -> [B, n].
    """
    if len(q) > FEW or not isinstance(scorer, MatrixFactorisation) or n >= len(scorer.items):
        return None
    now = scorer.items.data_ptr(), scorer.items._version
    with _lock:
        seen = _seen.get(scorer)
        if seen is None or seen.items != now:
            seen = _seen[scorer] = _Seen(now)
        seen.calls += 1
        if seen.calls == PAYS:
            seen.coarse = Coarse.of(row_major(scorer.items.detach()))
    if seen.coarse is None:
        return None
    found = [seen.coarse.bounded(x) for x in row_major(scorer.queries.detach()[torch.from_numpy(q)])]
    return None if any(one is None for one in found) else np.stack([one.highest(n)[0] for one in found if one])


def build(scorer: Scorer, *, lists: int | None = None, probed: int = PROBED, seed: int = 0) -> Index:
    """An index of the generator's items as they are now; by default 4 sqrt(D) inverted lists."""
    faiss = faiss_library()
    items = np.ascontiguousarray(factors_of(scorer, np.zeros(1, np.int64)).items.numpy(), np.float32)
    D, F = items.shape
    count = min(lists or max(1, int(4 * D**0.5)), D)
    searcher = faiss.IndexIVFFlat(faiss.IndexFlatIP(F), F, count, faiss.METRIC_INNER_PRODUCT)
    searcher.cp.seed, searcher.cp.niter, searcher.cp.min_points_per_centroid = seed + 1, 6, 1
    rng = np.random.default_rng(seed)
    searcher.train(items[np.sort(rng.permutation(D)[: max(count, min(D, 32 * count))])])
    searcher.add(items)
    searcher.nprobe = min(probed, count)
    return Index(searcher, digest(items), D)


def check(index: Index, scorer: Scorer) -> None:
    """Refuses an index of other embeddings than the generator's."""
    items = factors_of(scorer, np.zeros(1, np.int64)).items.numpy()
    if len(items) != index.D or index.digest != digest(items):
        raise PolicyError(
            "the index is of other embeddings than the generator's: they have moved since it was built, or it belongs to "
            "another policy. Build it anew."
        )


def recall(index: Index, scorer: Scorer, n: int, q: NDArray[np.int64]) -> float:
    """The share of the n highest items of some queries that the index finds: what it does not find it never shows."""
    of = factors_of(scorer, q)
    exact, _ = products.top(of, n)
    found, _ = index.top(of.queries.numpy(), n)
    wide = np.int64(index.D + 1)
    rows = np.arange(len(q))[:, None] * wide
    return float(np.isin((rows + exact)[exact >= 0], (rows + found)[found >= 0]).mean())


def content(index: Index) -> bytes:
    """The index in faiss's own format, behind the digest of its embeddings."""
    body: bytes = faiss_library().serialize_index(index.searcher).tobytes()
    return index.digest.encode("ascii") + body


def save(index: Index, path: Path) -> None:
    """Writes the index as one file."""
    path.write_bytes(content(index))


def load(path: Path, scorer: Scorer) -> Index:
    """The index in a file, which must be of the generator's embeddings; a damaged file is refused."""
    faiss = faiss_library()
    raw = path.read_bytes()
    items = factors_of(scorer, np.zeros(1, np.int64)).items.numpy()
    if raw[:32].decode("ascii", "replace") != digest(items):
        raise PolicyError(
            f"{path} is an index of other embeddings than the generator's, or damaged. Build it anew with "
            "`policy.with_index()`."
        )
    try:
        searcher = faiss.deserialize_index(np.frombuffer(raw[32:], np.uint8))
    except RuntimeError as error:
        raise PolicyError(f"{path} cannot be read as an index of faiss: is it whole? Build it anew.") from error
    if searcher.ntotal != len(items) or searcher.d != items.shape[1]:
        raise PolicyError(f"{path} has {searcher.ntotal} items of {searcher.d} numbers, the generator other ones.")
    return Index(searcher, digest(items), len(items))
