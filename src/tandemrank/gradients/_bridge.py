"""Between torch and the compiled kernels: checked problems, gradients for autograd, sparse weights."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse
from torch import Tensor

from tandemrank._base.sparse import canonical_csr
from tandemrank.errors import ConfigError, PolicyError

Weights: TypeAlias = Tensor | csr_matrix


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
        if s_c.ndim != 2 or s_c.shape != s_r.shape or s_c.shape[1] == 0:
            raise PolicyError(
                f"both stages need scores of one shape [queries, documents], at least one document; "
                f"got {tuple(s_c.shape)} and {tuple(s_r.shape)}."
            )
        for stage, scores in (("candidate", s_c), ("ranker", s_r)):
            check_scores(scores.detach(), stage)
        if theta.ndim != 1 or len(theta) == 0 or not bool(torch.isfinite(theta).all()):
            raise ConfigError(f"theta must be a list of finite examination probabilities, one a rank; got {theta}.")
        if K2 < 1 or samples < 1:
            raise ConfigError(f"K2 and samples must be at least 1; got K2 = {K2}, samples = {samples}.")
        return Problem(theta.detach(), int(K2), int(samples), keys_for(len(s_c), generator))


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


def checked_weights(w: Weights, scores: Tensor) -> Weights:
    """Finite weights in the shape of the scores: a tensor, or any sparse matrix as CSR with each entry once."""
    if not (isinstance(w, Tensor) or issparse(w)):
        raise ConfigError(f"weights must be a tensor or a sparse matrix of scipy; {type(w).__name__} came.")
    if tuple(w.shape) != tuple(scores.shape):
        raise ConfigError(f"weights must have the shape of the scores, {tuple(scores.shape)}, not {tuple(w.shape)}.")
    w = w if isinstance(w, Tensor) else canonical_csr(w)
    total = float(w.sum()) if isinstance(w, Tensor) else float(w.data.sum())
    if not np.isfinite(total):
        raise ConfigError("weights must be finite; a propensity of 0 gives infinite weights, clip it from below.")
    return w


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


def chunks(queries: int) -> int:
    import numba

    return int(max(1, min(queries, numba.get_num_threads())))


def sparse(w: Weights) -> csr_matrix:
    return csr_matrix(w.detach().cpu().numpy()) if isinstance(w, Tensor) else w
