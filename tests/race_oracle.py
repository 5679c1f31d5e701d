"""The race as whole arrays [S, B, D]: the law of `gradients._kernels.race`, from the same clocks, in torch.

The readable one of the two, and the reference for the other: sorts where the kernel selects, and treats every document
alike where the kernel skips what cannot matter.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.random import GOLDEN, MIX
from tandemrank.gradients._kernels.race import TYPICAL_DOCUMENTS, TYPICAL_STEPS


def _stream(key: Tensor, number: Tensor) -> Tensor:
    """The 64-bit key of stream `number`: splitmix64 once more, in signed words that wrap, as torch has no others."""
    z = key + (number + 1) * _signed(int(GOLDEN))
    z = (z ^ _shift(z, 30)) * _signed(int(MIX[0]))
    z = (z ^ _shift(z, 27)) * _signed(int(MIX[1]))
    return z ^ _shift(z, 31)


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _shift(z: Tensor, n: int) -> Tensor:
    """Logical shift to the right of a 64-bit pattern."""
    return (z >> n) & ((1 << (64 - n)) - 1)


def log_clocks(keys: NDArray[np.uint64], samples: int, D: int, stage: int, like: Tensor) -> Tensor:
    """log E with E ~ Exp(1) for each sample, query and document: the clocks of `_kernels.race`.

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


