"""The cpu lane's conversions, through real kernels, against ml_dtypes and against a search for the nearest code."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from suites.selftest.interpreted import cast

ALL_16 = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
NUMPY = {'fp16': np.dtype(np.float16), 'bf16': np.dtype(ml_dtypes.bfloat16), 'fp32': np.dtype(np.float32),
         'fp8e4nv': np.dtype(ml_dtypes.float8_e4m3fn), 'fp8e5': np.dtype(ml_dtypes.float8_e5m2)}
LARGEST = {'fp8e4nv': 448.0, 'fp8e5': 57344.0}
TO_FP8 = [(source, target) for source in ('fp16', 'bf16') for target in LARGEST]


def finite(bits: np.ndarray, source: str) -> tuple[np.ndarray, np.ndarray]:
    """The patterns that are finite numbers, and their values in float64."""
    with np.errstate(invalid='ignore'):
        values = bits.view(NUMPY[source]).astype(np.float64)
    keep = np.isfinite(values)
    return bits[keep], values[keep]


def nearest_codes(values: np.ndarray, target: str) -> np.ndarray:
    """The code of the nearest representable magnitude, an even code on a tie, the largest past the range."""
    magnitudes = np.arange(128, dtype=np.uint8).view(NUMPY[target]).astype(np.float64)
    magnitudes = magnitudes[magnitudes <= LARGEST[target]]
    size = np.abs(values)
    above = np.searchsorted(magnitudes, size).clip(1, len(magnitudes) - 1)
    below = above - 1
    distance = (size - magnitudes[below]) - (magnitudes[above] - size)   # exact: few bits, close exponents
    chosen = np.where((distance > 0) | ((distance == 0) & (above % 2 == 0)), above, below)
    return chosen.astype(np.uint8) | np.where(np.signbit(values), 0x80, 0).astype(np.uint8)


def assert_same_bits(found: np.ndarray, expected: np.ndarray, inputs: np.ndarray) -> None:
    wrong = np.flatnonzero(found != expected)
    assert wrong.size == 0, (f'{wrong.size} of {found.size} differ, first: input {inputs[wrong[0]]:#x}, '
                             f'expected {expected[wrong[0]]:#x}, found {found[wrong[0]]:#x}')


@pytest.mark.parametrize(('source', 'target'), TO_FP8)
def test_every_finite_16_bit_value_becomes_the_fp8_code_of_ml_dtypes(source, target):
    bits, values = finite(ALL_16, source)
    with np.errstate(over='ignore', invalid='ignore'):
        expected = bits.view(NUMPY[source]).astype(NUMPY[target]).view(np.uint8)
    largest_code = np.array([LARGEST[target]], np.float32).astype(NUMPY[target]).view(np.uint8)[0]
    # ml_dtypes gives NaN or infinity past the range, the GPU saturates
    past = np.abs(values) > LARGEST[target]
    expected = np.where(past, largest_code | np.where(values < 0, 0x80, 0).astype(np.uint8), expected)
    assert_same_bits(cast(bits, source, target), expected, bits)


@pytest.mark.parametrize(('source', 'target'), TO_FP8)
def test_every_finite_16_bit_value_becomes_the_nearest_fp8_code(source, target):
    bits, values = finite(ALL_16, source)
    assert_same_bits(cast(bits, source, target), nearest_codes(values, target), bits)


@pytest.mark.parametrize('target', sorted(LARGEST))
def test_fp32_ties_and_their_neighbours_become_the_nearest_fp8_code(target):
    codes = np.arange(128, dtype=np.uint8).view(NUMPY[target]).astype(np.float32)
    codes = codes[codes <= LARGEST[target]]
    edges = np.concatenate([codes, (codes[:-1] + codes[1:]) / 2]).astype(np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))])
    edges = np.concatenate([edges, -edges])
    found = cast(edges.view(np.uint32), 'fp32', target)
    assert_same_bits(found, nearest_codes(edges.astype(np.float64), target), edges.view(np.uint32))


@pytest.mark.parametrize('low_half', [0x7fff, 0x8000, 0x8001, 0x0000, 0x0001, 0xffff], ids=hex)
def test_fp32_becomes_bf16_by_rounding_to_nearest_even_for_every_upper_half(low_half):
    bits = (ALL_16.astype(np.uint32) << 16) | np.uint32(low_half)
    keep = ~np.isnan(bits.view(np.float32))
    bits = bits[keep]
    with np.errstate(over='ignore'):
        expected = bits.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    # the same by integers: add half an ulp, and one more where the kept part is odd
    assert_same_bits(((bits.astype(np.uint64) + 0x7fff + (bits >> 16 & 1)) >> 16).astype(np.uint16), expected, bits)
    assert_same_bits(cast(bits, 'fp32', 'bf16'), expected, bits)


def test_fp32_becomes_fp16_by_rounding_to_nearest_even():
    halves, values = finite(ALL_16[:1 << 15], 'fp16')
    middles = (values[:-1] + values[1:]) / 2
    edges = np.concatenate([values, middles]).astype(np.float32)
    edges = np.concatenate([edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf)),
                            np.float32([65519.0, 65520.0, 65536.0])])
    bits = np.concatenate([edges, -edges]).view(np.uint32)
    with np.errstate(over='ignore'):
        expected = bits.view(np.float32).astype(np.float16).view(np.uint16)
    assert_same_bits(cast(bits, 'fp32', 'fp16'), expected, bits)


@pytest.mark.parametrize('source', sorted(LARGEST))
@pytest.mark.parametrize('target', ['fp32', 'fp16', 'bf16'])
def test_widening_of_every_finite_fp8_code_is_exact(source, target):
    bits, values = finite(np.arange(256, dtype=np.uint16).astype(np.uint8), source)
    found = cast(bits, source, target).view(NUMPY[target]).astype(np.float64)
    assert np.array_equal(found, values)
    assert np.array_equal(np.signbit(found), np.signbit(values))


@pytest.mark.parametrize('source', ['fp16', 'bf16'])
def test_widening_of_every_finite_16_bit_value_is_exact(source):
    bits, values = finite(ALL_16, source)
    found = cast(bits, source, 'fp32').view(np.float32).astype(np.float64)
    assert np.array_equal(found, values)
    assert np.array_equal(np.signbit(found), np.signbit(values))
