"""refusals: what the fused operator must refuse, with an error that names the argument, before anything is written.

Promise: ValueError or TypeError; its text names the argument and what is supported; buffers given by the caller keep
every byte.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.contracts.case import Case
from harness.contracts.setting import Setting
from harness.evidence.guarded import OUTPUT_POISONS, allocate
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.subjects.protocol import Subject

OPERATOR = 'refusals'
ROWS, COLUMNS, GROUP = 4, 256, 128
E4M3FN = torch.float8_e4m3fn


@dataclass(frozen=True)
class Attempt:
    """A call that must be refused: the input and arguments, and the caller's buffers as (shape, stride, dtype)."""

    gate_up: torch.Tensor
    arguments: dict
    out: tuple = ((ROWS, COLUMNS), (COLUMNS, 1), E4M3FN)
    scales: tuple = ((ROWS, COLUMNS // GROUP), (COLUMNS // GROUP, 1), torch.float32)


def _input(device, dtype=torch.bfloat16, columns=COLUMNS) -> torch.Tensor:
    return torch.ones(ROWS, 2 * columns, dtype=dtype, device=device)


def _arguments(**changed) -> dict:
    return {'group_size': GROUP, 'dtype': E4M3FN, 'trans_scale': False, 'scale_fmt': None, **changed}


# Name -> (argument that the error must name, why, device -> Attempt).
_REFUSED: dict[str, tuple[str, str, Callable[[torch.device], Attempt]]] = {
    'float32_input': ('dtype', 'only 16-bit inputs have the two roundings',
                      lambda d: Attempt(_input(d, torch.float32), _arguments())),
    'group_64': ('group_size', 'only groups of 128 are supported',
                 lambda d: Attempt(_input(d), _arguments(group_size=64))),
    'group_0': ('group_size', 'a group has elements', lambda d: Attempt(_input(d), _arguments(group_size=0))),
    'partial_group': ('gate_up', 'N must be a multiple of the group', lambda d: Attempt(
        _input(d, columns=192), _arguments(), out=((ROWS, 192), (192, 1), E4M3FN),
        scales=((ROWS, 1), (1, 1), torch.float32))),
    'odd_width': ('gate_up', 'gate and up have one width', lambda d: Attempt(
        torch.ones(ROWS, 257, dtype=torch.bfloat16, device=d), _arguments())),
    'one_dimension': ('gate_up', 'rows and columns', lambda d: Attempt(
        torch.ones(512, dtype=torch.bfloat16, device=d), _arguments())),
    'column_stride': ('stride', 'columns must be adjacent', lambda d: Attempt(
        torch.ones(2 * COLUMNS, ROWS, dtype=torch.bfloat16, device=d).T, _arguments())),
    'codes_float16': ('dtype', 'codes are FP8', lambda d: Attempt(_input(d), _arguments(dtype=torch.float16))),
    'codes_e4m3fnuz': ('dtype', 'another FP8 with another maximum',
                       lambda d: Attempt(_input(d), _arguments(dtype=torch.float8_e4m3fnuz))),
    'scale_fmt': ('scale_fmt', 'None and ue8m0', lambda d: Attempt(_input(d), _arguments(scale_fmt='e8m0'))),
    'codes_e5m2fnuz': ('dtype', 'another FP8 with another bias',
                       lambda d: Attempt(_input(d), _arguments(dtype=torch.float8_e5m2fnuz))),
    'codes_uint8': ('dtype', 'bytes are no codes', lambda d: Attempt(_input(d), _arguments(dtype=torch.uint8))),
    'scale_fmt_case': ('scale_fmt', 'names are exact', lambda d: Attempt(_input(d), _arguments(scale_fmt='UE8M0'))),
    'scale_fmt_empty': ('scale_fmt', 'no name is no format', lambda d: Attempt(_input(d), _arguments(scale_fmt=''))),
    'no_width': ('gate_up', 'rows without a group', lambda d: Attempt(
        torch.ones(ROWS, 0, dtype=torch.bfloat16, device=d), _arguments())),
    'too_many_groups': ('gate_up', 'more groups than a 32-bit index reaches, without their memory', lambda d: Attempt(
        _input(d)[:1, :256].expand(2**31, 256), _arguments())),
    'out_column_stride': ('out', 'columns must be adjacent', lambda d: Attempt(
        _input(d), _arguments(), out=((ROWS, COLUMNS), (2 * COLUMNS, 2), E4M3FN))),
    'scales_column_overlap': ('scales', 'two groups at one address', lambda d: Attempt(
        _input(d), _arguments(), scales=((ROWS, 2), (1, 0), torch.float32))),
    'out_shape': ('out', 'one code per element', lambda d: Attempt(
        _input(d), _arguments(), out=((ROWS, COLUMNS + 128), (COLUMNS + 128, 1), E4M3FN))),
    'out_dtype': ('out', 'codes of the dtype asked for', lambda d: Attempt(
        _input(d), _arguments(), out=((ROWS, COLUMNS), (COLUMNS, 1), torch.float8_e5m2))),
    'out_overlap': ('out', 'two rows at one address', lambda d: Attempt(
        _input(d), _arguments(), out=((ROWS, COLUMNS), (0, 1), E4M3FN))),
    'scales_shape': ('scales', 'one scale per group', lambda d: Attempt(
        _input(d), _arguments(), scales=((ROWS, 1), (1, 1), torch.float32))),
    'scales_dtype': ('scales', 'scales are float32', lambda d: Attempt(
        _input(d), _arguments(), scales=((ROWS, 2), (2, 1), torch.bfloat16))),
    'scales_overlap': ('scales', 'two scales at one address', lambda d: Attempt(
        _input(d), _arguments(), scales=((ROWS, 2), (1, 1), torch.float32))),
}

CASES = tuple(Case(OPERATOR, name, why, build, options={'names': argument})
              for name, (argument, why, build) in _REFUSED.items())


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    attempt = case.build(setting.device)
    buffers = {name: allocate(*layout, setting.device, OUTPUT_POISONS[0])
               for name, layout in (('out', attempt.out), ('scales', attempt.scales))}
    text = _refusal_text(case, subject, setting, attempt, buffers)
    # Before 'expected' stands what is wrong and nothing else: a text that names everything names nothing.
    argument, _, supported = text.partition(': expected')
    named = bool(supported) and re.search(rf'\b{case.options["names"]}\b', argument) is not None
    written = sum(int((arena.buffer != arena.poison).sum()) for arena in buffers.values())
    total = sum(arena.buffer.numel() for arena in buffers.values())
    log.add(Record('refusal', f'{subject.name} refuses and names {case.options["names"]}: {text}', 1, int(not named)))
    log.add(Record('guard', 'the caller\'s buffers after the refusal', total, written))
    if written:
        raise ContractBroken(
            Reason.OUTSIDE_WRITE, f'{written} bytes of the caller\'s buffers were written by a call that was refused\n'
            f'reproduce: {setting.reproduce}')
    if not named:
        raise ContractBroken(
            Reason.BYTES, f'the refusal does not name {case.options["names"]!r} and what was expected: {text!r}\n'
            f'reproduce: {setting.reproduce}')


def _refusal_text(case: Case, subject: Subject, setting: Setting, attempt: Attempt, buffers: dict) -> str:
    try:
        subject.refusals(attempt.gate_up, **attempt.arguments, out=buffers['out'].view, scales=buffers['scales'].view)
    except (ValueError, TypeError) as error:
        return str(error)
    except Exception as error:
        raise ContractBroken(Reason.CRASH, f'{case.why}: expected ValueError or TypeError, found '
                             f'{type(error).__name__}: {error}\nreproduce: {setting.reproduce}') from error
    raise ContractBroken(Reason.BYTES, f'{case.why}: expected a refusal that names {case.options["names"]!r}, found a '
                         f'result\nreproduce: {setting.reproduce}')