def race(
    s_c: Tensor, s_r: Tensor, w: Tensor, theta: Tensor, K2: int, samples: int, keys: NDArray[np.uint64]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """p, lambda tau exp(-lambda tau), examination if candidate, V_d - V_b, dV_d/dr_d, each [S, B, D], and U [S, B]."""
    K, (_, D), S, inf = len(theta), s_c.shape, samples, torch.inf
    theta = torch.cat([theta.to(s_c), s_c.new_zeros(1)])
    # A candidate that the re-ranker never shows takes a place, but its own weight counts for nothing.
    showable = s_r > -inf
    w = w.where(showable, 0)
    log_T = log_clocks(keys, S, D, 0, s_c) - s_c
    order = log_T.argsort(dim=-1, stable=True)
    available = (s_c > -inf).expand(log_T.shape)
    if K2 < D:
        x, last = order[..., K2], order[..., K2 - 1]
        missed = available.gather(-1, x[..., None])
        candidate = available & (_places(order, D) < K2)
    else:
        x = last = order[..., 0]
        missed, candidate = torch.zeros_like(available[..., :1]), available
    x, last = x.where(missed[..., 0], -2), last.where(missed[..., 0], -2)
    log_Q = (log_clocks(keys, S, D, 1, s_c) - s_r).where(candidate, inf)
    log_Q = torch.cat([log_Q, log_Q.new_full((*log_Q.shape[:-1], K + 1), inf)], -1)
    times, shown = (y[..., : K + 1] for y in log_Q.sort(dim=-1, stable=True))
    shown = shown.where(times < inf, -1)
    weights = torch.cat([w, w.new_zeros(len(w), 1)], 1).expand(S, -1, -1).gather(-1, shown.where(shown >= 0, D))
    # The entry of the list that each document does not see: itself if a candidate, else the last candidate.
    hidden = torch.where(candidate, _places(shown, D), _place_of(last, shown)[..., None]).clamp(max=K)
    # Whose place a document takes: the first who missed if it is a candidate, else the last candidate.
    b = torch.where(candidate, x[..., None], last[..., None]).clamp(min=0)
    r_b, w_b = (y.expand_as(log_T).gather(-1, b) for y in (s_r, w))
    examination, slope = torch.zeros_like(log_T) + theta[0], torch.zeros_like(log_T)
    V_d, V_b = theta[0] * w.expand_as(log_T), theta[0] * w_b
    for k in range(K):
        delta = theta[k + 1] - theta[k]
        seen = k >= hidden
        log_t = torch.where(seen, times[..., k + 1, None], times[..., k, None])
        w_k = torch.where(seen, weights[..., k + 1, None], weights[..., k, None])
        y, y_b = ((r + log_t.clamp(max=1e30)).exp().clamp(max=80) for r in (s_r, r_b))
        e, e_b = ((-y).exp().where(log_t < inf, 0) for y in (y, y_b))
        examination = examination + e * delta
        V_d = V_d + theta[k + 1] * w_k + e * delta * (w - w_k)
        V_b = V_b + theta[k + 1] * w_k + e_b * delta * (w_b - w_k)
        slope = slope - y * e * delta * (w - w_k)
    times_T = torch.cat([log_T, log_T.new_full((*log_T.shape[:-1], 1), inf)], -1)
    T_x, T_last = (times_T.gather(-1, y.where(y >= 0, D)[..., None]) for y in (x, last))
    a = (s_c + torch.where(candidate, T_x, T_last)).exp().clamp(max=80)
    p = torch.where(missed, -torch.expm1(-a), 1.0).where(available, 0.0)
    density = torch.where(missed, a * (-a).exp(), 0.0).where(available, 0.0)
    examination = examination.where(showable, 0)
    return p, density, examination, V_d - V_b, slope, (w * p * examination).sum(-1)


def typical_time(scores: Tensor, chance: Tensor, target: float, documents: int, steps: int) -> Tensor:
    """As `_kernels.race.typical_time`.  Shapes: scores, chance [B, D] -> [B, 1]."""
    D = scores.shape[1]
    stride = max(1, D // documents)
    part, weight = scores[:, ::stride], chance[:, ::stride]
    top = part.where(weight > 0, -torch.inf).amax(1, keepdim=True)
    never = top == -torch.inf
    rate = (part - top.where(~never, 0)).clamp(max=88).exp()
    goal = (0.5 * weight.sum(1, keepdim=True)).clamp(max=target * part.shape[1] / D)
    t = goal / (weight * rate).sum(1, keepdim=True)
    for _ in range(steps):
        still = weight * (-(rate * t).clamp(max=100)).exp()
        missing = (goal - (weight - still).sum(1, keepdim=True)).clamp(min=0)
        t = (t + missing / (still * rate).sum(1, keepdim=True).clamp(min=1e-30)).clamp(max=1e30)
    return (t.log() - top).where(~never, -torch.inf)


def balance(s_c: Tensor, s_r: Tensor, K2: int, theta: Tensor, grad_c: Tensor, grad_r: Tensor) -> tuple[Tensor, Tensor]:
    """Takes out of each gradient its sum over the documents; as `_kernels.race.balance`.  Shapes: all [B, D]."""
    places = float(theta.abs().sum() / theta.abs().max()) if bool((theta != 0).any()) else 1.0

    def at_typical_time(scores: Tensor, chance: Tensor, target: float) -> tuple[Tensor, Tensor]:
        log_t = typical_time(scores, chance, target, TYPICAL_DOCUMENTS, TYPICAL_STEPS)
        y = (scores + log_t).exp().clamp(max=80)
        return -torch.expm1(-y), y * (-y).exp()

    def less_its_sum(gradient: Tensor, pattern: Tensor) -> Tensor:
        mass = pattern.sum(1, keepdim=True)
        return gradient - pattern * torch.where(mass > 0, gradient.sum(1, keepdim=True) / mass, 0)

    available = (s_c > -torch.inf).to(s_c)
    two_stages = available.sum(1, keepdim=True) > K2
    chance, pattern = at_typical_time(s_c, available, K2)
    grad_c = torch.where(two_stages, less_its_sum(grad_c, pattern), grad_c)
    chance = torch.where(two_stages, chance, available)
    return grad_c, less_its_sum(grad_r, chance * at_typical_time(s_r, chance, places)[1])


def utility(
    s_c: Tensor, s_r: Tensor, w: Tensor, theta: Tensor, K2: int, samples: int, keys: NDArray[np.uint64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Value [B] and both gradients [B, D], as of `race.utility`."""
    p, density, _, gain, slope, value = race(s_c, s_r, w, theta, K2, samples, keys)
    return value.mean(0), *balance(s_c, s_r, K2, theta, (density * gain).mean(0), (p * slope).mean(0))


def exposure(s_c: Tensor, s_r: Tensor, theta: Tensor, K2: int, samples: int, keys: NDArray[np.uint64]) -> Tensor:
    """The mean of the samples [B, D], scaled to its sum where that is known: all available candidates can be shown."""
    p, _, examination, *_ = race(s_c, s_r, torch.zeros_like(s_c), theta, K2, samples, keys)
    rho, available = (p * examination).mean(0), s_c > -torch.inf
    total = torch.stack([theta[: min(int(n), K2)].sum() for n in available.sum(1)])
    known = (total > 0) & ~(available & (s_r == -torch.inf)).any(1)
    scale = torch.where(known, total / rho.sum(1), 1.0)
    return (scale[:, None] * rho).clamp(max=float(theta.max()))
