"""grouped_gemm: a block-scaled FP8 GEMM for every expert that has routes, scheduled per expert (dense).

For expert e of [expert_offset, expert_offset + local experts) and each of its routes, out[row] = a[source] @ b[e].T
with a scale per row and K group and per column group and K group, plus bias[e]; see harness/oracles/grouped_gemm.py.

Promise (bytes): where every partial sum is exact, every bit of the rounded sum; where scales are powers of two, every
bit of a running accumulator's sum, as the matrix instruction that was found in the machine code adds it (wgmma,
mma.sync, or the interpreter).
Another order or accumulator within the bound has MOVED.
Promise (bound): everywhere else, and there too, the bound of the matrix instruction that was found in the machine code.
Rows of experts that are not here keep every bit, and nothing is read from an expert without routes.
Comparator: the float64 oracle, and the instruction bit by bit.
"""
from __future__ import annotations

import torch

from harness.contracts import bad_calls, bad_input
from harness.contracts import grouped_gemm_judging as judging
from harness.contracts.case import Case
from harness.contracts.grouped_gemm_cases import MORE_ROWS, OFF_BLOCK, ROWS_OF_TWO_BLOCKS, make_cases
from harness.contracts.grouped_gemm_problem import Built, Tile
from harness.contracts.setting import Setting
from harness.evidence.log import EvidenceLog
from harness.evidence.trial import Tensors
from harness.subjects.protocol import Subject

OPERATOR = 'grouped_gemm'
TILES = (Tile(16), Tile(32), Tile(64), Tile(128))
CASES = make_cases(OPERATOR, TILES, (Tile(16), Tile(64)), [
    (Tile(16), OFF_BLOCK | ROWS_OF_TWO_BLOCKS),
    (Tile(64), OFF_BLOCK | MORE_ROWS)]) + bad_input.cases(OPERATOR, bad_calls.GROUPED_GEMM)


def call(subject: Subject, tensors: Tensors, built: Built, out: torch.Tensor) -> None:
    """One launch into `out`, as the layer would make it."""
    gate_up = built.problem.gate_up
    subject.grouped_gemm(
        tensors['a'], tensors['a_scale'], tensors['b'], tensors['b_scale'], out, tensors['sorted_idx'],
        tensors['exp_start'], tensors['exp_end'], bias=tensors.get('bias'), top_k=built.top_k if gate_up else 1,
        num_tokens=built.routes // built.top_k, expert_offset=built.problem.offset, reindex_a=gate_up,
        reindex_c=not gate_up, block_m=built.tile.block_m, block_n=built.tile.block_n)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return
    judging.judge(case, subject, setting, log, call)
