"""The catalogues: ids that stay, inputs that rebuild from the id, and the value patterns aim where they say."""
import numpy as np
import pytest
import torch

from harness.contracts import catalogue, deviations, values
from harness.contracts.bad_input import is_bad
from harness.contracts.case import Case
from harness.contracts.formats import EVERY_FORMAT
from harness.contracts.silu_and_mul_quant import GATE_OF_ONE
from harness.evidence.bits import to_numpy_bits
from harness.oracles import quantisation, swiglu
from harness.oracles.fp8 import E4M3FN, E5M2
from harness.oracles.storage import BF16, FORMATS, FP16
from harness.subjects.protocol import OPERATORS

CPU = torch.device('cpu')
RECORDED_RAW = ['0x6967', '0xc50d', '0xf6e6', '0x9bb7']
EVERY_CASE = [case for operator in OPERATORS for case in catalogue(operator)]


@pytest.mark.parametrize('operator', OPERATORS)
def test_ids_are_unique_and_both_lanes_have_cases(operator):
    cases = catalogue(operator)
    assert len({case.id for case in cases}) == len(cases)
    for lane in ('cpu', 'sm90'):
        assert any(lane in case.lanes for case in cases)


def bits_of(built) -> list[np.ndarray]:
    """The bits of every tensor that a case builds: one, or the fields of a dataclass, or a field's named tensors."""
    if isinstance(built, torch.Tensor):
        return [to_numpy_bits(built)]
    if isinstance(built, np.ndarray):
        return [built]
    if built is None or isinstance(built, (str, int, float, tuple)):
        return []    # a case's own figures, which its id spells out
    parts = built.values() if isinstance(built, dict) else vars(built).values()
    return [bits for part in parts for bits in bits_of(part)]


def test_inputs_rebuild_to_the_same_bits():
    for case in [case for case in EVERY_CASE if 'cpu' in case.lanes][::17]:
        if case.operator in ('refusals', 'call_signatures') or is_bad(case):    # calls and folders, no tensors alone
            continue
        first, again = bits_of(case.build(CPU)), bits_of(case.build(CPU))
        assert first
        assert all(np.array_equal(*pair) for pair in zip(first, again, strict=True))


def test_raw_bits_are_the_same_on_every_machine():
    assert values.raw('seed', 4).tolist() == values.raw('seed', 8)[:4].tolist()
    assert [hex(v) for v in values.raw('bitgate', 4)] == RECORDED_RAW


@pytest.mark.parametrize(('field', 'value'), [('id', 'has space'), ('why', ' '), ('lanes', frozenset({'gpu'})),
                                              ('lanes', frozenset())])
def test_a_case_without_reason_or_lane_is_refused(field, value):
    good = {'operator': 'quant_fp8', 'id': 'x', 'why': 'because', 'build': lambda d: None}
    with pytest.raises(ValueError, match=f'Case.{field}'):
        Case(**{**good, field: value})


@pytest.mark.parametrize(('storage', 'gate'), GATE_OF_ONE.items())
def test_the_gate_of_one_has_silu_one_with_room_on_both_sides(storage, gate):
    fmt = FORMATS[storage]
    assert fmt.decode(fmt.round(np.array([gate])))[0] == gate
    step = 2.0**-fmt.mantissa
    assert -step / 4 < swiglu.silu(np.array([gate]))[0] - 1 < step / 2
    assert abs(swiglu.silu(np.array([gate]))[0] - 1) < step / 5 or storage == 'bf16'


class TestPatterns:

    @pytest.mark.parametrize('fp8', [E4M3FN, E5M2], ids=lambda f: f.name)
    def test_code_edges_hold_every_code_and_every_midpoint(self, fp8):
        x = BF16.decode(values.code_edges(BF16, fp8)).reshape(-1)
        midpoints = (fp8.values[:-1] + fp8.values[1:]) / 2
        assert np.isin(np.concatenate([fp8.values, midpoints, -midpoints]), x).all()

    @pytest.mark.parametrize('storage', [BF16, FP16], ids=lambda f: f.name)
    @pytest.mark.parametrize('fp8', [E4M3FN, E5M2], ids=lambda f: f.name)
    def test_powers_of_two_hold_each_exact_power_with_both_neighbours(self, storage, fp8):
        x = storage.decode(values.powers_of_two(storage, fp8)).astype(np.float32)
        ratio = np.unique(quantisation.group_maxima(x, 128).astype(np.float64) / fp8.maximum)
        exact = ratio[np.frexp(ratio)[0] == 0.5]
        assert len(exact) >= (20 if storage is FP16 else 140)
        assert len(ratio) >= 3 * len(exact) - 4

    def test_max_positions_put_the_maximum_at_every_position_of_every_slot(self):
        x = np.abs(BF16.decode(values.max_positions(BF16, E4M3FN))).reshape(128, 4, 128)
        assert np.array_equal(x.argmax(axis=2), np.repeat(np.arange(128)[:, None], 4, axis=1))

    def test_floor_lies_on_both_sides(self):
        x = BF16.decode(values.floor(BF16, E4M3FN)).reshape(-1, 128)
        largest = np.abs(x).max(axis=1)
        assert (largest < 1e-6).any()
        assert (largest > 1e-6).any()
        assert np.abs(largest / 1e-6 - 1).min() < 2.0**-8

    def test_every_value_is_every_finite_pattern(self):
        bits = np.unique(values.every_value(FP16, E4M3FN))
        assert len(bits) == 2 * 0x7C00

    @pytest.mark.parametrize('pattern', [values.nan, values.nan_positions])
    def test_nan_of_both_signs(self, pattern):
        x = pattern(BF16, E4M3FN)
        negative = (x[BF16.is_nan(x)] & 0x8000) != 0
        assert negative.any()
        assert not negative.all()


def test_every_format_is_there_once():
    assert len({fmt.id for fmt in EVERY_FORMAT}) == 8


@pytest.mark.parametrize('change', [{'finding': 'seven'}, {'why': ''}])
def test_a_deviation_without_number_or_reason_is_refused(change):
    good = {'finding': 'F9', 'operator': 'quant_fp8', 'case': '-x', 'raises': ValueError, 'why': 'because'}
    with pytest.raises(ValueError, match='Deviation'):
        deviations.Deviation(**{**good, **change})


def test_every_deviation_concerns_a_case_that_exists():
    for deviation in deviations.STOCK_DEVIATIONS:
        assert any(case.id.endswith(deviation.case) for case in catalogue(deviation.operator))
