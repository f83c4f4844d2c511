"""activate_and_quant: the layer's entry, fused for SwiGLU, unfused for a custom activation.

Promise (bytes): for any activation, codes and scales equal stock's quant_fp8(activation(gate_up)). A custom activation
that ran through the fused SwiGLU kernel could not give these bytes: ReLU differs from silu in almost every element.
"""
from __future__ import annotations

import torch

from harness.contracts import quant_fp8 as quantiser
from harness.contracts import values
from harness.contracts.case import Case
from harness.contracts.formats import COLUMN_MAJOR, EVERY_FORMAT, TORCH_STORAGE
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import from_numpy_bits
from harness.evidence.compare import compare_bytes
from harness.evidence.log import EvidenceLog
from harness.subjects.protocol import Subject

OPERATOR = 'activate_and_quant'
GROUP = values.GROUP


def relu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [M, 2N] -> max(gate, 0) * up [M, N]: exact, so that no vector width of the host shows in the bytes."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate.clamp(min=0) * up


def _case(fmt, name: str, why: str, custom: bool) -> Case:
    def build(device):
        bits = values.noise(fmt.storage_format, f'activate/{name}', (6, 2 * 3 * GROUP), scale=2.0)
        return from_numpy_bits(bits, TORCH_STORAGE[fmt.storage], device)

    return Case(OPERATOR, f'{fmt.id}-{name}', why, build, options={**fmt.options(), 'custom': custom})


CASES = tuple(
    _case(fmt, name, why, custom) for fmt in EVERY_FORMAT + COLUMN_MAJOR
    for name, why, custom in (('custom', 'a custom activation keeps the unfused path', True),
                              ('swiglu', 'no custom activation: the fused path', False)))


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    gate_up = case.build(setting.device)
    arguments = quantiser.call_arguments(case.options)
    activation = relu_and_mul if case.options['custom'] else None

    def operator(x):
        codes, scales = subject.activate_and_quant(x, activation, GROUP, **arguments)
        return {'codes': codes, 'scales': scales}

    context = setting.context(GROUP)
    found = trial.run_by_row(log, f'{subject.name} activate_and_quant', operator, gate_up, context)
    activated = (activation or setting.stock.silu_and_mul)(gate_up)
    codes, scales = setting.stock.quant_fp8(activated, GROUP, **arguments)
    name = 'relu_and_mul' if activation else 'silu_and_mul'
    what = f'{subject.name} against stock quant_fp8({name}(x))'
    compare_bytes(log, f'scales: {what}', 'scales', found['scales'], scales, context)
    compare_bytes(log, f'codes: {what}', 'codes', found['codes'], codes, context)
    quantiser.judge_layout(log, found, activated, arguments, context)
