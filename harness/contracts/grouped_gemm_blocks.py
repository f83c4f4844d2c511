"""grouped_gemm_blocks: the GEMM of grouped_gemm, scheduled per block of routes (compact).

Promise: that of grouped_gemm. Promise (bytes): the output of stock's dense schedule, wherever both ran the same matrix
instruction (read from the machine code), which in one K order adds the same products in the same steps.
Comparator: as for grouped_gemm, and stock's grouped_gemm of the same install.
"""
from __future__ import annotations

import torch

from harness.contracts import bad_calls, bad_input, grouped_gemm
from harness.contracts import grouped_gemm_judging as judging
from harness.contracts.case import Case
from harness.contracts.grouped_gemm_cases import MORE_ROWS, OFF_BLOCK, make_cases
from harness.contracts.grouped_gemm_problem import Built, Tile
from harness.contracts.setting import Setting
from harness.evidence.compare import Context, compare_bytes
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.trial import Tensors
from harness.machine_code.executed import matrix_instructions
from harness.oracles.grouped_gemm import MMA, Instruction
from harness.subjects.protocol import Subject

OPERATOR = 'grouped_gemm_blocks'
TILES = (Tile(16, 64), Tile(16), Tile(32), Tile(64), Tile(128), Tile(16, transposed=True), Tile(32, transposed=True))
CASES = make_cases(OPERATOR, TILES, (Tile(16, 64), Tile(64), Tile(16, transposed=True)), [
    (Tile(16, 64), OFF_BLOCK), (Tile(64), MORE_ROWS)]) + bad_input.cases(OPERATOR, bad_calls.GROUPED_GEMM_BLOCKS)


def call(subject: Subject, tensors: Tensors, built: Built, out: torch.Tensor) -> None:
    """One launch into `out`, as the layer would make it."""
    gate_up, tile = built.problem.gate_up, built.tile
    subject.grouped_gemm_blocks(
        tensors['a'], tensors['a_scale'], tensors['b'], tensors['b_scale'], out, tensors['sorted_idx'],
        tensors['exp_end'], tensors['block_end'], tensors['block_expert_ids'], tensors['block_offsets'],
        bias=tensors.get('bias'), top_k=built.top_k if gate_up else 1, expert_offset=built.problem.offset,
        reindex_a=gate_up, reindex_c=not gate_up, block_m=tile.block_m, block_n=tile.block_n,
        transpose_mma=tile.transposed)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return

    def equal_to_dense(built: Built, found: torch.Tensor, instruction: Instruction, context: Context) -> None:
        dense = built.problem.build(Tile(16 if instruction is MMA else 128), setting.device)
        what = f'{subject.name} {OPERATOR} against stock grouped_gemm, {dense.tile.id}, {instruction.name}'
        with matrix_instructions() as used:
            expected = judging.outcome(grouped_gemm.call, setting.stock, dense, dense.tensors)
        ran = judging.instruction_of(used, setting.lane)
        if ran != instruction:
            log.add(Record('observed', f'{what}: not compared, that ran {ran.name}', 1))
            return
        compare_bytes(log, f'out: {what}', 'out', found, expected, context)

    # Stock's dense schedule leaves rows out where an expert has more than there are tokens.
    dense_is_right = not case.id.endswith(tuple(MORE_ROWS))
    judging.judge(case, subject, setting, log, call, *([equal_to_dense] if dense_is_right else []))
