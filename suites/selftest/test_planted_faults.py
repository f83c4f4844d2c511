"""A contract that cannot fail judges nothing: faults planted in a copy of the fused kernel, each named by the suite.

Every fault is one that a real project shipped. The whole catalogue of the operator is not run here, only the cases that
are expected to notice; the instrument that counts over everything is another one.
"""
from pathlib import Path

import pytest

from harness.evidence.log import EvidenceLog
from suites.selftest.planted import assert_holds, assert_noticed, judge_text, replaced

SOURCE = Path(__file__).parents[2] / 'harness/kernels/silu_and_mul_quant.py'
BF16 = 'bf16-e4m3fn-none-row'

# Name -> (text, its replacement, the case that notices).
FAULTS = {
    'one_rounding': ('(gate_fp32 / (1 + tl.exp(-gate_fp32))).to(gate.dtype)\n    activated = silu * up',
                     'gate_fp32 / (1 + tl.exp(-gate_fp32))\n    activated = (silu * up.to(tl.float32)).to(gate.dtype)',
                     f'{BF16}-alone_random'),
    'lower_floor': ('tl.constexpr(1e-6)', 'tl.constexpr(1e-8)', f'{BF16}-zero_groups'),
    'no_floor': ('tl.constexpr(1e-6)', 'tl.constexpr(0.0)', f'{BF16}-zero_groups'),
    'half_the_range': ('FP8_MAX=torch.finfo(dtype).max', 'FP8_MAX=torch.finfo(dtype).max / 2', f'{BF16}-format_edge'),
    'scale_rounded_down': ('+ has_fraction.to(tl.uint32)', '+ 0 * has_fraction.to(tl.uint32)',
                           'bf16-e4m3fn-ue8m0-row-powers_of_two'),
    'scale_always_up': ('+ has_fraction.to(tl.uint32)', '+ 1', 'bf16-e4m3fn-ue8m0-row-powers_of_two'),
    'maximum_of_half_a_group': ('tl.max(tl.abs(activated), axis=1)',
                                'tl.max(tl.where(tl.arange(0, GROUP)[None, :] < 64, tl.abs(activated), 0.0), axis=1)',
                                f'{BF16}-max_positions'),
    'sign_lost': ('silu * up\n', 'silu * tl.abs(up)\n', f'{BF16}-signed_zeros'),
    'gate_and_up_swapped': ('gate_fp32 = gate.to(tl.float32)', 'gate_fp32 = up.to(tl.float32)\n    up = gate',
                            f'{BF16}-ordinary'),
    'scales_transposed': ('row * stride_scales_row + group * stride_scales_group',
                          'group * stride_scales_row + row * stride_scales_group', f'{BF16}-shape_7x3'),
    'scale_pitch_from_shape': ('scales.stride(1),', 'scales.size(0) if trans_scale else scales.stride(1),',
                               'bf16-e4m3fn-none-col-shape_5x3'),
    'tail_unmasked': ('scale, mask=in_range)', 'scale)', f'{BF16}-shape_1x5'),
    'input_clobbered': ('    # Store.\n', '    tl.store(gate_ptrs, activated, mask=in_range[:, None])\n',
                        f'{BF16}-ordinary'),
    'row_pitch_from_shape': ('gate_up.stride(0),', 'gate_up.size(1),', f'{BF16}-pitched_rows'),
    'out_pitch_from_shape': ('out.stride(0),', 'out.size(1),', f'{BF16}-preallocated_by_row'),
    'scale_column_pitch_fixed': ('scales.stride(1),', '1,', f'{BF16}-preallocated_by_neither'),
    'out_ignored': ('dtype=dtype) if out is None else out', 'dtype=dtype)', f'{BF16}-preallocated_by_row'),
    'scales_ignored': ('trans_scale) if scales is None else scales', 'trans_scale)', f'{BF16}-preallocated_by_column'),
}


def judge_copy(folder: Path, changes: list[tuple[str, str]], case_id: str, stock, device) -> EvidenceLog:
    """Judge a rewritten copy of the fused kernel on one case."""
    return judge_text(folder, replaced(SOURCE.read_text(), changes), 'silu_and_mul_quant', case_id, stock, device)


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, tmp_path, stock, device):
    old, new, case_id = FAULTS[name]
    assert_noticed(lambda: judge_copy(tmp_path, [(old, new)], case_id, stock, device))


@pytest.mark.parametrize('case_id', sorted({case for _, _, case in FAULTS.values()}))
def test_unchanged_copy_passes_where_faults_are_noticed(case_id, tmp_path, stock, device):
    assert_holds(judge_copy(tmp_path, [], case_id, stock, device))
