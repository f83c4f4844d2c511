"""The oracles against ml_dtypes, numpy and exact arithmetic: an oracle nobody checks is another implementation."""
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from harness.evidence.bits import from_numpy_bits, storage_numpy
from harness.oracles import quantisation, swiglu
from harness.oracles.fp8 import E4M3FN, E5M2
from harness.oracles.storage import BF16, FP16, steps_apart

EVERY_BITS = np.arange(65536, dtype=np.uint32).astype(np.uint16)
ML_DTYPES = {'e4m3fn': ml_dtypes.float8_e4m3fn, 'e5m2': ml_dtypes.float8_e5m2}


@pytest.mark.parametrize('storage', [BF16, FP16], ids=lambda f: f.name)
class TestStorage:

    def test_rounding_a_value_of_the_format_is_the_identity(self, storage):
        numbers = EVERY_BITS[~storage.is_nan(EVERY_BITS)]
        assert np.array_equal(storage.round(storage.decode(numbers)), numbers)

    def test_ties_go_to_even_and_neighbours_of_ties_to_their_side(self, storage):
        finite = np.arange(storage.infinity - 1, dtype=np.uint16)
        low, high = storage.decode(finite), storage.decode(finite + 1)
        middle = (low + high) / 2
        even = np.where(finite % 2 == 0, finite, finite + 1)
        assert np.array_equal(storage.round(middle), even)
        assert np.array_equal(storage.round(np.nextafter(middle, -np.inf)), finite)
        assert np.array_equal(storage.round(np.nextafter(middle, np.inf)), finite + 1)

    def test_past_the_range_is_infinity_and_nan_is_canonical(self, storage):
        edge = storage.largest + (storage.largest - storage.decode(np.array([storage.infinity - 2]))[0]) / 2
        found = storage.round(np.array([edge, np.nextafter(edge, 0), -np.inf, np.nan]))
        assert found.tolist() == [storage.infinity, storage.infinity - 1, storage.infinity | 0x8000, 0x7FFF]

    def test_product_is_rounded_once(self, storage):
        generator = np.random.default_rng(1)
        left, right = (EVERY_BITS[generator.integers(0, 65536, 20000)] for _ in range(2))
        found = storage.decode(swiglu.product(left, right, storage))
        for a, b, c in zip(storage.decode(left)[:4000], storage.decode(right)[:4000], found[:4000], strict=True):
            if not (np.isfinite(a) and np.isfinite(b) and np.isfinite(c)):
                continue
            exact = Fraction(a) * Fraction(b)
            bits = storage.round(np.array([c]))[0]
            around = storage.decode(np.array([bits - 1 if bits & 0x7FFF else bits, bits + 1], np.uint16))
            nearest = min(abs(exact - Fraction(n)) for n in around if np.isfinite(n))
            assert abs(exact - Fraction(float(c))) <= nearest


@pytest.mark.parametrize('fp8', [E4M3FN, E5M2], ids=lambda f: f.name)
class TestFp8:

    def test_decode_agrees_with_ml_dtypes(self, fp8):
        codes = np.arange(256, dtype=np.uint8)
        theirs = codes.view(ML_DTYPES[fp8.name]).astype(np.float64)
        ours = fp8.decode(codes)
        finite = np.isfinite(theirs)
        assert np.array_equal(ours[finite], theirs[finite])
        assert np.isnan(ours[~finite]).all()

    def test_encode_agrees_with_ml_dtypes_within_the_range(self, fp8):
        values = np.concatenate([BF16.decode(EVERY_BITS), FP16.decode(EVERY_BITS)])
        values = values[np.abs(values) <= fp8.maximum]
        theirs = values.astype(np.float32).astype(ML_DTYPES[fp8.name]).view(np.uint8)
        assert np.array_equal(fp8.encode(values), theirs)

    def test_encode_saturates(self, fp8):
        assert fp8.encode(np.array([fp8.maximum * 2, np.inf, -np.inf])).tolist() == [
            fp8.last_finite, fp8.last_finite, fp8.last_finite | 0x80]


