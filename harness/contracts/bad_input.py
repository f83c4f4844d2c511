"""Input that an operator must refuse: what a caller gets wrong, and what must be true afterwards.

Promise: ValueError or TypeError; its text names the argument; nothing is written, neither into buffers that the caller
gave nor beside them. What stock does instead is recorded, call by call, in deviations.py, so that every bad input it
accepts is known; where it would read or write out of reach, that happens between guard bands.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.contracts.case import BOTH_LANES, Case
from harness.contracts.setting import Setting
from harness.evidence.guarded import OUTPUT_POISONS, GuardedAllocations, allocate, guard_input
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.subjects.protocol import Subject

PREFIX = 'bad-'


@dataclass(frozen=True)
class BadCall:
    """One call that must be refused.

    Attributes:
        name, why: of the case. names: the argument that is wrong, as the protocol calls it.
        build: device -> arguments by the protocol's names, in its order; tensors are copied into guarded memory.
        outputs: which of them the operator is to write.
        lanes: where the call can be made without harm.
    """

    name: str
    why: str
    names: str
    build: Callable[[torch.device], dict]
    outputs: tuple[str, ...] = ()
    lanes: frozenset[str] = BOTH_LANES


def cases(operator: str, calls: list[BadCall]) -> tuple[Case, ...]:
    """The cases of one operator; `is_bad` tells them from the others."""
    return tuple(Case(operator, PREFIX + call.name, call.why, call.build, call.lanes,
                      {'names': call.names, 'outputs': list(call.outputs)}) for call in calls)


def is_bad(case: Case) -> bool:
    return case.id.startswith(PREFIX)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case of any operator. Raises ContractBroken."""
    given, arenas = {}, {}
    for name, value in case.build(setting.device).items():
        if isinstance(value, torch.Tensor) and value.device.type == setting.device.type and value.numel():
            if name in case.options['outputs']:
                arenas[name] = allocate(value.shape, value.stride(), value.dtype, value.device, OUTPUT_POISONS[0])
            else:
                arenas[name] = guard_input(value)
            given[name] = arenas[name].view
        else:
            given[name] = value
    before = {name: arena.buffer.clone() for name, arena in arenas.items()}
    raised = _call(case, subject, given, setting)
    changed = {name: int((arena.buffer != before[name]).sum()) for name, arena in arenas.items()}
    outside = {name: len(arenas[name].written_outside()) for name in case.options['outputs'] if name in arenas}
    log.add(Record('guard', 'everything that the caller gave, and the poison around it',
                   max(1, sum(buffer.numel() for buffer in before.values())), sum(changed.values())))
    _require(not any(outside.values()), Reason.OUTSIDE_WRITE, f'wrote outside {_names(outside)}', case, setting)
    if raised is None:
        raise _broken(Reason.BYTES, 'found a result', case, setting)
    if not isinstance(raised, (ValueError, TypeError)):
        raise _broken(Reason.CRASH, f'found {type(raised).__name__}: {raised}', case, setting) from raised
    _require(not any(changed.values()), Reason.OUTSIDE_WRITE, f'wrote into {_names(changed)} before it refused', case,
             setting)
    named = re.search(rf'\b{case.options["names"]}\b', str(raised).partition(': expected')[0]) is not None
    log.add(Record('refusal', f'{subject.name} refuses and names {case.options["names"]}: {raised}', 1, int(not named)))
    _require(named, Reason.BYTES, f'the refusal does not name it: {str(raised)!r}', case, setting)


def _call(case: Case, subject: Subject, given: dict, setting: Setting) -> Exception | None:
    """What the call raised; what it returned is nobody's."""
    try:
        with GuardedAllocations(OUTPUT_POISONS[0]):
            names = list(given)
            first_option = names.index('bias') if 'bias' in names else len(names)
            getattr(subject, case.operator)(*(given[name] for name in names[:first_option]),
                                            **{name: given[name] for name in names[first_option:]})
        if setting.device.type == 'cuda':
            torch.cuda.synchronize()
    except Exception as error:
        return error
    return None


def _names(counts: dict[str, int]) -> str:
    return ', '.join(name for name, count in counts.items() if count)


def _require(holds: bool, reason: Reason, what: str, case: Case, setting: Setting) -> None:
    if not holds:
        raise _broken(reason, what, case, setting)


def _broken(reason: Reason, found: str, case: Case, setting: Setting) -> ContractBroken:
    return ContractBroken(reason, f'{case.why}: expected a refusal that names {case.options["names"]!r}, {found}\n'
                          f'reproduce: {setting.reproduce}')
