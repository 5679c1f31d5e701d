"""Two-stage exposure and utility with their gradients, by a race of exponential clocks (docs/race.md).

Plackett-Luce is a race: document d arrives at T_d ~ Exp(rate exp(s_d)), and the order of arrival is the ranking. The
candidates are the K2 first arrivals; the shown list is the K first arrivals, among the candidates, of a second race with
the re-ranker's scores. Each score moves one clock only, so with all other clocks fixed a document's own two clocks
integrate out in closed form: an unbiased estimate of value, exposure and both gradients, sharp with one sample.

Equations: 2stage-true-utility and cltr-obj-2s (value), cand-grad and ranker-grad (gradients), eq:propensity_def (K2 = D).

Two implementations of one law: the compiled kernel (`race_kernel`, the default on the CPU) and the tensor path below,
which runs on any device. Both take their clocks from the same counter-based random numbers, so a seed means the same
everywhere, and neither threads nor the split of a batch change a result.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError

Weights: TypeAlias = Tensor | csr_matrix
Implementation = Literal["kernel", "tensor"]


def utility(
    s_c: Tensor,
    s_r: Tensor,
    w: Weights,
    theta: Tensor,
    K2: int,
    *,
    samples: int = 1,
    generator: torch.Generator,
    implementation: Implementation | None = None,
) -> Tensor:
    """Two-stage utility of each query, differentiable in both stages' scores.

        U = sum_d rho_cr(d) w_d,   rho_cr(d) = E[theta_{k(d)}]            (paper: cltr-obj-2s, 2stage-true-utility)

    Its gradient is the race gradient: unbiased, one sample is usually enough. K2 >= D is the one-stage case, where the
    generator's scores only say who is available. A generator's score of -inf means "not available", a re-ranker's
    "a candidate, but never shown"; weights may be negative.
    Shapes: s_c, s_r [B, D]; w [B, D], a tensor or a scipy CSR matrix; theta [K] -> [B].
    """
    problem = Problem.checked(s_c, s_r, theta, K2, samples, generator, implementation)
    w = checked_weights(w, s_c)
    solve = _kernel_utility if problem.compiled else _tensor_utility
    return differentiable(s_c, s_r, lambda s, r: solve(s, r, w, problem))


def exposure(
    s_c: Tensor,
    s_r: Tensor,
    theta: Tensor,
    K2: int,
    *,
    samples: int,
    generator: torch.Generator,
    documents: csr_matrix | None = None,
    implementation: Implementation | None = None,
) -> tuple[Tensor, Tensor]:
    """The exposure of each document and its standard error, the means over the samples of a closed form.

        rho_cr(d) = E[ p_d (theta_1 + sum_k exp(-mu_d t_k) (theta_{k+1} - theta_k)) ]     (paper: 2stage-true-utility)

    With K2 = D it is the propensity of a one-stage policy (paper: eq:propensity_def).
    Shapes: s_c, s_r [B, D]; theta [K] -> two of [B, D], or of [nnz] where `documents`, a CSR pattern [B, D], is given.
    The standard error is NaN for one sample.
    """
    problem = Problem.checked(s_c, s_r, theta, K2, samples, generator, implementation)
    if documents is not None and documents.shape != s_c.shape:
        raise ConfigError(f"documents must have the shape of the scores, {tuple(s_c.shape)}, not {documents.shape}.")
    mean, variance = (_kernel_exposure if problem.compiled else _tensor_exposure)(
        s_c.detach(), s_r.detach(), documents, problem
    )
    return mean, (variance / samples).sqrt() if samples > 1 else torch.full_like(mean, torch.nan)


def draw(
    s_c: Tensor, s_r: Tensor, K2: int, K: int, *, rows: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int32]:
    """One shown list for each key: K2 candidates by the first race, K of them by the second; -1 where too few are left.

    Shapes: s_c, s_r [B, D]; rows [n], the row of the scores for each list; keys [n] -> [n, K] int32.
    """
    from tandemrank import race_kernel

    shown = np.empty((len(rows), K), np.int32)
    with compiling():
        race_kernel.lists(
            row_major(s_c),
            row_major(s_r),
            rows.astype(np.int64),
            keys.astype(np.uint64),
            K2,
            chunks(len(rows)),
            shown,
        )
    return shown


def most_likely(s_c: Tensor, s_r: Tensor, K2: int, K: int) -> NDArray[np.int32]:
    """The most likely list of each query: the K2 highest generator scores, of them the K highest re-ranker scores.

    Ties go to the lower document number; -1 where fewer than K documents are available.
    Shapes: s_c, s_r [B, D] -> [B, K].
    """
    from tandemrank import race_kernel

    shown = np.empty((len(s_c), K), np.int32)
    with compiling():
        race_kernel.best(row_major(s_c), row_major(s_r), K2, chunks(len(s_c)), shown)
    return shown


def keys_for(queries: int, generator: torch.Generator) -> NDArray[np.uint64]:
    """A 64-bit key for each query; drawn one after another, so that splitting a batch changes nothing."""
    keys = torch.randint(torch.iinfo(torch.int64).max, (queries,), generator=generator, device=generator.device)
    return keys.cpu().numpy().astype(np.uint64)


@dataclass(frozen=True)
class Problem:
    """What both implementations need beside the scores."""

    theta: Tensor
    K2: int
    samples: int
    keys: NDArray[np.uint64]
    compiled: bool

    @staticmethod
    def checked(
        s_c: Tensor,
        s_r: Tensor,
        theta: Tensor,
        K2: int,
        samples: int,
        generator: torch.Generator,
        implementation: Implementation | None,
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
        compiled = (s_c.device.type == "cpu") if implementation is None else implementation == "kernel"
        return Problem(theta.detach(), int(K2), int(samples), keys_for(len(s_c), generator), compiled)


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
    if tuple(w.shape) != tuple(scores.shape):
        raise ConfigError(f"weights must have the shape of the scores, {tuple(scores.shape)}, not {tuple(w.shape)}.")
    total = float(w.sum()) if isinstance(w, Tensor) else float(w.data.sum())
    if not np.isfinite(total):
        raise ConfigError("weights must be finite; a propensity of 0 gives infinite weights, clip it from below.")
    return w


Solution: TypeAlias = tuple[Tensor, Tensor, Tensor]


class _Differentiable(torch.autograd.Function):
    """Value and both gradients at once; backward only multiplies."""

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


# The compiled kernel


_compiled_once = threading.Event()


@contextmanager
def compiling() -> Iterator[None]:
    """Around a call of compiled code: the first one says what it is doing if it takes more than a second."""
    if _compiled_once.is_set():
        yield
        return
    note = "tandemrank: compiling the race kernel for this machine (once, then kept on disk) ..."
    timer = threading.Timer(1.0, lambda: print(note, file=sys.stderr))  # noqa: T201
    timer.daemon = True
    timer.start()
    try:
        yield
        _compiled_once.set()
    finally:
        timer.cancel()


def row_major(x: Tensor) -> NDArray[np.float32]:
    return x.detach().to(torch.float32).contiguous().cpu().numpy()


def chunks(queries: int) -> int:
    import numba

    return int(max(1, min(queries, numba.get_num_threads())))


def sparse(w: Weights) -> csr_matrix:
    return csr_matrix(w.detach().cpu().numpy()) if isinstance(w, Tensor) else w


def _kernel_utility(s_c: Tensor, s_r: Tensor, w: Weights, problem: Problem) -> Solution:
    from tandemrank import race_kernel

    s, r, weights = row_major(s_c), row_major(s_r), sparse(w)
    value, variance = np.zeros(len(s)), np.zeros(len(s))
    grad_c, grad_r = np.zeros_like(s), np.zeros_like(s)
    with compiling():
        race_kernel.utility(
            s, r, problem.keys, weights.indptr.astype(np.int64), weights.indices.astype(np.int32),
            weights.data.astype(np.float32), row_major(problem.theta), problem.K2, problem.samples, chunks(len(s)),
            value, variance, grad_c, grad_r,
        )  # fmt: skip
    return tuple(torch.from_numpy(x).to(s_c) for x in (value, grad_c, grad_r))  # type: ignore[return-value]


def _kernel_exposure(s_c: Tensor, s_r: Tensor, documents: csr_matrix | None, problem: Problem) -> tuple[Tensor, Tensor]:
    from tandemrank import race_kernel

    s, r = row_major(s_c), row_major(s_r)
    B, D = s.shape
    if documents is None:
        indptr, indices = np.arange(B + 1, dtype=np.int64) * D, np.tile(np.arange(D, dtype=np.int32), B)
    else:
        indptr, indices = documents.indptr.astype(np.int64), documents.indices.astype(np.int32)
    mean, variance = np.zeros(len(indices)), np.zeros(len(indices))
    with compiling():
        race_kernel.exposure(
            s, r, problem.keys, indptr, indices, row_major(problem.theta), problem.K2, problem.samples, chunks(B),
            mean, variance,
        )  # fmt: skip
    shape = (B, D) if documents is None else (len(indices),)
    return torch.from_numpy(mean).to(s_c).reshape(shape), torch.from_numpy(variance).to(s_c).reshape(shape)


# The tensor path: the same law in whole arrays [S, B, D], samples first


def _stream(key: Tensor, number: Tensor) -> Tensor:
    """The 64-bit key of stream `number` (splitmix64, in wrapping int64 arithmetic)."""
    z = key + (number + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _shift(z: Tensor, n: int) -> Tensor:
    """Logical shift to the right of a 64-bit pattern."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def log_clocks(keys: NDArray[np.uint64], samples: int, D: int, stage: int, like: Tensor) -> Tensor:
    """log E with E ~ Exp(1) for each sample, query and document: the clocks of `race_kernel`, on any device.

    Shapes: keys [B] -> [S, B, D]; stage 0 is the candidates' race, 1 the shown list's.
    """
    key = torch.from_numpy(keys.astype(np.int64)).to(like.device)
    key = _stream(key, torch.arange(samples, device=like.device)[:, None])
    key = _stream(key, torch.tensor(stage, device=like.device))[..., None]
    low, high, word = key & 0xFFFFFFFF, _shift(key, 32), 0xFFFFFFFF
    x = (torch.arange(D, device=like.device) * 0x9E3779B9 + low) & word
    for shift, multiplier in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = ((x ^ (x >> shift)) * multiplier) & word
    x = ((x ^ (x >> 16)) + high) & word
    for shift, multiplier in ((17, 0xED5AD4BB), (11, 0xAC4C1B51)):
        x = ((x ^ (x >> shift)) * multiplier) & word
    x = x ^ (x >> 15)
    v = ((x >> 1).to(torch.float32) * 2.0**-31 + 2.0**-32).clamp(max=1 - 2.0**-24)
    return (-torch.log1p(-v.to(like.dtype))).log()


