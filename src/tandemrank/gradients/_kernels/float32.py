"""Compiled building blocks: random bits by counters, exponential clocks, exp and log on whole vectors, who exceeds a level.

The compiler calls the C library for `math.exp` and `math.log`, one number at a time. The polynomials here (Cephes,
relative error below 3e-7) are plain float32 arithmetic, so a loop over documents runs eight of them at once.
Nothing here is compiled before its first use.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

f32, i32, u32, u64 = np.float32, np.int32, np.uint32, np.uint64

_LOG2_E, _LN2 = f32(1.4426950408889634), f32(0.6931471805599453)
_LN2_HIGH, _LN2_LOW = f32(0.693359375), f32(-2.12194440e-4)
_SQRT_HALF_BITS = i32(0x3F3504F3)


@intrinsic
def bits_of(typing_context, x):
    """The bits of a float32 as an int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def float_of(typing_context, x):
    """The float32 with the bits of an int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@njit(inline="always")
def ordered(x):
    """The bits of a float32 as a uint32 in the order of the floats."""
    i = bits_of(x)
    return u32(u32(i) ^ u32(u32(i32(i >> i32(31))) | u32(0x80000000)))


@njit(inline="always")
def float_of_ordered(x):
    """The float32 whose `ordered` is x."""
    return float_of(i32(u32(x ^ u32(0x80000000)) if x >= u32(0x80000000) else u32(~x)))


@njit(inline="always")
def exp(x):
    """exp(x), 0 below -87 (and for -inf), never above exp(88): no infinity comes out, so none can become a NaN."""
    tiny = x < f32(-87.0)
    x = min(max(x, f32(-87.0)), f32(88.0))
    n = i32(x * _LOG2_E + f32(127.5))
    k = f32(n) - f32(127.0)
    r = x - k * _LN2_HIGH - k * _LN2_LOW
    p = f32(1.9875691500e-4)
    p = p * r + f32(1.3981999507e-3)
    p = p * r + f32(8.3334519073e-3)
    p = p * r + f32(4.1665795894e-2)
    p = p * r + f32(1.6666665459e-1)
    p = p * r + f32(5.0000001201e-1)
    p = p * r * r + r + f32(1.0)
    return f32(0.0) if tiny else p * float_of(i32(n << i32(23)))


@njit(inline="always")
def _log_1p(f, exponent):
    """log(1 + f) + exponent * log(2) for 1 + f between sqrt(1/2) and sqrt(2)."""
    p = f32(7.0376836292e-2)
    p = p * f + f32(-1.1514610310e-1)
    p = p * f + f32(1.1676998740e-1)
    p = p * f + f32(-1.2420140846e-1)
    p = p * f + f32(1.4249322787e-1)
    p = p * f + f32(-1.6668057665e-1)
    p = p * f + f32(2.0000714765e-1)
    p = p * f + f32(-2.4999993993e-1)
    p = p * f + f32(3.3333331174e-1)
    square = f * f
    return p * f * square - f32(0.5) * square + f + exponent * _LN2


@njit(inline="always")
def log(x):
    """log(x) for a positive normal float32."""
    i = i32(bits_of(x) - _SQRT_HALF_BITS)
    m = float_of(i32((i & i32(0x7FFFFF)) + _SQRT_HALF_BITS))
    return _log_1p(m - f32(1.0), f32(i32(i >> i32(23))))


@njit(inline="always")
def minus_log_1m(v):
    """-log(1 - v) for 0 < v < 1, exact to rounding for small v too."""
    i = i32(bits_of(f32(1.0) - v) - _SQRT_HALF_BITS)
    exponent = i32(i >> i32(23))
    m = float_of(i32((i & i32(0x7FFFFF)) + _SQRT_HALF_BITS))
    # Where 1 - v needs no scaling, -v itself is the exact argument; 1 - v has lost its last bits.
    f = -v if exponent == 0 else m - f32(1.0)
    return -_log_1p(f, f32(exponent))


@njit(inline="always")
def bits(d, low, high):
    """32 random bits for counter `d` in the stream with the key (high, low): two keyed rounds of multiply and shift."""
    x = u32(u32(d) * u32(0x9E3779B9) + low)
    x = u32(x ^ (x >> u32(16)))
    x = u32(x * u32(0x7FEB352D))
    x = u32(x ^ (x >> u32(15)))
    x = u32(x * u32(0x846CA68B))
    x = u32(x ^ (x >> u32(16)))
    x = u32(x + high)
    x = u32(x ^ (x >> u32(17)))
    x = u32(x * u32(0xED5AD4BB))
    x = u32(x ^ (x >> u32(11)))
    x = u32(x * u32(0xAC4C1B51))
    return u32(x ^ (x >> u32(15)))


@njit(inline="always")
def uniform(d, low, high):
    """A float32 in (0, 1), with the relative precision of float32 near 0: small clocks decide a race."""
    v = f32(i32(bits(d, low, high) >> u32(1))) * f32(2.0**-31) + f32(2.0**-32)
    return min(v, f32(1.0 - 2.0**-24))


@njit
def above(row, size, level, found):
    """The places in row[:size] that are not below or at the level, NaN too; returns how many."""
    n = 0
    for j in range(size):
        found[n] = j
        n += not (row[j] <= level)
    return n
