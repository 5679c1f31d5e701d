"""Between torch and the compiled kernels: checked problems, gradients for autograd, sparse weights, threads."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

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


class Keys(Protocol):
    """Who has the keys of some rows of a batch, which others have the rest of."""

    def keys(self, n: int) -> NDArray[np.uint64]:
        """The next n.  Shapes: -> [n]."""


Randomness: TypeAlias = torch.Generator | Keys


@dataclass
class Drawn:
    """Keys that were drawn before, to be handed out one after another.  Shapes: left [n]."""

    left: NDArray[np.uint64]

    def keys(self, n: int) -> NDArray[np.uint64]:
        """The next n.  Shapes: -> [n]."""
        taken, self.left = self.left[:n], self.left[n:]
        return taken


def keys_for(queries: int, generator: Randomness) -> NDArray[np.uint64]:
    """A 64-bit key for each query; drawn one after another, so that splitting a batch changes nothing."""
    if not isinstance(generator, torch.Generator):
        return generator.keys(queries)
    keys = torch.randint(torch.iinfo(torch.int64).max, (queries,), generator=generator, device=generator.device)
    return keys.cpu().numpy().astype(np.uint64)


@dataclass(frozen=True)
class Problem:
    """What the race needs beside the scores."""

    theta: Tensor
    K2: int
    samples: int
    keys: NDArray[np.uint64]

    @staticmethod
    def checked(
        s_c: Tensor,
        s_r: Tensor,
        theta: Tensor,
        K2: int,
        samples: int,
        generator: Randomness,
    ) -> "Problem":
        for name, values in (("s_c", s_c), ("s_r", s_r), ("theta", theta)):
            if not of_kind(name, values, Tensor).is_floating_point():
                raise ConfigError(
                    f"{name}: expected a tensor of floating-point numbers; got {values.dtype}. Convert it."
                )
        K2, samples = of_kind("K2", K2, int), of_kind("samples", samples, int)
        if s_c.ndim != 2 or s_c.shape != s_r.shape or s_c.shape[1] == 0:
            raise PolicyError(
                f"both stages need scores of one shape [queries, documents], at least one document; "
                f"got {tuple(s_c.shape)} and {tuple(s_r.shape)}."
            )
        for stage, scores in (("candidate", s_c), ("ranker", s_r)):
            check_scores(scores.detach(), stage)
        check_theta(theta)
        if K2 < 1 or not 1 <= samples <= MOST_SAMPLES:
            raise ConfigError(
                f"K2 and samples must be at least 1, samples at most {MOST_SAMPLES:,}; got K2 = {K2}, samples = {samples}."
            )
        return Problem(theta.detach(), min(K2, s_c.shape[1]), samples, keys_for(len(s_c), generator))


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


Solution: TypeAlias = tuple[Tensor, Tensor | None, Tensor | None]


class _Differentiable(torch.autograd.Function):
    """Value and the gradients that are needed at once; backward only multiplies."""

    @staticmethod
    def forward(ctx: Any, s_c: Tensor, s_r: Tensor, solve: Callable[[Tensor, Tensor], Solution]) -> Tensor:
        value, grad_c, grad_r = solve(s_c.detach(), s_r.detach())
        ctx.save_for_backward(grad_c, grad_r)
        return value

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        grad_c, grad_r = ctx.saved_tensors
        scale = grad_outputs[0][:, None]
        needs_c, needs_r = ctx.needs_input_grad[:2]
        return grad_c * scale if needs_c else None, grad_r * scale if needs_r else None, None


def differentiable(s_c: Tensor, s_r: Tensor, solve: Callable[[Tensor, Tensor], Solution]) -> Tensor:
    """A value [B] whose gradients by both stages' scores [B, D] are computed along with it, for autograd."""
    result: Tensor = _Differentiable.apply(s_c, s_r, solve)  # type: ignore[no-untyped-call]
    return result


def solved(
    kernel: Callable[..., None],
    s_c: Tensor,
    s_r: Tensor,
    w: csr_matrix,
    problem: Problem,
    wanted: tuple[bool, bool],
    *more: Any,
) -> Solution:
    """Value and gradients of a utility by the kernel of an estimator; a gradient that nobody wants is [B, 0], and costs
    nothing.  Shapes: s_c, s_r, w [B, D] -> [B], [B, D], [B, D]."""
    s, r, value = row_major(s_c), row_major(s_r), np.zeros(len(s_c))
    grad_c, grad_r = (np.zeros((len(s), s.shape[1] if wants else 0), np.float32) for wants in wanted)
    with compiling():
        over_rows(
            kernel, len(s), s, r, problem.keys, *entries(w), row_major(problem.theta), problem.K2, problem.samples, *more,
            value, grad_c, grad_r,
        )  # fmt: skip
    by_c, by_r = (
        torch.from_numpy(x).to(s_c) if wants else None for x, wants in zip((grad_c, grad_r), wanted, strict=True)
    )
    return torch.from_numpy(value).to(s_c), by_c, by_r


def needs_gradient(scores: Tensor) -> bool:
    """Whether autograd will ask for the gradient by these scores."""
    return scores.requires_grad and torch.is_grad_enabled()


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
