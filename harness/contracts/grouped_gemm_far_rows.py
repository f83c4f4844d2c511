"""Rows past 2^31 elements: the one route of a slice writes the last row of an output that is larger than that.

Should the row's offset be taken in 32 bits, the write goes to 2^32 elements before it: the memory there belongs to the
case, so that a wrong kernel shows, and breaks nothing else.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.grouped_gemm_problem import Problem, Tile
from harness.contracts.setting import Setting
from harness.evidence.compare import compare_bytes
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason

FAR_ROWS = 'far_rows'
ROWS, COLUMNS = 131080, 16384
_BEFORE = 2**31


def _ids() -> np.ndarray:
    ids = np.zeros((ROWS, 1), np.int64)
    ids[-1] = 1
    return ids


_PROBLEM = Problem(_ids, 2, 'down', 'exact', out='bf16', k=128, n=COLUMNS, local=1, offset=1)


def far_rows_case(operator: str, tile: Tile) -> Case:
    return Case(operator, f'{tile.id}-{FAR_ROWS}', 'an output past 2^31 elements, a route in its last row',
                lambda device: _PROBLEM.build(tile, device), SM90_ONLY, {'memory_gib': 24})


def judge(what: str, setting: Setting, log: EvidenceLog, run: Callable[[torch.Tensor], None],
          expected: torch.Tensor) -> None:
    """Judge `run`, which fills the output it is given; expected [N], what the last row must hold."""
    memory = torch.zeros(_BEFORE + ROWS * COLUMNS, dtype=expected.dtype, device=setting.device)
    out = memory[_BEFORE:].view(ROWS, COLUMNS)
    run(out)
    torch.cuda.synchronize()
    last = out[-1].clone()
    out[-1] = 0
    stray = int(torch.count_nonzero(memory))
    context = replace(setting.context(), inputs_at=lambda name, index: [f'row {ROWS - 1} of {ROWS}'])
    log.add(Record('guard', f'{what}: everything but the last row', memory.numel(), stray))
    if stray:
        raise ContractBroken(Reason.OUTSIDE_WRITE, f'{what}: {stray} elements were written outside the row that has a '
                             f'route\nreproduce: {setting.reproduce}')
    compare_bytes(log, f'out: {what}, the last row of {ROWS} against sums that are exact', 'out', last[None],
                  expected[None], context)
