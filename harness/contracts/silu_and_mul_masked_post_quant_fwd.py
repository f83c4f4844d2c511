"""silu_and_mul_masked_post_quant_fwd: gate_up [E, M, 2N] and mask [E] -> codes [E, M, N] and scales [E, M, N / 128],
into buffers that the caller gives.

Promise (bytes): rows that count hold codes and scales of quant_fp8(silu_and_mul(x)), two roundings. What stands in rows
that do not count is not promised (0.18.0 quantises memory that nobody wrote, and stores it there): they are set to zero
before anything is compared, and how many bytes of them were written is recorded.
Comparator: stock's composition of the same install, and the oracle.
"""
from __future__ import annotations

import torch

from harness.contracts import masked_rows
from harness.contracts import quant_fp8 as quantiser
from harness.contracts import silu_and_mul as activation
from harness.contracts.case import Case
from harness.contracts.formats import TORCH_CODES
from harness.contracts.masked_rows import WHOLE_GROUPS
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import as_bits, to_numpy_bits
from harness.evidence.compare import compare_bytes
from harness.evidence.log import EvidenceLog, Record
from harness.oracles import swiglu
from harness.oracles.storage import FORMATS
from harness.subjects.protocol import Subject

OPERATOR = 'silu_and_mul_masked_post_quant_fwd'
GROUP = quantiser.GROUP
# Where only the formats are at stake, two inputs stand for all.
_TWO = tuple(rows for rows in WHOLE_GROUPS if rows.name in ('mixed', 'five_groups'))
CASES = tuple(rows.case(OPERATOR, storage, f'-{codes}', codes=codes, scale_fmt=None, column_major=False)
              for storage, codes, inputs in (('bf16', 'e4m3fn', WHOLE_GROUPS), ('fp16', 'e4m3fn', _TWO),
                                             ('bf16', 'e5m2', _TWO)) for rows in inputs)


def _call(subject: Subject, inputs: dict, codes: torch.dtype, fill: int) -> dict[str, torch.Tensor]:
    gate_up = inputs['gate_up']
    experts, rows, columns = *gate_up.shape[:2], gate_up.size(2) // 2
    out = torch.empty(experts, rows, columns, dtype=codes, device=gate_up.device)
    scales = torch.empty(experts, rows, columns // GROUP, dtype=torch.float32, device=gate_up.device)
    for tensor in (out, scales):
        as_bits(tensor).fill_(fill)
    subject.silu_and_mul_masked_post_quant_fwd(gate_up, out, scales, GROUP, inputs['mask'])
    return {'codes': out.view(-1, columns), 'scales': scales.view(-1, columns // GROUP)}


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    tensors, options = case.build(setting.device), case.options
    codes = TORCH_CODES[options['codes']]
    what = f'{subject.name} {OPERATOR}'

    def operator(inputs):
        found = _call(subject, inputs, codes, 0)
        past = masked_rows.past_the_mask(inputs)[:, None]
        return {name: _bits_filled(tensor, past) for name, tensor in found.items()}

    context = setting.context(GROUP, masked_rows.inputs_at(tensors, GROUP))
    past = masked_rows.past_the_mask(tensors)
    with setting.few_sms(options):
        found = trial.run(log, what, operator, tensors, context, masked_rows.changed(tensors))
        if past.any():
            written = as_bits(_call(subject, tensors, codes, 0x33)['codes'])[past]
            log.add(Record('observed', f'{what}: code bytes written in rows that do not count', written.numel(),
                           detail={'written': int((written != 0x33).sum())}))
    flat = tensors['gate_up'].reshape(-1, tensors['gate_up'].size(2))
    counted = torch.where(past[:, None], torch.zeros_like(flat), flat)
    expected = dict(zip(('codes', 'scales'), setting.stock.quant_fp8(
        setting.stock.silu_and_mul(counted), GROUP, **quantiser.call_arguments(options)), strict=True))
    for name in ('scales', 'codes'):
        compare_bytes(log, f'{name}: {what} against stock quant_fp8(silu_and_mul(x))', name, found[name],
                      _bits_filled(expected[name], past[:, None]), context)
    if not past.all():
        _judge_counted(log, {name: tensor[~past] for name, tensor in found.items()}, counted[~past], options, setting,
                       context)


def _bits_filled(tensor: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    as_bits(tensor).masked_fill_(past, 0)
    return tensor


def _judge_counted(log: EvidenceLog, found: dict, gate_up: torch.Tensor, options: dict, setting: Setting,
                   context) -> None:
    fmt, bits = FORMATS[options['storage']], to_numpy_bits(gate_up)
    table = activation.trusted_table(setting.stock, options['storage'], setting.device)
    columns = bits.shape[1] // 2
    product = swiglu.product(table[bits[:, :columns]], bits[:, columns:], fmt)
    quantiser.judge_against_oracle(log, found, fmt.decode(product).astype('float32'), options, setting, context)
