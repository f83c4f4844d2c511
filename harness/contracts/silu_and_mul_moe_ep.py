"""silu_and_mul_moe_ep: gate_up [E, M, 2N] and mask [E] -> silu(gate) * up [E, M, N] of the first mask[e] rows.

Promise (bytes): rows that count hold silu_and_mul's bytes, two roundings: the IEEE product of stock's silu table with
up. Rows that do not count keep what a given output held; nothing of them is read.
Comparator: stock's silu_and_mul of the same install, and the oracle.
"""
from __future__ import annotations

import torch

from harness.contracts import masked_rows
from harness.contracts import silu_and_mul as activation
from harness.contracts.case import Case
from harness.contracts.masked_rows import OTHERS, WHOLE_GROUPS
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import from_numpy_bits, to_numpy_bits
from harness.evidence.compare import compare_bytes, compare_layout
from harness.evidence.log import EvidenceLog
from harness.evidence.verdicts import Reason
from harness.oracles import swiglu
from harness.oracles.storage import FORMATS
from harness.subjects.protocol import Subject

OPERATOR = 'silu_and_mul_moe_ep'
SENTINEL = -77.5
CASES = tuple(rows.case(OPERATOR, storage, '-given' * given, given=given)
              for storage in FORMATS for rows in (*WHOLE_GROUPS, *OTHERS) for given in (False, True))


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    tensors = case.build(setting.device)
    experts, rows, columns = *tensors['gate_up'].shape[:2], tensors['gate_up'].size(2) // 2
    what = f'{subject.name} {OPERATOR}'

    def operator(inputs):
        out = None
        if case.options['given']:
            out = torch.empty(experts, rows, columns, dtype=inputs['gate_up'].dtype, device=inputs['gate_up'].device)
            out.fill_(SENTINEL)
        found = subject.silu_and_mul_moe_ep(inputs['gate_up'], inputs['mask'], out)
        if out is None:  # what stands in rows that do not count is nobody's: the same in every call, then
            found.view(-1, columns).masked_fill_(masked_rows.past_the_mask(inputs)[:, None], SENTINEL)
        return {'activated': (found if out is None else out).view(-1, columns)}

    context = setting.context(inputs_at=masked_rows.inputs_at(tensors, 1))
    with setting.few_sms(case.options):
        found = trial.run(log, what, operator, tensors, context, masked_rows.changed(tensors))['activated']
    compare_layout(log, 'layout', 'activated', found, (experts * rows, columns), tensors['gate_up'].dtype, context)
    past = masked_rows.past_the_mask(tensors)
    kept = found[past]
    compare_bytes(log, 'activated: rows that do not count against what was there', 'activated', kept,
                  torch.full_like(kept, SENTINEL), context, Reason.OUTSIDE_WRITE)
    judge_rows(log, what, found, tensors, past, case.options['storage'], setting, context)


def judge_rows(log, what, found, tensors, past, storage: str, setting: Setting, context) -> None:
    """Rows that count against stock's silu_and_mul, and against the IEEE product of its silu with up."""
    flat = tensors['gate_up'].reshape(-1, tensors['gate_up'].size(2))
    columns, fmt = flat.size(1) // 2, FORMATS[storage]
    counted = torch.where(past[:, None], torch.zeros_like(flat), flat)
    bits = to_numpy_bits(counted)
    table = activation.trusted_table(setting.stock, storage, setting.device)
    product = from_numpy_bits(swiglu.product(table[bits[:, :columns]], bits[:, columns:], fmt), flat.dtype, flat.device)
    for words, expected in (('stock silu_and_mul', setting.stock.silu_and_mul(counted)), ('the oracle', product)):
        compare_bytes(log, f'activated: {what} against {words}', 'activated', found,
                      torch.where(past[:, None], found, expected), context)
