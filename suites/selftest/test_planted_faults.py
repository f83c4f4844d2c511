"""A contract that cannot fail judges nothing: faults planted in a copy of the fused kernel, each named by the suite.

Every fault is one that a real project shipped. The whole catalogue of the operator is not run here, only the cases that
are expected to notice; the instrument that counts over everything is another one.
"""
from pathlib import Path

import pytest

from harness.contracts import contract
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane

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


@pytest.fixture(scope='module')
def judge_copy(tmp_path_factory, stock, device):
    """(replacements, case id) -> judge a rewritten copy of the fused kernel on that case."""
    from harness.subjects.module import load_module

    def judge(name: str, changes: list[tuple[str, str]], case_id: str) -> EvidenceLog:
        text = SOURCE.read_text()
        for old, new in changes:
            assert text.count(old) == 1, f'{name}: expected {old!r} once in {SOURCE.name}, found {text.count(old)}'
            text = text.replace(old, new)
        path = tmp_path_factory.mktemp(name) / 'copy.py'
        path.write_text(text)
        operator = contract('silu_and_mul_quant')
        (case,) = [case for case in operator.CASES if case.id == case_id]
        log = EvidenceLog()
        operator.judge(case, load_module(path), Setting(Lane.CPU, device, stock, 'the command'), log)
        return log

    return judge


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, judge_copy):
    old, new, case_id = FAULTS[name]
    with pytest.raises(ContractBroken) as broken:
        judge_copy(name, [(old, new)], case_id)
    assert broken.value.reason in (Reason.BYTES, Reason.OUTSIDE_WRITE, Reason.NONDETERMINISTIC)
    assert 'reproduce: the command' in str(broken.value)


@pytest.mark.parametrize('case_id', sorted({case for _, _, case in FAULTS.values()}))
def test_unchanged_copy_passes_where_faults_are_noticed(case_id, judge_copy):
    log = judge_copy('unchanged', [], case_id)
    assert log.records
    assert all(record.differing == 0 for record in log.records)
