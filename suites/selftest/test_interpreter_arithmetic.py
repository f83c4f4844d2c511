"""The cpu lane's bf16 arithmetic, and every fma, through real kernels, against ml_dtypes and exact fractions."""
from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from suites.selftest.interpreted import apply

BF16 = np.dtype(ml_dtypes.bfloat16)
NUMPY = {'bf16': BF16, 'fp16': np.dtype(np.float16), 'fp32': np.dtype(np.float32)}
# stored fraction bits, exponent of the smallest normal number, largest finite number
SHAPE = {'bf16': (7, -126, float.fromhex('0x1.fep127')), 'fp16': (10, -14, 65504.0),
         'fp32': (23, -126, float(np.finfo(np.float32).max))}
SPECIAL = np.array([0x0000, 0x8000, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x3f80, 0xbf80, 0x3f81, 0x3fff, 0x4000,
                    0x43e0, 0xc3e0, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7f81, 0xff81, 0x7fc0, 0xffc0, 0x7fff, 0xffff],
                   dtype=np.uint16)


@pytest.fixture(scope='module')
def pairs() -> tuple[np.ndarray, np.ndarray]:
    """bf16 bits: every pair of special values, 2^16 random pairs, 2^15 pairs of near exponents (sums that cancel)."""
    random = np.random.default_rng(20261130)
    a, b = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
    wild = random.integers(0, 1 << 16, (2, 1 << 16), dtype=np.uint16)
    near = random.integers(0x3c00, 0x4400, (2, 1 << 15), dtype=np.uint16)
    near |= random.integers(0, 2, near.shape, dtype=np.uint16) << 15
    return np.concatenate([a, wild[0], near[0]]), np.concatenate([b, wild[1], near[1]])


