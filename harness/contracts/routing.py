"""What the contracts of sorted routes and of route blocks share: how they call, compare and try strange ids.

Which route of an expert comes first is decided by atomics. The promise is therefore a set per expert, and the sorted
routes are put into ascending order inside every expert's range before anything is compared; where the ranges lie stays
as it was found.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.contracts import routing_invariants
from harness.contracts.case import Case
from harness.contracts.routing_cases import changed
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.guarded import GuardedAllocations, guard_input
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.trial import Operator, Tensors
from harness.evidence.verdicts import Reason
from harness.oracles import routing
from harness.subjects.protocol import Subject

_LOW_32_BITS = 0xFFFFFFFF


def ascending_within_experts(sorted_idx: torch.Tensor, exp_end: torch.Tensor) -> None:
    """Sort the routes of every expert, in place: the memory on trial stays the subject's own.

    No result of a subject, however wrong, is used as an index, and nothing waits for the device: a graph captures this.
    """
    position = torch.arange(sorted_idx.numel(), dtype=torch.int32, device=sorted_idx.device)
    expert = torch.searchsorted(exp_end.to(torch.int32), position, right=True)
    key = (expert.to(torch.int64) << 32) | (sorted_idx.to(torch.int64) & _LOW_32_BITS)
    sorted_idx.copy_((torch.sort(key).values & _LOW_32_BITS).to(torch.int32))


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog, operator: Operator,
          judge_routed: Callable[[Tensors, np.ndarray, str, Context], None]) -> None:
    """Judge one case of either operator. Raises ContractBroken.

    Args:
        operator: {'topk_ids': ids} -> named metadata.
        judge_routed: (found, int64 ids [M, top_k], who was called, context) judges the metadata of ordinary ids.
    """
    ids = case.build(setting.device)
    what = f'{subject.name} {case.operator}'
    if case.options['kind'] == 'routed':
        numbers = ids.to(torch.int64).cpu().numpy()
        context = setting.context(inputs_at=lambda name, index: _routes_at(name, index, numbers))
        found = trial.run(log, what, operator, {'topk_ids': ids}, context,
                          {'topk_ids': changed(ids, case.options['experts'])})
        judge_routed(found, numbers, what, context)
        return
    strange = _judge_refusal if case.options['kind'] == 'refused' else _judge_out_of_range
    strange(log, what, case, operator, ids, setting)


def judge_sorted(log: EvidenceLog, what: str, found: Tensors, ids: np.ndarray, experts: int,
                 context: Context) -> routing.SortedRoutes:
    """Layout, invariants and bytes of sorted routes and expert ranges; returns what the oracle says."""
    for name, length in (('sorted_idx', ids.size), ('exp_start', experts), ('exp_end', experts)):
        compare_layout(log, f'{name}: layout', name, found[name], (length, ), torch.int32, context, (1, ))
    numbers = {name: tensor.cpu().numpy() for name, tensor in found.items()}
    routing_invariants.require(log, what, routing_invariants.of_routes(
        ids.reshape(-1), numbers['sorted_idx'], numbers['exp_start'], numbers['exp_end']), context)
    expected = routing.sorted_routes(ids, experts)
    for name, values in (('exp_start', expected.start), ('exp_end', expected.end), ('sorted_idx', expected.routes)):
        compare_oracle(log, name, found[name], values, context)
    return expected


def compare_oracle(log: EvidenceLog, name: str, found: torch.Tensor, expected: np.ndarray, context: Context) -> None:
    """Every byte of one piece of metadata against the brute-force oracle's."""
    compare_bytes(log, f'{name}: against the oracle', name, found, torch.from_numpy(expected).to(found.device), context)


def _routes_at(name: str, index: tuple[int, ...], ids: np.ndarray) -> list[str]:
    if name not in ('exp_start', 'exp_end'):
        return []
    return [f'routes   {int((ids == index[0]).sum())} of expert {index[0]}, {int((ids < index[0]).sum())} before it']


def _call_over_zeros(operator: Operator, ids: torch.Tensor) -> tuple[Tensors, GuardedAllocations]:
    """Call with guard bands of zeros: a count or a start that is read outside is 0, so that a wrong index leads to a
    place nearby that is guarded. Read from poison, it would lead into memory that is nobody's."""
    inputs = {'topk_ids': guard_input(ids).view}
    with GuardedAllocations(poison=0) as memory:
        found = operator(inputs)
    if ids.is_cuda:
        torch.cuda.synchronize()
    return found, memory


def _judge_out_of_range(log: EvidenceLog, what: str, case: Case, operator: Operator, ids: torch.Tensor,
                        setting: Setting) -> None:
    """An id that is no expert's is refused, or its route is nobody's; nothing is written outside owned memory."""
    context = setting.context()
    try:
        found, memory = _call_over_zeros(operator, ids)
    except (ValueError, TypeError) as error:
        log.add(Record('refusal', f'{what} refuses an id out of range: {error}', 1))
        return
    trial.check_guards(log, what, memory.arenas, context)
    expected = routing.sorted_routes(ids.cpu().numpy(), case.options['experts'])
    for name, values in (('exp_start', expected.start), ('exp_end', expected.end)):
        compare_oracle(log, name, found[name], values, context)
    owned = len(expected.routes)
    compare_oracle(log, 'sorted_idx', found['sorted_idx'][:owned], expected.routes, context)


def _judge_refusal(log: EvidenceLog, what: str, case: Case, operator: Operator, ids: torch.Tensor,
                   setting: Setting) -> None:
    """ValueError or TypeError, and its text names the argument."""
    argument = case.options['names']
    try:
        _call_over_zeros(operator, ids)
    except (ValueError, TypeError) as error:
        text = str(error)
    except Exception as error:
        raise ContractBroken(Reason.CRASH, f'{case.why}: expected ValueError or TypeError, found '
                             f'{type(error).__name__}: {error}\nreproduce: {setting.reproduce}') from error
    else:
        raise ContractBroken(Reason.BYTES, f'{case.why}: expected a refusal that names {argument!r}, found a result\n'
                             f'reproduce: {setting.reproduce}')
    log.add(Record('refusal', f'{what} refuses and names {argument}: {text}', 1, int(argument not in text)))
    if argument not in text:
        raise ContractBroken(Reason.BYTES, f'{case.why}: the refusal does not name {argument!r}: {text!r}\n'
                             f'reproduce: {setting.reproduce}')
