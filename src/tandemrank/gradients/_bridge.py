"""Between torch and the compiled kernels: checked arguments, gradients for autograd, sparse weights, threads."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from tandemrank._base.arguments import of_kind
from tandemrank._base.sparse import canonical_csr
from tandemrank.errors import ConfigError, PolicyError

Weights: TypeAlias = Tensor | csr_matrix
MOST_SAMPLES = 10**7  # more is a slip


Randomness: TypeAlias = torch.Generator | NDArray[np.uint64]


def keys_for(queries: int, generator: Randomness) -> NDArray[np.uint64]:
    """A key for each query: those that are given, or drawn one after another, so that splitting a batch changes nothing."""
    if isinstance(generator, np.ndarray):
        if generator.shape != (queries,):
            raise ConfigError(f"expected a key for each of {queries} queries; got {generator.shape}.")
        return generator
    keys = torch.randint(torch.iinfo(torch.int64).max, (queries,), generator=generator, device=generator.device)
    return keys.cpu().numpy().astype(np.uint64)


def checked_candidates(s_c: Tensor, s_r: Tensor, theta: Tensor, K2: int, samples: int) -> int:
    """Refuses what no race can be made of; returns how many candidates there are, K2 or all documents."""
    for name, values in (("s_c", s_c), ("s_r", s_r), ("theta", theta)):
        if not of_kind(name, values, Tensor).is_floating_point():
            raise ConfigError(f"{name}: expected a tensor of floating-point numbers; got {values.dtype}. Convert it.")
    K2, samples = of_kind("K2", K2, int), of_kind("samples", samples, int)
    if s_c.ndim != 2 or s_c.shape != s_r.shape or s_c.shape[1] == 0:
        raise PolicyError(
            f"both stages need scores of one shape [queries, documents], at least one document; "
            f"got {tuple(s_c.shape)} and {tuple(s_r.shape)}."
        )
    for stage, scores in (("candidate", s_c), ("ranker", s_r)):
        check_scores(scores.detach(), stage)
    check_theta(theta)
    check_sizes(K2, samples)
    return min(K2, s_c.shape[1])


def check_sizes(K2: int, samples: int) -> None:
    """Refuses races without candidates, or of no sample or very many."""
    if K2 < 1 or not 1 <= samples <= MOST_SAMPLES:
        raise ConfigError(
            f"K2 and samples must be at least 1, samples at most {MOST_SAMPLES:,}; got K2 = {K2}, samples = {samples}."
        )


def check_scores(scores: Tensor, stage: str) -> None:
    """Refuses NaN and +inf by name; -inf is allowed and means that a document is not available."""
    # One reduction that passes NaN on is all that good scores cost.
    if scores.numel() and not bool(scores.max() < torch.inf):
        bad = torch.nonzero(torch.isnan(scores) | (scores == torch.inf))
        q, d = bad[0].tolist()
        raise PolicyError(
            f"{len(bad)} {stage} scores are NaN or +inf (first: row {q}, document {d}). Scores must be finite, "
            f"or -inf for a document that is not available; check the model's weights and the learning rate."
        )


def check_theta(theta: Tensor) -> None:
    """Refuses what is not a curve of examination."""
    if theta.ndim != 1 or len(theta) == 0 or not bool(torch.isfinite(theta).all()):
        raise ConfigError(f"theta must be a list of finite examination probabilities, one per rank; got {theta}.")


def checked_weights(w: Weights, shape: tuple[int, ...]) -> csr_matrix:
    """Finite weights in the shape of the scores, from a tensor or any sparse matrix: CSR, each entry once."""
    if not (isinstance(w, Tensor) or issparse(w)):
        raise ConfigError(f"weights must be a tensor or a sparse matrix of scipy; got {type(w).__name__}.")
    if tuple(w.shape) != tuple(shape):
        raise ConfigError(f"weights must have the shape of the scores, {tuple(shape)}, not {tuple(w.shape)}.")
    found = csr_matrix(w.detach().cpu().numpy()) if isinstance(w, Tensor) else canonical_csr(w)
    if not np.isfinite(found.data.sum(dtype=np.float64)):
        raise ConfigError("weights must be finite; a propensity of 0 gives infinite weights, clip it from below.")
    return found


Entries: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]


def entries(w: csr_matrix) -> Entries:
    """Bounds of the rows, columns and numbers of a matrix, in the types of the kernels.  Shapes: [B + 1], [nnz], [nnz]."""
    return w.indptr.astype(np.int64), w.indices.astype(np.int32), w.data.astype(np.float32)


class _Known(torch.autograd.Function):
    """A value whose gradients were computed along with it; backward only multiplies."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, *scores_and_gradients: Tensor | None) -> Tensor:
        ctx.save_for_backward(*scores_and_gradients[len(scores_and_gradients) // 2 :])
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        found, scale = ctx.saved_tensors, grad_outputs[0][:, None]
        needed = ctx.needs_input_grad[1 : len(found) + 1]
        by = [gradient * scale if needs else None for gradient, needs in zip(found, needed, strict=True)]
        return None, *by, *[None] * len(found)


def with_gradients(value: NDArray[np.float64], *stages: tuple[Tensor, NDArray[np.float32]]) -> Tensor:
    """The value of each query for autograd, with its gradient by the scores of each stage; [B, 0] where nobody wants it.

    Shapes: value [B]; scores and gradients [B, D] -> [B].
    """
    scores, gradients = [s for s, _ in stages], [torch.from_numpy(g).to(s) if g.shape[1] else None for s, g in stages]
    result: Tensor = _Known.apply(torch.from_numpy(value).to(scores[0]), *scores, *gradients)  # type: ignore[no-untyped-call]
    return result


def dense_utility(
    kernel: Callable[..., None],
    s_c: Tensor,
    s_r: Tensor,
    w: Weights,
    theta: Tensor,
    K2: int,
    samples: int,
    generator: Randomness,
    *more: Any,
) -> Tensor:
    """The utility of each query by the kernel of an estimator that sees the scores of everything, differentiable in them.

    A gradient that autograd will not ask for is [B, 0], and costs nothing.  Shapes: s_c, s_r, w [B, D]; theta [K] -> [B].
    """
    K2 = checked_candidates(s_c, s_r, theta, K2, samples)
    weights, keys, (B, D) = checked_weights(w, s_c.shape), keys_for(len(s_c), generator), s_c.shape
    wanted = [s.requires_grad and torch.is_grad_enabled() for s in (s_c, s_r)]
    value, grad_c, grad_r = np.zeros(B), *(np.zeros((B, D if wants else 0), np.float32) for wants in wanted)
    with compiling():
        over_rows(
            kernel, B, row_major(s_c), row_major(s_r), keys, *entries(weights), row_major(theta), K2, samples, *more,
            value, grad_c, grad_r,
        )  # fmt: skip
    return with_gradients(value, (s_c, grad_c), (s_r, grad_r))


_called_once = threading.Event()


@contextmanager
def compiling() -> Iterator[None]:
    """Around a call of compiled code: says so if it must be compiled first, and leaves torch's threads alone."""
    from tandemrank.gradients._kernels.compiled import announcing

    threads = torch.get_num_threads()
    try:
        with announcing():
            yield
    finally:
        # numba's threads and torch's may be one pool (OpenMP), and starting the first sets the number of the second: the same
        # products would then be summed otherwise before and after.
        if not _called_once.is_set() and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
    _called_once.set()


def row_major(x: Tensor) -> NDArray[np.float32]:
    return x.detach().to(torch.float32).contiguous().cpu().numpy()


def over_rows(kernel: Callable[..., None], rows: int, *arguments: Any) -> None:
    """kernel(first, stop, *arguments) for parts of the rows 0 ... rows - 1, as many parts as numba may use threads.

    Kernels hold no lock of the interpreter and write rows of their own, so that the number of parts changes no result.
    """
    import numba

    parts = max(1, min(rows, numba.get_num_threads()))
    own, *others = pairwise(rows * part // parts for part in range(parts + 1))
    waiting = [_pool().submit(kernel, *part, *arguments) for part in others]
    kernel(*own, *arguments)
    for part in waiting:
        part.result()


@cache
def _pool() -> ThreadPoolExecutor:
    # Threads start when they are first needed, and a call uses as many as numba may.
    return ThreadPoolExecutor(os.cpu_count(), "tandemrank")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