def canonical(bits: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The GPU's arithmetic gives one NaN, all bits set but the sign."""
    return np.where(np.isnan(values), np.iinfo(bits.dtype).max >> 1, bits).astype(bits.dtype)


def real(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def assert_same_bits(found: np.ndarray, expected: np.ndarray, *inputs: np.ndarray) -> None:
    wrong = np.flatnonzero(found != expected)
    shown = wrong.size and [f'{operand[wrong[0]]:#x}' for operand in inputs]
    assert wrong.size == 0, (f'{wrong.size} of {found.size} differ, first: inputs {shown}, '
                             f'expected {expected[wrong[0]]:#x}, found {found[wrong[0]]:#x}')


@pytest.mark.parametrize(('op', 'function'), [('add', np.add), ('sub', np.subtract)])
def test_bf16_sums_are_those_of_ml_dtypes(pairs, op, function):
    a, b = pairs
    with np.errstate(all='ignore'):
        expected = function(a.view(BF16), b.view(BF16))
        assert_same_bits(apply('binary', op, [a, b], 'bf16', 'bf16'),
                         canonical(expected.view(np.uint16), expected.astype(np.float32)), a, b)


def test_bf16_products_are_those_of_ml_dtypes_and_rounded_once(pairs):
    a, b = pairs
    found = apply('binary', 'mul', [a, b], 'bf16', 'bf16')
    with np.errstate(all='ignore'):
        product = real(a).astype(np.float64) * real(b).astype(np.float64)
        by_ml_dtypes = a.view(BF16) * b.view(BF16)
    assert_same_bits(found, canonical(by_ml_dtypes.view(np.uint16), by_ml_dtypes.astype(np.float32)), a, b)
    # below 2^-126 the step is 2^-133 throughout: rounding the exact product to a multiple of it is all there is to do
    small = np.abs(product) < 2.0**-126
    steps = np.abs(np.rint(np.ldexp(product[small], 133))).astype(np.uint16)
    assert steps.any()
    assert_same_bits(found[small], steps | np.where(np.signbit(product[small]), 0x8000, 0).astype(np.uint16),
                     a[small], b[small])


def test_bf16_quotients_are_fp32_quotients(pairs):
    a, b = pairs
    with np.errstate(all='ignore'):
        expected = real(a) / real(b)
    found = apply('binary', 'div', [a, b], 'bf16', 'fp32')
    assert_same_bits(found, canonical(expected.view(np.uint32), expected), a, b)


@pytest.mark.parametrize(('op', 'pick'), [('maximum', max), ('minimum', min)])
def test_bf16_extrema_drop_nan_and_order_zeros(pairs, op, pick):
    a, b = pairs
    x, y = real(a), real(b)
    # order by value, then by sign, so that -0 < +0
    first = pick is max
    a_wins = np.where(x == y, np.signbit(x) != first, (x > y) == first)
    expected = np.where(np.isnan(x), y, np.where(np.isnan(y), x, np.where(a_wins, x, y))).view(np.uint32)
    expected = np.where(np.isnan(x) & np.isnan(y), np.uint32(0x7fff0000), expected)   # bf16's NaN, widened
    assert_same_bits(apply('binary', op, [a, b], 'bf16', 'fp32'), expected, a, b)


def test_bf16_comparisons_are_those_of_the_numbers(pairs):
    a, b = pairs
    x, y = real(a), real(b)
    expected = sum(weight * answer.astype(np.float32) for weight, answer in
                   ((1, x < y), (2, x <= y), (4, x > y), (8, x >= y), (16, x == y), (32, x != y)))
    assert_same_bits(apply('binary', 'compare', [a, b], 'bf16', 'fp32'), expected.view(np.uint32), a, b)


def test_bf16_where_takes_whole_bit_patterns(pairs):
    a, b = pairs
    assert_same_bits(apply('binary', 'where_gt', [a, b], 'bf16', 'bf16'), np.where(real(a) > real(b), a, b), a, b)


def test_bf16_absolute_and_negative_values():
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    assert_same_bits(apply('unary', 'abs', [every], 'bf16', 'bf16'), every & np.uint16(0x7fff), every)
    with np.errstate(invalid='ignore'):
        negated = np.float32(0) - real(every)   # Triton negates by subtracting from +0, which keeps +0
    expected = canonical((negated.view(np.uint32) >> 16).astype(np.uint16), negated)
    assert_same_bits(apply('unary', 'neg', [every], 'bf16', 'bf16'), expected, every)


@pytest.mark.parametrize('name', sorted(NUMPY))
def test_fma_is_rounded_once(name):
    mantissa, smallest_normal, _ = SHAPE[name]
    kind = NUMPY[name]
    random = np.random.default_rng(7)
    storage = f'uint{kind.itemsize * 8}'
    bits = random.integers(0, 1 << kind.itemsize * 8, (3, 2000), dtype=storage)
    # hard ones: c a little off the product's own tie, so that a first rounding would move it onto the tie
    one, tiny = np.ones(2, kind).view(storage)[0], np.array([2.0**-(mantissa + 1)], kind).view(storage)[0]
    odd = one + random.integers(0, 1 << mantissa, 500).astype(storage)
    near = tiny + random.integers(-2, 3, 500).astype(storage)
    hard = np.stack([odd, np.full_like(odd, one), near])
    bits = np.concatenate([bits, hard, np.stack([odd, odd[::-1], near])], axis=1)
    with np.errstate(all='ignore'):
        values = bits.view(kind).astype(np.float64)
    bits, values = bits[:, np.isfinite(values).all(axis=0)], values[:, np.isfinite(values).all(axis=0)]
    expected = np.array([rounded(Fraction(a) * Fraction(b) + Fraction(c), a * b + c, name)
                         for a, b, c in values.T.tolist()], np.float64)
    with np.errstate(all='ignore'):
        expected_bits = expected.astype(kind).view(storage)
    assert_same_bits(apply('ternary', 'fma', list(np.ascontiguousarray(bits)), name, name), expected_bits, *bits)


def rounded(exact: Fraction, approximate: float, name: str) -> float:
    """`exact` rounded once to nearest-even into a format; `approximate` gives the sign of a zero."""
    mantissa, smallest_normal, largest = SHAPE[name]
    if exact == 0:
        return approximate
    exponent = max(exact.numerator.bit_length() - exact.denominator.bit_length() - 1, smallest_normal)
    while Fraction(2)**(exponent + 1) <= abs(exact):
        exponent += 1
    step = Fraction(2)**(exponent - mantissa)
    number = round(exact / step) * step   # Fraction rounds half to even
    if abs(number) > Fraction(largest):
        return float('inf') if exact > 0 else -float('inf')
    return float(number) if number else (-0.0 if exact < 0 else 0.0)


@pytest.mark.parametrize('keep_dims', [False, True])
@pytest.mark.parametrize('axis', [0, 1, None])
def test_bf16_reductions_along_each_axis(axis, keep_dims):
    from harness.lanes import interpreter_arithmetic as arithmetic
    values = np.random.default_rng(3).integers(-8, 9, (8, 16)).astype(np.float32)   # sums are exact in bf16
    bits = values.astype(BF16).view(np.uint16)
    for found, expected in (
        (arithmetic.reduce_sum(bits, 'bf16', axis, keep_dims), values.sum(axis=axis, keepdims=keep_dims)),
        (arithmetic.reduce_extremum(bits, 'bf16', True, axis, keep_dims), values.max(axis=axis, keepdims=keep_dims)),
        (arithmetic.reduce_extremum(bits, 'bf16', False, axis, keep_dims), values.min(axis=axis, keepdims=keep_dims)),
    ):
        assert found.shape == np.shape(expected)
        assert np.array_equal(real(found), expected)
