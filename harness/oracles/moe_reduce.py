"""The weighted sum over a token's experts, in every order that a lane is known to use, and its error bound.

    term_k = h[m, k, n] * w[m, k]          k < K;   +0 for K <= k < next power of two (masked lanes)
    out    = sum over k of term_k          rounded to the storage format at the end

in an accumulation format: the storage format itself (the weight is rounded to it first, every operation rounds to it),
or float32. Whoever adds decides about the last bits, so that an order is an argument here:

    halves           products rounded; halves added to halves (the repaired interpreter)
    chain            products rounded; one after the other
    fused            round(h_0 w_0), then fma(h_k, w_k, sum): what the compiler makes of a chain on sm_90, read from the
                     code that Triton 3.6.0 and 3.7.1 generate where one thread holds all K
    fused_from_1     the same, but of the first two products it is the second that is rounded

Values travel as float64 and are rounded after every operation; what float64 itself loses in a sum is repaired by
rounding to odd (Boldo and Melquiond, 2005), so that each operation rounds exactly once.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.oracles.storage import FORMATS

# Explicit fraction bits + 1, and the exponent of the smallest subnormal.
PRECISION = {'bf16': (8, -133), 'fp16': (11, -24), 'fp32': (24, -149)}
LARGEST = {'bf16': FORMATS['bf16'].largest, 'fp16': FORMATS['fp16'].largest, 'fp32': float(np.finfo(np.float32).max)}


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """float64 -> the nearest value of format `name`, ties to even, as float64; past the range infinity."""
    if name == 'fp32':
        with np.errstate(over='ignore', under='ignore'):
            return values.astype(np.float32).astype(np.float64)
    return FORMATS[name].decode(FORMATS[name].round(values))


def to_bits(values: np.ndarray, name: str) -> np.ndarray:
    """float64 values of format `name` -> unsigned bits; NaN is the GPU's canonical one."""
    if name != 'fp32':
        return FORMATS[name].round(values)
    bits = values.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), bits)


def accumulation(storage: str, fp32_acc: bool) -> str:
    """The format of products and sums."""
    return 'fp32' if fp32_acc else storage


def _added(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a + b rounded to odd in float64: a later rounding to at most 51 bits is then the only one."""
    with np.errstate(invalid='ignore', over='ignore'):
        total = a + b
        part = total - a
        lost = (a - (total - part)) + (b - part)
    even = total.view(np.int64) & 1 == 0
    towards = np.where(lost > 0, np.inf, -np.inf)
    return np.where(np.isfinite(total) & (lost != 0) & even, np.nextafter(total, towards), total)


def _add(a, b, acc):
    return rounded(_added(a, b), acc)


def _halves(h, w, acc):
    terms = rounded(h * w, acc)
    while len(terms) > 1:
        half = len(terms) // 2
        terms = _add(terms[:half], terms[half:], acc)
    return terms[0]


def _chain(h, w, acc):
    terms = rounded(h * w, acc)
    total = terms[0]
    for term in terms[1:]:
        total = _add(total, term, acc)
    return total


def _fused(h, w, acc):
    return _fuse_rest(rounded(h[0] * w[0], acc), h[1:], w[1:], acc)


def _fused_from_1(h, w, acc):
    if len(h) == 1:
        return _fused(h, w, acc)
    order = [1, 0, *range(2, len(h))]
    return _fused(h[order], w[order], acc)


def _fuse_rest(total, h, w, acc):
    for state, weight in zip(h, w, strict=True):
        total = _add(state * weight, total, acc)  # the product is exact in float64
    return total


ORDERS: dict[str, Callable] = {'halves': _halves, 'chain': _chain, 'fused': _fused, 'fused_from_1': _fused_from_1}


def reduce(hidden: np.ndarray, weights: np.ndarray, storage: str, fp32_acc: bool, order: str) -> np.ndarray:
    """One order's result.

    Args:
        hidden: float64 [M, K, N] of storage values. weights: float64 [M, K] of float32 or storage values.
        storage: 'bf16', 'fp16' or 'fp32'. order: a key of `ORDERS`.

    Returns:
        Unsigned bits [M, N] of the storage format.
    """
    acc = accumulation(storage, fp32_acc)
    missing = (1 << (hidden.shape[1] - 1).bit_length()) - hidden.shape[1]
    h = np.pad(hidden, ((0, 0), (0, missing), (0, 0))).transpose(1, 0, 2)
    w = np.pad(rounded(weights, acc), ((0, 0), (0, missing))).T[:, :, None]
    with np.errstate(invalid='ignore', over='ignore'):
        return to_bits(ORDERS[order](h, w, acc), storage)


def exact_sum(hidden: np.ndarray, weights: np.ndarray, storage: str, fp32_acc: bool) -> tuple[np.ndarray, np.ndarray]:
    """(sum of the terms, sum of their magnitudes), float64 [M, N], with the weights as the accumulation has them.

    Products of 24-bit factors are exact in float64; the sum's own error is below 2^-48 of the magnitudes, which is
    2^-24 of the bound, and `error_bound` allows for it.
    """
    w = rounded(weights, accumulation(storage, fp32_acc))[:, :, None]
    with np.errstate(invalid='ignore'):
        terms = hidden * w
        return terms.sum(axis=1), np.abs(terms).sum(axis=1)


def error_bound(total: np.ndarray, magnitude: np.ndarray, experts: int, storage: str, fp32_acc: bool) -> np.ndarray:
    """How far any order, fused or not, may lie from the exact sum, float64 [M, N].

    With unit roundoff u of the accumulation and n = K roundings on the way of a term (one product, K - 1 sums), the
    error is at most gamma_n * sum |term_k|, gamma_n = n u / (1 - n u) (Higham, Accuracy and Stability, 4.2), plus half
    a smallest subnormal per product. Storing rounds once more where the accumulation is wider than the storage.
    """
    acc = accumulation(storage, fp32_acc)
    digits, smallest = PRECISION[acc]
    n = experts * 2.0**-digits
    on_the_way = (n / (1 - n) + 2.0**-48) * magnitude + experts * 2.0**(smallest - 1)
    if acc == storage:
        return on_the_way
    digits, smallest = PRECISION[storage]
    return on_the_way + 2.0**-digits * (np.abs(total) + on_the_way) + 2.0**(smallest - 1)
