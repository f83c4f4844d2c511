"""The grouped GEMM's contracts: a right implementation in torch passes, and every fault planted into it is found."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from harness.contracts import grouped_gemm, grouped_gemm_blocks
from harness.contracts.grouped_gemm_problem import Tile
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane
from harness.oracles import grouped_gemm as oracle
from harness.oracles.grouped_gemm import FLOAT32, MMA, WGMMA

CPU = torch.device('cpu')
CASES = {case.id: case for case in grouped_gemm.CASES if 'cpu' in case.lanes}
BLOCK_CASES = {case.id: case for case in grouped_gemm_blocks.CASES if 'cpu' in case.lanes}


def gemm(a, a_scale, b, b_scale, bias, fault: str = '') -> torch.Tensor:
    """One expert in float32: a running accumulator, as the contract has it, or with a fault."""
    group_k, group_n = a.size(1) // b_scale.size(1), b.size(0) // b_scale.size(0)
    a_scale = a_scale.repeat_interleave(b_scale.size(1) // a_scale.size(1), 1)
    total = torch.zeros(a.size(0), b.size(0), dtype=torch.float64 if fault == 'float64' else torch.float32)
    groups = range(a_scale.size(1) - (fault == 'last_group_dropped'))
    for g in groups:
        part = slice(g * group_k, (g + 1) * group_k)
        source = 0 if fault == 'first_scale_for_all' else g
        column_scale = b_scale[:, source].roll(1 if fault == 'columns_swap_scales' else 0).repeat_interleave(group_n)
        scale = a_scale[:, source, None] * column_scale
        if g:
            scale = scale.clamp(min=1e-12)
        product = (a[:, part].double() @ b[:, part].double().T).float()
        if fault == 'bf16_partial':
            product = product.bfloat16().float()
        if fault in ('promoted', 'float64') or g == 0:
            total = total + product * scale
        else:
            total = (total / scale + product) * scale
    if bias is not None and fault != 'no_bias':
        total = total + bias.float()
    return total


@dataclass
class InTorch:
    """The dense schedule in plain torch, with a fault."""

    fault: str = ''
    name: str = 'torch'
    called: list = field(default_factory=list)

    def grouped_gemm(self, a, a_scale, b, b_scale, out, sorted_idx, exp_start, exp_end, bias, top_k, num_tokens,
                     expert_offset, reindex_a, reindex_c, block_m, block_n):
        fault = self.fault
        for e in range(b.size(0)):
            start, end = int(exp_start[e + expert_offset]), int(exp_end[e + expert_offset])
            if fault == 'offset_ignored':
                start, end = int(exp_start[e]), int(exp_end[e])
            if fault == 'last_row_dropped':
                end -= (end - start) > 1
            positions = torch.arange(start, end)
            routes = sorted_idx[positions].long()
            rows = routes // top_k if reindex_a and fault != 'token_is_route' else positions
            weights = (e + 1) % b.size(0) if fault == 'next_expert' else e
            values = gemm(a.double()[rows], a_scale[rows], b.double()[weights], b_scale[weights],
                          None if bias is None else bias[weights], fault)
            if len(rows) == 0 and fault != 'idle_expert_read':
                continue
            if fault == 'idle_expert_read':
                values = values + 0 * b.double()[1, :, 0].float()
            if fault == 'truncated':
                values = (values.view(torch.int32) & ~0xFFFF).view(torch.float32)
            out[routes if reindex_c and fault != 'stands_by_position' else positions] = values.to(out.dtype)
        if fault == 'clears_output':
            owned = torch.zeros(len(out), dtype=torch.bool)
            owned[int(exp_start[expert_offset]):int(exp_end[expert_offset + b.size(0) - 1])] = True
            out[~owned] = 0

    def grouped_gemm_blocks(self, a, a_scale, b, b_scale, out, sorted_idx, exp_end, block_end, block_expert_ids,
                            block_offsets, bias, top_k, expert_offset, reindex_a, reindex_c, block_m, block_n,
                            transpose_mma):
        fault = self.fault
        for block in range(int(block_end[-1]) - (fault == 'last_block_dropped')):
            e, start = int(block_expert_ids[block]), int(block_offsets[block])
            end = min(start + block_m, int(exp_end[e + expert_offset]))
            positions = torch.arange(start, end)
            routes = sorted_idx[positions].long()
            rows = routes // top_k if reindex_a else positions
            out[routes if reindex_c else positions] = gemm(
                a.double()[rows], a_scale[rows], b.double()[e], b_scale[e], None if bias is None else bias[e],
                fault).to(out.dtype)


def judge(contract, case, subject, stock=None) -> EvidenceLog:
    log = EvidenceLog()
    contract.judge(case, subject, Setting(Lane.CPU, CPU, stock or InTorch(), 'again'), log)
    return log


SMALL = [case for case in CASES.values() if case.id.startswith(('m64', 'm16'))]


@pytest.mark.parametrize('case', SMALL, ids=lambda case: case.id)
def test_a_right_dense_schedule_passes(case):
    kinds = {record.kind for record in judge(grouped_gemm, case, InTorch()).records}
    assert {'guard', 'layout'} <= kinds


@pytest.mark.parametrize('case_id', ['m128n128-edges', 'm128n128-slice_last', 'm128n128-bits_every_code',
                                     'm16n128t-bias-bf16', 'm16n128t-nan_codes', 'm64n128-more_rows_than_tokens'])
def test_a_right_compact_schedule_passes(case_id):
    judge(grouped_gemm_blocks, BLOCK_CASES[case_id], InTorch())


FAULTS = {
    'last_group_dropped': ('m64n128-edges', 'BYTES'),
    'first_scale_for_all': ('m64n128-edges', 'BYTES'),
    'columns_swap_scales': ('m64n128-gate_up-fp32', 'BOUND'),
    'bf16_partial': ('m64n128-gate_up-fp32', 'BOUND'),
    'truncated': ('m64n128-gate_up-fp32', 'BOUND'),
    'offset_ignored': ('m64n128-slice_middle', None),
    'last_row_dropped': ('m64n128-edges', 'BYTES'),
    'token_is_route': ('m64n128-gate_up-fp32', None),
    'next_expert': ('m64n128-down-bf16', None),
    'idle_expert_read': ('m64n128-edges', 'BYTES'),
    'stands_by_position': ('m64n128-descending-down', 'BYTES'),
    'clears_output': ('m64n128-slice_last', 'OUTSIDE_WRITE'),
    'no_bias': ('m64n128-bias-exact', 'BYTES'),
}


@pytest.mark.parametrize('fault', FAULTS)
def test_a_fault_is_found(fault):
    case_id, reason = FAULTS[fault]
    with pytest.raises((ContractBroken, IndexError)) as caught:
        judge(grouped_gemm, CASES[case_id], InTorch(fault))
    if reason is not None:
        assert caught.value.reason is Reason[reason]


def test_another_accumulator_within_the_bound_has_moved():
    with pytest.raises(ContractBroken) as caught:
        judge(grouped_gemm, CASES['m64n128-bits_coherent'], InTorch('float64'))
    assert caught.value.reason.outcome is Outcome.MOVED
    judge(grouped_gemm, CASES['m64n128-apart'], InTorch('float64'))


def test_a_compact_schedule_that_differs_from_the_dense_one_is_found():
    with pytest.raises(ContractBroken, match='against stock grouped_gemm') as caught:
        judge(grouped_gemm_blocks, BLOCK_CASES['m64n128-apart'], InTorch('promoted'))
    assert caught.value.reason is Reason.BYTES
    with pytest.raises(ContractBroken) as caught:
        judge(grouped_gemm_blocks, BLOCK_CASES['m64n128-edges'], InTorch('last_block_dropped'))
    assert caught.value.reason is Reason.BYTES


def test_a_bound_that_coherent_terms_do_not_approach_is_no_bound(monkeypatch):
    original = oracle.error_bound
    monkeypatch.setattr(oracle, 'error_bound', lambda *arguments: 50 * original(*arguments))
    with pytest.raises(ContractBroken, match='too wide to judge by'):
        judge(grouped_gemm, CASES['m64n128-coherent'], InTorch())


EXACT = [case_id for case_id in CASES if case_id.endswith(('slice_last', 'bias-exact', 'one_token', 'one_expert'))]
EXACT.append('m16n128-edges')


@pytest.mark.parametrize('case_id', EXACT)
def test_exact_cases_are_exact_in_any_instruction(case_id):
    built = CASES[case_id].build(CPU)
    for expert in built.active():
        rows, _ = built.rows(expert)
        tensors = built.tensors
        operands = (tensors['a'].double()[rows], tensors['a_scale'].double()[rows], tensors['b'][expert].double(),
                    tensors['b_scale'][expert].double())
        for instruction in (WGMMA, MMA, FLOAT32):
            assert torch.equal(oracle.emulate(*operands, instruction, -6), oracle.exact(*operands))


def test_the_probe_tells_the_instructions_apart():
    built = CASES['m64n128-probe'].build(CPU)
    operands = (built.tensors['a'].double(), built.tensors['a_scale'].double(), built.tensors['b'][1].double(),
                built.tensors['b_scale'][1].double())
    wgmma, mma, float32 = (oracle.emulate(*operands, i, -6) for i in (WGMMA, MMA, FLOAT32))
    assert not torch.equal(wgmma, mma)
    assert not torch.equal(mma, float32)
    fewer = oracle.Instruction('wgmma', 32, 12, 13, 5)
    assert not torch.equal(wgmma, oracle.emulate(*operands, fewer, -6))
    shorter = oracle.Instruction('wgmma', 32, 13, 12, 5)
    assert not torch.equal(wgmma, oracle.emulate(*operands, shorter, -6))
    for bits in ((24, 23), (25, 22)):
        assert not torch.equal(mma, oracle.emulate(*operands, oracle.Instruction('mma', 16, *bits, 5, MMA.order), -6))


def test_what_nobody_may_read_is_nan_and_replays_activate_other_experts():
    built = CASES['m64n128-gate_up-fp32'].build(CPU)
    idle = [e for e in range(8) if e not in built.active()]
    assert idle
    assert built.tensors['b'][idle].isnan().all()
    assert built.tensors['b_scale'][idle].isnan().all()
    changed = built.problem.rerouted().build(Tile(64), CPU)
    assert len(changed.active()) > len(built.active())
    fewer = changed.problem.rerouted().build(Tile(64), CPU)
    assert len(fewer.active()) == 1
    for name, tensor in built.tensors.items():
        assert changed.tensors[name].shape == tensor.shape
        assert np.array_equal(changed.tensors[name].stride(), tensor.stride())