class TestQuantisation:

    def test_scale_is_one_multiplication_and_floored(self):
        x = np.zeros((1, 256), np.float32)
        x[0, 5] = 448.0
        scales = quantisation.quantise(x, 128, 'e4m3fn', None).scales
        assert scales[0, 0] == np.float32(448) * np.float32(1 / 448)
        assert scales[0, 1] == np.float32(1e-6) * np.float32(1 / 448)

    @pytest.mark.parametrize(('value', 'power'), [(1.0, 1.0), (1.0000001, 2.0), (0.75, 1.0), (0.5, 0.5), (3.0, 4.0)])
    def test_power_of_two_is_the_next_one_and_exact_ones_stay(self, value, power):
        assert quantisation.power_of_two_at_least(np.float32(value)) == power

    def test_nan_is_lost_in_the_maximum_and_saturates_as_a_code(self):
        x = np.full((1, 128), 2.0, np.float32)
        x[0, 3], x[0, 4] = np.nan, -np.nan
        found = quantisation.quantise(x, 128, 'e4m3fn', 'ue8m0')
        assert found.scales[0, 0] == 2.0**-7
        assert found.codes[0, 3] == found.codes[0, 4] == 0x7E

    def test_a_signalling_nan_hides_no_maximum(self):
        for place in range(128):
            bits = np.full((1, 128), 0x3F800000, np.uint32)
            bits[0, (place + 1) % 128], bits[0, place] = 0x40A00000, 0x7F800001
            assert quantisation.group_maxima(bits.view(np.float32), 128)[0, 0] == 5.0

    def test_codes_of_another_reciprocal_are_explained_and_other_codes_are_not(self):
        bits = np.random.default_rng(2).integers(0x3F00, 0x4000, (64, 128)).astype(np.uint16)
        x = BF16.decode(bits).astype(np.float32)
        off_by_one = quantisation.quantise(x, 128, 'e4m3fn', None, reciprocal_ulps=1).codes
        exact = quantisation.quantise(x, 128, 'e4m3fn', None).codes
        found = quantisation.explain_codes(x, off_by_one, 128, 'e4m3fn', None, allowed_ulps=2)
        assert found.ulps.max() == int((off_by_one != exact).any())
        wrong = exact.copy()
        wrong[0, 0] ^= 1
        found = quantisation.explain_codes(x, wrong, 128, 'e4m3fn', None, allowed_ulps=2)
        assert np.flatnonzero(found.unexplained[:, 0]).tolist() == [0]


@pytest.mark.parametrize(('dtype', 'bits'), [(torch.bfloat16, 0xFFC1), (torch.float16, 0xFE01),
                                             (torch.bfloat16, 0xFF81), (torch.float16, 0xFC01)])
def test_values_for_the_oracles_keep_the_sign_of_nan(dtype, bits):
    x = from_numpy_bits(np.array([[bits, bits & 0x7FFF]], np.uint16), dtype, torch.device('cpu'))
    found = storage_numpy(x)
    assert np.isnan(found).all()
    assert np.signbit(found).tolist() == [[True, False]]


@pytest.mark.parametrize('storage', [BF16, FP16], ids=lambda f: f.name)
class TestSilu:

    def test_float64_rounded_once_and_float32_are_right(self, storage):
        gates = storage.decode(EVERY_BITS)
        with np.errstate(over='ignore', invalid='ignore'):
            narrow = gates.astype(np.float32)
            in_float32 = narrow / (1 + np.exp(-narrow))
        assert not swiglu.wrong_silus(EVERY_BITS, storage.round(in_float32.astype(np.float64)), storage).any()

    @pytest.mark.parametrize('fault', ['toward_zero', 'biased', 'minus_five', 'subnormals_flushed', 'nan_lost', 'ends'])
    def test_a_table_that_is_no_silu_is_noticed(self, storage, fault):
        gates = storage.decode(EVERY_BITS)
        with np.errstate(over='ignore', invalid='ignore'):
            truth = gates / (1 + np.exp(-gates))
        table = storage.round(truth)
        if fault == 'toward_zero':
            away = np.abs(storage.decode(table)) > np.abs(truth)
            table = np.where(away, table - 1, table)
        elif fault == 'biased':
            table = storage.round(truth * (1 + 2.0**-storage.mantissa / 3))
        elif fault == 'minus_five':
            table = np.where(gates < -88.7, storage.round(np.array(-5.0)), table)
        elif fault == 'subnormals_flushed':
            table = np.where((table & 0x7FFF) < 1 << storage.mantissa, table & 0x8000, table)
        elif fault == 'nan_lost':
            table = np.where(storage.is_nan(table), np.uint16(0), table)
        else:
            table = np.where(np.isinf(gates), np.uint16(storage.infinity - 1), table)
        assert swiglu.wrong_silus(EVERY_BITS, table.astype(np.uint16), storage).any()


def test_steps_apart_crosses_zero_once():
    assert steps_apart(np.array([0x8000]), np.array([0]))[0] == 0
    assert steps_apart(np.array([0x8001]), np.array([1]))[0] == 2


def test_silu_of_the_ends():
    assert np.isinf(swiglu.silu(np.array([np.inf])))[0]
    assert swiglu.silu(np.array([-np.inf]))[0] == 0
    assert np.isnan(swiglu.silu(np.array([np.nan])))[0]


@pytest.mark.parametrize('storage', [BF16, FP16], ids=lambda storage: storage.name)
def test_no_error_turns_the_sign_of_silu_over(storage):
    gates = storage.round(np.array([-300.0, -30000.0, -0.0, 0.0, 5.0, -5.0]))
    right = storage.round(swiglu.silu(storage.decode(gates)))
    assert not swiglu.wrong_silus(gates, right, storage).any()
    assert swiglu.wrong_silus(gates, right ^ np.uint16(0x8000), storage).all()
