"""An output of the weighted reduce past 2^31 elements, and states as far.

Should a row's offset be taken in 32 bits, memory 2^32 elements before its place is read and written: it belongs to the
case here, before the states and before what the subject allocates, so that a wrong kernel shows and breaks nothing.
"""
from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode

from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.setting import Setting
from harness.evidence.compare import compare_bytes
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.subjects.protocol import Subject

FAR = 'output_past_2_31'
ROWS, COLUMNS = 131080, 16384
_BEFORE = 2**31
_WEIGHT = 0.5


def case(operator: str) -> Case:
    return Case(operator, f'bf16-storageacc-{FAR}', 'states and output past 2^31 elements', _last_rows, SM90_ONLY,
                {'storage': 'bf16', 'fp32_acc': False, 'memory_gib': 32})


def _last_rows(device: torch.device) -> torch.Tensor:
    """What the last rows of the states hold, [8, COLUMNS]: those past 2^31 elements."""
    pattern = torch.arange(8 * COLUMNS, device=device) % 251 - 125
    return pattern.reshape(8, COLUMNS).to(torch.bfloat16)


class _Roomy(TorchFunctionMode):
    """Serves the output from the end of memory that is large enough for what comes before it, too."""

    def __init__(self, memory: torch.Tensor):
        super().__init__()
        self._memory = memory

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.new_empty and tuple(args[1]) == (ROWS, COLUMNS):
            return self._memory[_BEFORE:].view(ROWS, COLUMNS)
        return func(*args, **(kwargs or {}))


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge the far case. Raises ContractBroken."""
    last = case.build(setting.device)
    size = _BEFORE + ROWS * COLUMNS
    states, memory = (torch.zeros(size, dtype=torch.bfloat16, device=setting.device) for _ in range(2))
    hidden = states[_BEFORE:].view(ROWS, 1, COLUMNS)
    hidden[-8:, 0] = last
    weights = torch.full((ROWS, 1), _WEIGHT, device=setting.device)
    with _Roomy(memory):
        out = subject.moe_reduce(hidden, weights, False)
    torch.cuda.synchronize()
    found = out[-8:].clone()
    out[-8:] = 0
    stray = int(torch.count_nonzero(memory))
    log.add(Record('guard', 'everything but the last rows is zero', size, stray))
    if stray:
        raise ContractBroken(Reason.OUTSIDE_WRITE, f'{stray} elements were written outside the rows that hold states\n'
                             f'reproduce: {setting.reproduce}')
    compare_bytes(log, f'reduced: {subject.name}, the last rows of {ROWS} against half of their states', 'reduced',
                  found, last * _WEIGHT, setting.context())