def _without(x: Tensor, place: Tensor, length: int) -> Tensor:
    """x[..., k] less the entry at `place`, for k < length.  Shapes: x [..., n], place [...] -> [..., length]."""
    k = torch.arange(length, device=x.device)
    return x.gather(-1, k + (k >= place[..., None]).long())


def _place_of(d: Tensor, docs: Tensor) -> Tensor:
    """Where d stands in docs, its length if it does not.  Shapes: d [...], docs [..., n] -> [...]."""
    found = docs == d[..., None]
    return torch.where(found.any(-1), found.long().argmax(-1), docs.shape[-1])


def _places(docs: Tensor, D: int) -> Tensor:
    """The inverse of a list: the place of every document, the list's length if absent.  Shapes: [..., n] -> [..., D]."""
    n = docs.shape[-1]
    places = docs.new_full((*docs.shape[:-1], D + 1), n)
    numbers = torch.arange(n, device=docs.device).expand_as(docs)
    # Absent entries (-1) are all written to one column that is then cut off.
    return places.scatter(-1, docs.where(docs >= 0, D), numbers)[..., :D]


def _tensor_race(
    s_c: Tensor, s_r: Tensor, w: Tensor, problem: Problem
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """p, lambda tau exp(-lambda tau), examination if candidate, U_in - U_out, dU_in/dr, each [S, B, D], and U [S, B]."""
    K, (_, D), S, inf = len(problem.theta), s_c.shape, problem.samples, torch.inf
    theta = torch.cat([problem.theta.to(s_c), s_c.new_zeros(1)])
    # A candidate that the re-ranker never shows takes a place, but its own weight counts for nothing.
    showable = s_r > -inf
    w = w.where(showable, 0)
    log_T = log_clocks(problem.keys, S, D, 0, s_c) - s_c
    order = log_T.argsort(dim=-1, stable=True)
    available = (s_c > -inf).expand(log_T.shape)
    if problem.K2 < D:
        x, last = order[..., problem.K2], order[..., problem.K2 - 1]
        missed = available.gather(-1, x[..., None])
        candidate = available & (_places(order, D) < problem.K2)
    else:
        x = last = order[..., 0]
        missed, candidate = torch.zeros_like(available[..., :1]), available
    x, last = x.where(missed[..., 0], -2), last.where(missed[..., 0], -2)
    racing = candidate | (torch.arange(D, device=s_c.device) == x[..., None])
    log_Q = (log_clocks(problem.keys, S, D, 1, s_c) - s_r).where(racing, inf)
    log_Q = torch.cat([log_Q, log_Q.new_full((*log_Q.shape[:-1], K + 2), inf)], -1)
    times, shown = (y[..., : K + 2] for y in log_Q.sort(dim=-1, stable=True))
    shown = shown.where(times < inf, -1)
    weights = torch.cat([w, w.new_zeros(len(w), 1)], 1).expand(S, -1, -1).gather(-1, shown.where(shown >= 0, D))
    # Without x: what is really shown, and one more.
    place_x = _place_of(x, shown)
    rest, rest_times, rest_weights = (_without(y, place_x, K + 1) for y in (shown, times, weights))
    # The entry of `rest` that each document does not see: itself if a candidate, else the last candidate.
    hidden = torch.where(candidate, _places(rest, D), _place_of(last, rest)[..., None]).clamp(max=K)
    place = _places(shown, D)
    examination, U_in, slope = (
        torch.zeros_like(log_T) + theta[0],
        theta[0] * w.expand_as(log_T),
        torch.zeros_like(log_T),
    )
    U_out = torch.zeros_like(log_T)
    for k in range(K):
        delta = theta[k + 1] - theta[k]
        seen = k >= hidden
        log_t = torch.where(seen, rest_times[..., k + 1, None], rest_times[..., k, None])
        w_b = torch.where(seen, rest_weights[..., k + 1, None], rest_weights[..., k, None])
        y = (s_r + log_t.clamp(max=1e30)).exp().clamp(max=80)
        e = (-y).exp().where(log_t < inf, 0)
        examination = examination + e * delta
        U_in = U_in + theta[k + 1] * w_b + e * delta * (w - w_b)
        slope = slope - y * e * delta * (w - w_b)
        out_candidate = torch.where(k >= place, weights[..., k + 1, None], weights[..., k, None])
        U_out = U_out + theta[k] * torch.where(candidate, out_candidate, rest_weights[..., k, None])
    times_T = torch.cat([log_T, log_T.new_full((*log_T.shape[:-1], 1), inf)], -1)
    T_x, T_last = (times_T.gather(-1, y.where(y >= 0, D)[..., None]) for y in (x, last))
    a = (s_c + torch.where(candidate, T_x, T_last)).exp().clamp(max=80)
    p = torch.where(missed, -torch.expm1(-a), 1.0).where(available, 0.0)
    density = torch.where(missed, a * (-a).exp(), 0.0).where(available, 0.0)
    examination = examination.where(showable, 0)
    return p, density, examination, U_in - U_out, slope, (w * p * examination).sum(-1)


def _tensor_utility(s_c: Tensor, s_r: Tensor, w: Weights, problem: Problem) -> Solution:
    dense = w.to(s_c) if isinstance(w, Tensor) else torch.from_numpy(w.toarray()).to(s_c)
    p, density, _, gain, slope, value = _tensor_race(s_c, s_r, dense, problem)
    return value.mean(0), (density * gain).mean(0), (p * slope).mean(0)


def _tensor_exposure(s_c: Tensor, s_r: Tensor, documents: csr_matrix | None, problem: Problem) -> tuple[Tensor, Tensor]:
    p, _, examination, *_ = _tensor_race(s_c, s_r, torch.zeros_like(s_c), problem)
    rho = p * examination
    mean, variance = rho.mean(0), rho.var(0) if problem.samples > 1 else torch.zeros_like(rho[0])
    if documents is None:
        return mean, variance
    rows = np.repeat(np.arange(len(s_c)), np.diff(documents.indptr))
    return mean[rows, documents.indices], variance[rows, documents.indices]
