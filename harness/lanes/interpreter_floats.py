"""Floating-point formats in numpy: conversions as an sm90 GPU rounds them. No triton here.

Storage is Triton's interpreter's: bf16 as uint16 and FP8 as uint8 bit patterns, fp16/fp32/fp64 as numpy's own types.
Formats go by Triton's names: 'fp8e4nv' (e4m3fn), 'fp8e5' (e5m2), 'bf16', 'fp16', 'fp32', 'fp64'.
"""
from __future__ import annotations

import ml_dtypes
import numpy as np

NUMPY_TYPES = {
    'fp8e4nv': np.dtype(ml_dtypes.float8_e4m3fn),
    'fp8e5': np.dtype(ml_dtypes.float8_e5m2),
    'bf16': np.dtype(ml_dtypes.bfloat16),
    'fp16': np.dtype(np.float16),
    'fp32': np.dtype(np.float32),
    'fp64': np.dtype(np.float64),
}
# One NaN comes out of the GPU's arithmetic, whatever went in (PTX ISA: 0x7fffffff and its shorter forms).
CANONICAL_NAN = {'fp8e4nv': 0x7f, 'fp8e5': 0x7f, 'bf16': 0x7fff, 'fp16': 0x7fff, 'fp32': 0x7fffffff}
WIDENED_BF16_NAN = CANONICAL_NAN['bf16'] << 16
# cvt.*.satfinite, the only conversion to FP8 that Triton emits on sm_90: past the range, and infinity, give these
SATURATION = {'fp8e4nv': 448.0, 'fp8e5': 57344.0}


def storage(name: str) -> np.dtype:
    """The numpy type in which the interpreter keeps a format."""
    kind = NUMPY_TYPES[name]
    return kind if kind.kind == 'f' and kind.isbuiltin == 1 else np.dtype(f'uint{kind.itemsize * 8}')


def bits(data: np.ndarray) -> np.ndarray:
    """The bit patterns of `data`, as unsigned integers of its width (a view where the layout allows it)."""
    return np.ascontiguousarray(data).view(f'uint{data.dtype.itemsize * 8}').reshape(np.shape(data))


def decode(data: np.ndarray, name: str) -> np.ndarray:
    """Stored values of format `name` as real numbers: fp32 for narrower formats, fp64 stays. Exact."""
    if name == 'bf16':   # by hand: exact, several times faster than ml_dtypes, and NaN payloads survive as on the GPU
        return (bits(data).astype(np.uint32) << np.uint32(16)).view(np.float32)
    kind = NUMPY_TYPES[name]
    values = data if data.dtype == kind else bits(data).view(kind)
    return values if kind.itemsize > 2 else values.astype(np.float32)


def encode(values: np.ndarray, name: str) -> np.ndarray:
    """Real numbers (fp32 or fp64) rounded once, to nearest-even, into storage of format `name`; NaN is canonical."""
    if values.dtype == np.float64 and name != 'fp64':
        values = to_fp32_odd(values) if name != 'fp32' else values
    kind = NUMPY_TYPES[name]
    limit = SATURATION.get(name)
    if limit is not None:
        values = np.clip(values, np.float32(-limit), np.float32(limit))
    stored = values.astype(kind)
    stored = stored.view(storage(name)) if stored.dtype != storage(name) else stored
    return canonical_nan(stored, np.isnan(values), name)


def encode_toward_zero(values: np.ndarray, name: str) -> np.ndarray:
    """Like `encode`, rounded toward zero (`fp_downcast_rounding='rtz'`)."""
    nearest = encode(values, name)
    with np.errstate(invalid='ignore'):
        too_large = np.abs(decode(nearest, name).astype(np.float64)) > np.abs(values.astype(np.float64))
    # magnitudes are ordered like their bit patterns, so one pattern less is the next value toward zero
    return (bits(nearest) - too_large.astype(bits(nearest).dtype)).view(nearest.dtype)


def canonical_nan(stored: np.ndarray, is_nan: np.ndarray, name: str, pattern: int | None = None) -> np.ndarray:
    """`stored` with `pattern` (by default the GPU's NaN of format `name`) wherever `is_nan`; fp64 is left alone."""
    if name not in CANONICAL_NAN or not is_nan.any():
        return stored
    pattern = CANONICAL_NAN[name] if pattern is None else pattern
    replacement = np.array(pattern, dtype=f'uint{stored.dtype.itemsize * 8}').view(stored.dtype)
    return np.where(is_nan, replacement, stored)


def convert(data: np.ndarray, source: str, target: str, toward_zero: bool = False) -> np.ndarray:
    """Stored values of one format into another, rounded once. Two conversions are no arithmetic on the GPU, but shifts:

    bf16 -> fp32 keeps a NaN's sign and payload, and Triton's e5m2 -> bf16 takes the codes of infinity and NaN for the
    numbers 65536, 81920, 98304 and 114688 that they would be without an exponent reserved for them.
    """
    values = decode(data, source)
    if (source, target) == ('bf16', 'fp32'):
        return values
    if (source, target) == ('fp8e5', 'bf16'):
        code = bits(data).astype(np.int32)
        number = np.ldexp(np.float32(4) + (code & 3), 14).astype(np.float32)
        values = np.where(code & 0x7f >= 0x7c, np.where(code & 0x80, -number, number), values)
    return encode_toward_zero(values, target) if toward_zero else encode(values, target)


def to_fp32_odd(values: np.ndarray) -> np.ndarray:
    """fp64 to fp32, rounded to odd: a later rounding to at most 22 bits then gives what one rounding would have given.

    Plain rounding twice is wrong where the first result falls on a tie of the second: 1 + 2^-8 + 2^-30 on its way to
    bf16, for instance. Source: Boldo and Melquiond, "When double rounding is odd" (2005).
    """
    with np.errstate(invalid='ignore', over='ignore'):
        nearest = values.astype(np.float32)
        excess = nearest.astype(np.float64) - values
    pattern = nearest.view(np.uint32)
    inexact = (excess != 0) & ~np.isnan(excess)
    even = inexact & (pattern & 1 == 0)
    # the exact value lies between an even pattern and an odd one: take the odd one
    away = (excess < 0) ^ np.signbit(values)
    step = np.where(even, np.where(away, 1, -1), 0).astype(np.int64)
    return (pattern.astype(np.int64) + step).astype(np.uint32).view(np.float32)
