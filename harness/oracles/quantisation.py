"""FP8 group quantisation, step by step in float32, for one row-major matrix of 16-bit values.

    amax   = max(max |x| over the group, 1e-6)
    scale  = amax * float32(1 / F)                      (None)     F: the format's largest value
           = 2^ceil(log2(amax * float32(1 / F)))        (ue8m0)
    code   = round(clamp(x * r, -F, F)),  r = F / amax  (None)  or  1 / scale  (ue8m0)

Every step is one IEEE operation, except r: on the GPU it is `div.full.f32`, whose error the PTX manual bounds by 2 ulp.
NaN is what CUDA's plain maximum, product and saturating conversion make of it: lost in the maximum, F as a code
whatever its sign (observed on an H200 with Triton 3.6.0; the product gives every NaN one pattern).
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.oracles.fp8 import FP8_FORMATS

AMAX_FLOOR = np.float32(1e-6)
DIVISION_ULPS = 2


@dataclass(frozen=True)
class Quantised:
    """codes uint8 [M, N] and scales float32 [M, G]."""

    codes: np.ndarray
    scales: np.ndarray


def group_maxima(x: np.ndarray, group: int) -> np.ndarray:
    """x float32 [M, N] -> the floored maximum magnitude of every group, float32 [M, N // group]; NaN is ignored."""
    # Not np.fmax: numpy's loses a maximum beside a signalling NaN.
    magnitudes = np.where(np.isnan(x), np.float32(0), np.abs(x)).reshape(x.shape[0], -1, group)
    return np.maximum(magnitudes.max(axis=2), AMAX_FLOOR)


def power_of_two_at_least(x: np.ndarray) -> np.ndarray:
    """float32 > 0 -> smallest power of two that is not smaller, float32; infinity stays."""
    fraction, exponent = np.frexp(x)
    with np.errstate(over='ignore'):
        rounded = np.ldexp(np.float32(1), np.where(fraction == 0.5, exponent - 1, exponent)).astype(np.float32)
    return np.where(np.isinf(x), np.float32(np.inf), rounded)


def quantise(x: np.ndarray, group: int, codes: str, scale_fmt: str | None, reciprocal_ulps: int = 0) -> Quantised:
    """Quantise x float32 [M, N] (holding 16-bit values) to 'e4m3fn' or 'e5m2'.

    Args:
        reciprocal_ulps: move r by so many float32 neighbours, to follow an approximate division.
    """
    fp8 = FP8_FORMATS[codes]
    largest = np.float32(fp8.maximum)
    amax = group_maxima(x, group)
    with np.errstate(over='ignore', invalid='ignore', divide='ignore', under='ignore'):
        scales = amax * np.float32(1 / fp8.maximum)
        if scale_fmt == 'ue8m0':
            scales = power_of_two_at_least(scales)
            reciprocal = np.float32(1) / scales
        else:
            reciprocal = largest / amax
        reciprocal = (reciprocal.view(np.int32) + np.int32(reciprocal_ulps)).view(np.float32)
        scaled = x.reshape(*amax.shape, group) * reciprocal[..., None]
    clamped = np.clip(np.where(np.isnan(scaled), largest, scaled), -largest, largest)
    return Quantised(fp8.encode(clamped).reshape(x.shape), scales)


@dataclass(frozen=True)
class Conformance:
    """How codes relate to the definition above when r may be off by a few ulp.

    Attributes:
        unexplained: bool [M, G]: groups for which no single r within the allowed ulps gives these codes.
        ulps: int [M, G]: smallest |ulps| that explains the group (allowed + 1 where none does).
    """

    unexplained: np.ndarray
    ulps: np.ndarray


def explain_codes(x: np.ndarray, observed: np.ndarray, group: int, codes: str, scale_fmt: str | None,
                  allowed_ulps: int) -> Conformance:
    """For every group, the smallest error of r that explains all of its observed codes.

    Args:
        x: float32 [M, N]. observed: uint8 codes [M, N].
        allowed_ulps: 0 where division is correctly rounded, `DIVISION_ULPS` on the GPU.
    """
    shape = (x.shape[0], x.shape[1] // group)
    values, found = x.reshape(-1, group), observed.reshape(-1, group)
    ulps = np.full(len(values), allowed_ulps + 1)
    for offset in sorted(range(-allowed_ulps, allowed_ulps + 1), key=abs):
        pending = np.flatnonzero(ulps > allowed_ulps)
        if not pending.size:
            break
        candidate = quantise(values[pending], group, codes, scale_fmt, offset).codes
        ulps[pending[(candidate == found[pending]).all(axis=1)]] = abs(offset)
    ulps = ulps.reshape(shape)
    return Conformance(unexplained=ulps > allowed_ulps, ulps=ulps)
