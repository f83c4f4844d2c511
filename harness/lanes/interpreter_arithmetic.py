"""Floating-point arithmetic in numpy as an sm90 GPU performs it, on the interpreter's storage. No triton here.

Every function takes stored values of one format (see `interpreter_floats`) and returns stored values of that format,
rounded once; a NaN that arithmetic produces is the canonical one, whatever payload and sign went in.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.lanes.interpreter_floats import bits, canonical_nan, decode, encode

Ufunc = Callable[..., np.ndarray]


def binary(a: np.ndarray, b: np.ndarray, name: str, op: Ufunc) -> np.ndarray:
    """a op b for add, subtract, multiply, divide, fmod.

    bf16 goes through fp32, whose 24 bits are more than twice bf16's 8 plus two: rounding twice gives what rounding
    once would. That holds for subnormal products too: their 16 bits end at 2^-149 at the lowest that matters.
    """
    if name in ('fp16', 'fp32', 'fp64'):
        result = op(a, b)
        return canonical_nan(result, np.isnan(result), name)
    return encode(op(decode(a, name), decode(b, name)), name)


def compare(a: np.ndarray, b: np.ndarray, name: str, op: Ufunc) -> np.ndarray:
    """a op b as booleans; every comparison with NaN is false except `!=`."""
    return op(decode(a, name), decode(b, name))


def unary(a: np.ndarray, name: str, op: Ufunc) -> np.ndarray:
    """op(a), computed by numpy in fp32 (fp64 for fp64); the GPU's own approximations are not imitated."""
    return encode(op(decode(a, name)), name)


def extremum(a: np.ndarray, b: np.ndarray, name: str, largest: bool, keep_nan: bool = False) -> np.ndarray:
    """The larger (or smaller) of a and b, with -0 below +0.

    A NaN loses against a number unless `keep_nan` (max.f32 against max.NaN.f32); numpy's maximum keeps it, its fmax
    keeps signalling ones here and there, and both give either zero.
    """
    x, y = decode(a, name), decode(b, name)
    chosen = (np.maximum if largest else np.minimum)(x, y)
    both_zero = (x == 0) & (y == 0)
    if both_zero.any():
        negative = (np.logical_and if largest else np.logical_or)(np.signbit(x), np.signbit(y))
        chosen = np.where(both_zero, _zeros(negative, chosen), chosen)
    if not keep_nan:
        chosen = np.where(np.isnan(x), y, np.where(np.isnan(y), x, chosen))
    return encode(chosen, name)


def _zeros(negative: np.ndarray, like: np.ndarray) -> np.ndarray:
    return np.where(negative, np.array(-0.0, like.dtype), np.array(0.0, like.dtype))


def clamp(a: np.ndarray, low: np.ndarray, high: np.ndarray, name: str, keep_nan: bool) -> np.ndarray:
    """a between low and high, as a maximum and a minimum: a NaN becomes `low` unless `keep_nan`."""
    return extremum(extremum(a, low, name, True, keep_nan), high, name, False, keep_nan)


def clamp_symmetric(a: np.ndarray, high: np.ndarray, name: str) -> np.ndarray:
    """a between -high and high, as one min.xorsign.abs: a NaN becomes `high` with the sign of the NaN."""
    value = decode(a, name)
    return encode(np.copysign(np.fmin(np.abs(value), decode(high, name)), value), name)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray, name: str) -> np.ndarray:
    """a * b + c, rounded once. fp64 is left to numpy's two roundings."""
    x, y, z = (decode(v, name).astype(np.float64) for v in (a, b, c))
    product = x * y   # exact: 48 bits at most
    if name == 'fp64':
        return product + z
    total = product + z
    # what the float64 sum lost (Knuth's two-sum); only its sign matters, to round the sum to odd
    part = total - product
    lost = (product - (total - part)) + (z - part)
    pattern = total.view(np.int64)
    even = np.isfinite(total) & (lost != 0) & (pattern & 1 == 0)
    odd = pattern + np.where(even, np.where((lost > 0) ^ np.signbit(total), 1, -1), 0)
    return encode(odd.view(np.float64), name)


def reduce_extremum(a: np.ndarray, name: str, largest: bool, axis: int | None, keep_dims: bool) -> np.ndarray:
    """Maximum or minimum along `axis` (of everything if None); NaN only where all are NaN, -0 below +0."""
    values = decode(a, name)
    along = {'axis': axis, 'keepdims': keep_dims}
    is_nan, is_zero, sign = np.isnan(values), values == 0, np.signbit(values)
    numbers = np.where(is_nan, np.array(-np.inf if largest else np.inf, values.dtype), values)
    chosen = (np.max if largest else np.min)(numbers, **along)
    negative = ~np.any(is_zero & ~sign, **along) if largest else np.any(is_zero & sign, **along)
    chosen = np.where(chosen == 0, _zeros(negative, chosen), chosen)
    return encode(np.where(np.all(is_nan, **along), np.array(np.nan, values.dtype), chosen), name)


def reduce_sum(a: np.ndarray, name: str, axis: int | None, keep_dims: bool) -> np.ndarray:
    """Sum along `axis` (of everything if None), every step rounded.

    Halves are added to halves, as the lanes of a warp do; which element meets which depends on the GPU's layout, so
    the bits of an inexact sum are not the GPU's.
    """
    total = np.moveaxis(a, axis, 0) if axis is not None else a.reshape(-1)
    while total.shape[0] > 1:
        half = total.shape[0] // 2
        total = np.concatenate([binary(total[:half], total[half:2 * half], name, np.add), total[2 * half:]])
    if not keep_dims:
        return total[0]
    return np.moveaxis(total, 0, axis) if axis is not None else total.reshape((1, ) * a.ndim)


def absolute(a: np.ndarray, name: str) -> np.ndarray:
    """|a|."""
    mask = np.array((1 << (a.dtype.itemsize * 8 - 1)) - 1, dtype=bits(a).dtype)
    return (bits(a) & mask).view(a.dtype)
