"""Numerics of the Triton kernels: products, accurate logarithms, and counter-based random bits."""

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

# The interpreter multiplies the raw bits of bfloat16, so that products need float32 there.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET", "0") == "1")
LOG2_E = tl.constexpr(1.4426950408889634)
RANDOM_LEVELS = 1 << 32  # a dropout rate is rounded to a multiple of 1 / RANDOM_LEVELS


@triton.jit
def product(a, b, IEEE: tl.constexpr):
    """a [M, K] times b [K, N] in float32; IEEE: without rounding float32 to TF32 before."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif IEEE:
        return tl.dot(a, b, input_precision="ieee")
    else:
        return tl.dot(a, b)


@triton.jit
def log1p(x):
    """log(1 + x), exact to the last bits for small x (Kahan's correction)."""
    w = 1.0 + x
    d = w - 1.0
    return tl.where(d == 0.0, x, tl.log(w) * (x / tl.where(d == 0.0, 1.0, d)))


@triton.jit
def fast_log2(x):
    """log2(x) in one instruction; its absolute error is 2e-7 for x between 0.5 and 2."""
    if INTERPRETED:
        return tl.log2(x)
    else:
        return libdevice.fast_log2f(x)


@triton.jit
def log2_1p(x, FAST: tl.constexpr):
    """log2(1 + x); FAST: with a relative error of 3e-6, which half precision hides."""
    if FAST:
        series = x * (-0.5 + x * (1.0 / 3.0 + x * (-0.25 + x * 0.2)))
        series = (x + x * series) * LOG2_E
        return tl.where(tl.abs(x) < 0.0625, series, fast_log2(1.0 + x))
    else:
        return log1p(x) * LOG2_E


@triton.jit
def expm1(x):
    """exp(x) - 1 for x <= 0, exact to the last bits for small x (Kahan's correction)."""
    w = tl.exp(x)
    d = w - 1.0
    log = tl.log(tl.where(d == -1.0, 0.5, w))
    exact = d * (x / tl.where(log == 0.0, 1.0, log))
    return tl.where(d == 0.0, x, tl.where(d == -1.0, -1.0, exact))


@triton.jit
def mix(x):
    """A bijection of 32-bit integers whose output bits each depend on all input bits."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@triton.jit
def random_bits(seed, stream, counter):
    """32 random bits per counter: a pure function of (seed, stream, counter).

    A stream's two keys come from Philox. Its elements are `mix` of a progression that starts at the
    second key, in steps of the first one.
    """
    first, second, _, _ = tl.randint4x(seed, stream)
    return mix(counter.to(tl.uint32) * (first | 1).to(tl.uint32) + second.to(tl.uint32))
