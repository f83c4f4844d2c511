"""The contracts of the activation's variants: faults planted into lmdeploy's own kernels are found."""
import numpy as np
import pytest

from harness.evidence.verdicts import Reason
from harness.oracles import swiglu
from harness.oracles.storage import FORMATS
from suites.selftest.lmdeploy_copy import judge_copy
from suites.selftest.planted import NOTICED, assert_holds, assert_noticed

EP, MASKED, V4 = 'silu_and_mul_moe_ep', 'silu_and_mul_masked_post_quant_fwd', 'v4_swiglu_and_quant_fp8'
MODULES = {EP: 'activation', MASKED: 'activation', V4: 'moe.v4_swiglu_quant'}
SINCE = {EP: 'def _silu_and_mul_moe_ep_kernel', MASKED: 'def _silu_and_mul_moe_ep_kernel', V4: ''}
UNROUNDED = ('        gate = gate.to(gateup_ptr.dtype.element_ty)\n', '        up = up.to(tl.float32)\n')
TWICE = ('act = gate / (1 + fast_expf(-gate)) * up',
         'act = (gate / (1 + fast_expf(-gate))).to(gateup_ptr.dtype.element_ty).to(tl.float32) * up')
LOOP = 'tl.range(m_id_start, mask_m, m_id_stride)'
# Name -> (operator, text and replacement, the case that notices, its reason).
FAULTS = {
    'one_row_too_many': (EP, (LOOP, LOOP.replace('mask_m', 'tl.minimum(mask_m + 1, M)')), 'bf16-mixed-given',
                         Reason.OUTSIDE_WRITE),
    'last_row_missing': (EP, (LOOP, LOOP.replace('mask_m', 'mask_m - 1')), 'bf16-mixed', None),
    'mask_ignored': (EP, (LOOP, LOOP.replace('mask_m', 'M')), 'bf16-no_row_counts-given', Reason.OUTSIDE_WRITE),
    'count_not_bounded': (EP, ('mask_m = tl.minimum(mask_m, M)', 'mask_m = mask_m'), 'bf16-mask_past_the_rows-given',
                          None),
    'first_experts_mask': (EP, ('mask_ptr + e_id * stride_m', 'mask_ptr'), 'bf16-mixed-given', None),
    'row_pitch_from_shape': (EP, ('m_id_start * stride_gum', 'm_id_start * 2 * N'), 'bf16-pitched', None),
    'expert_pitch_from_shape': (EP, ('e_id * stride_gue', 'e_id * M * 2 * N'), 'bf16-pitched', None),
    'one_rounding': (EP, UNROUNDED, 'bf16-every_gate', Reason.BYTES),
    'one_rounding_quantised': (MASKED, UNROUNDED, 'bf16-every_gate-e4m3fn', Reason.BYTES),
    'rows_not_quantised': (MASKED, (LOOP, LOOP.replace('mask_m', 'mask_m - 1')), 'bf16-mixed-e4m3fn', None),
    'two_roundings': (V4, TWICE, 'bf16-e4m3fn-ue8m0-not_the_default', None),
    'limit_ignored': (V4, ('if SWIGLU_LIMIT > 0:', 'if SWIGLU_LIMIT < 0:'), 'bf16-e4m3fn-none-limit', Reason.BYTES),
    'gate_cut_below': (V4, ('gate = tl.minimum(gate, SWIGLU_LIMIT)',
                            'gate = tl.minimum(tl.maximum(gate, -SWIGLU_LIMIT), SWIGLU_LIMIT)'),
                       'bf16-e4m3fn-none-limit', None),
    'up_cut_above_only': (V4, ('tl.minimum(tl.maximum(up, -SWIGLU_LIMIT), SWIGLU_LIMIT)',
                               'tl.minimum(up, SWIGLU_LIMIT)'), 'bf16-e4m3fn-none-limit', Reason.BYTES),
    'floor_larger': (V4, ('tl.maximum(amax, 1e-6)', 'tl.maximum(amax, 1e-4)'), 'bf16-e4m3fn-none-zero_groups',
                     Reason.BYTES),
    'scale_of_first_group': (V4, ('(K + offs_n) * stride_gun', '(K + offs_n % GROUP_SIZE) * stride_gun'),
                             'bf16-e4m3fn-none-shape_7x3', Reason.BYTES),
    'not_rounded_to_storage': (V4, ('act = act.to(gateup_ptr.dtype.element_ty).to(tl.float32)', 'act = act'),
                               'bf16-e4m3fn-none-not_the_default', Reason.BYTES),
}


def judge(operator: str, changes: list, case_id: str, tmp_path, stock, device):
    return judge_copy(tmp_path, MODULES[operator], changes, operator, case_id, stock, device, SINCE[operator])


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, tmp_path, stock, device):
    operator, change, case_id, reason = FAULTS[name]
    assert_noticed(lambda: judge(operator, [change], case_id, tmp_path, stock, device),
                   (reason, ) if reason else (*NOTICED, Reason.BETTER))


@pytest.mark.parametrize(('operator', 'case_id'), sorted({(fault[0], fault[2]) for fault in FAULTS.values()}))
def test_unchanged_copy_passes_where_faults_are_noticed(operator, case_id, tmp_path, stock, device):
    assert_holds(judge(operator, [], case_id, tmp_path, stock, device))


@pytest.mark.parametrize('storage', FORMATS)
def test_one_rounding_is_an_interval_of_neighbours_that_holds_float32(storage):
    generator = np.random.default_rng(3)
    gates, ups = (FORMATS[storage].decode(FORMATS[storage].round(generator.normal(size=4096) * 4)) for _ in range(2))
    least, most = swiglu.one_rounding(gates, ups, 0.0, FORMATS[storage])
    g, u = gates.astype(np.float32), ups.astype(np.float32)
    float32 = FORMATS[storage].decode(FORMATS[storage].round((g / (1 + np.exp(-g)) * u).astype(np.float64)))
    assert (np.abs(least) <= np.abs(float32)).all()
    assert (np.abs(float32) <= np.abs(most)).all()
    steps = np.abs(FORMATS[storage].round(most.astype(np.float64)).astype(int)
                   - FORMATS[storage].round(least.astype(np.float64)).astype(int))
    assert steps.max() <= 1
    assert (steps == 1).mean() < 0.01


def test_one_rounding_keeps_signs_of_zeros():
    least, most = swiglu.one_rounding(np.array([0.0, -0.0, 0.0, -95.0, -95.0]), np.array([1.0, 1.0, -1.0, 2.0, -2.0]),
                                      0.0, FORMATS['bf16'])
    assert np.signbit(least).tolist() == np.signbit(most).tolist() == [False, True, True, True, False]
    assert least.tolist() == [0, 0, 0, 0, 0]
