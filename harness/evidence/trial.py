"""One operator call on trial, under the rules that hold for every operator.

Outputs poisoned, guard bands around inputs and outputs, inputs untouched, the same call twice, and on a GPU the replay
of a CUDA graph with changed inputs. What the right bytes are is the contract's business; this file proves that the
call does nothing else, and gives the same again.
"""
from __future__ import annotations

from collections.abc import Callable

import torch

from harness.evidence.bits import as_bits
from harness.evidence.compare import Context, compare_bytes
from harness.evidence.guarded import OUTPUT_POISONS, Arena, GuardedAllocations, guard_input
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason

# Fits every integer view; neither zero nor the bits of a common value.
_REPLAY_POISON = 0x5A

Outputs = dict[str, torch.Tensor]
Operator = Callable[[torch.Tensor], Outputs]


def run(log: EvidenceLog, what: str, operator: Operator, x: torch.Tensor, context: Context) -> Outputs:
    """Call `operator(x)` under guard, twice, and on a GPU once more through a CUDA graph.

    Args:
        what: who is called, for the records, for example 'candidate silu_and_mul_quant'.
        operator: x -> named outputs; must be a pure function of x.
        x: the input, any strides.

    Returns:
        The outputs of the first call.

    Raises:
        ContractBroken: OUTSIDE_WRITE (guard bands, gaps or the input changed), NONDETERMINISTIC (the second call or the
            replay gave other bytes).
    """
    first = _guarded_call(log, what, operator, x, context, OUTPUT_POISONS[0])
    again = _guarded_call(log, f'{what}, second call', operator, x, context, OUTPUT_POISONS[1])
    for name, output in first.items():
        compare_bytes(log, f'{name}: {what}, the same call twice over different poison', name, again[name], output,
                      context, Reason.NONDETERMINISTIC)
    if x.size(0) > 1:
        _last_row_alone(log, what, operator, x, first, context)
    if x.is_cuda and x.numel():
        _graph_replay(log, what, operator, x, context)
    return first


def _last_row_alone(log, what, operator, x, outputs, context) -> None:
    """A row's result does not depend on its neighbours, nor on how many there are."""
    alone = operator(guard_input(x[-1:]).view)
    for name, output in outputs.items():
        compare_bytes(log, f'{name}: {what}, the last row alone against the last row among all', name, alone[name],
                      output[-1:], context)


def _guarded_call(log, what, operator, x, context, poison) -> Outputs:
    source = guard_input(x)
    before = source.buffer.clone()
    with GuardedAllocations(poison) as memory:
        outputs = operator(source.view)
    if x.is_cuda:
        torch.cuda.synchronize()  # a launch error belongs to this call and to no later one
    _check_untouched(log, what, source.buffer, before, context)
    check_guards(log, what, memory.arenas, context)
    unguarded = [name for name, output in outputs.items() if output.numel() and not memory.owns(output)]
    if unguarded:
        log.add(Record('unguarded', f'{what}: {", ".join(unguarded)} allocated out of reach of the guards', compared=1))
    return outputs


def _check_untouched(log, what, buffer, before, context) -> None:
    changed = int((buffer != before).sum())
    log.add(Record('guard', f'{what}: input and the NaN around it unchanged', buffer.numel(), changed))
    if changed:
        raise ContractBroken(
            Reason.OUTSIDE_WRITE, f'{what} wrote into its input or beside it: {changed} bytes changed\n'
            f'reproduce: {context.reproduce}')


def check_guards(log: EvidenceLog, what: str, arenas: list[Arena], context: Context) -> None:
    """Raise ContractBroken(OUTSIDE_WRITE) if any guard band or gap of the arenas lost its poison."""
    for arena in arenas:
        outside = arena.written_outside()
        output = f'{tuple(arena.view.shape)} {arena.view.dtype}'
        log.add(Record('guard', f'{what}: guard bands and gaps of an output {output}', arena.outside_bytes(),
                       len(outside)))
        if len(outside):
            where = ', '.join(map(str, outside[:4].tolist()))
            raise ContractBroken(
                Reason.OUTSIDE_WRITE, f'{what} wrote outside its output {output}: {len(outside)} bytes, first at byte '
                f'offsets {where} from its start\nreproduce: {context.reproduce}')


def _graph_replay(log, what, operator, x, context) -> None:
    """Capture once, then replay with changed inputs and poisoned outputs, and compare with eager calls."""
    static = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    static.copy_(x)
    operator(static)  # compile outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = operator(static)
    # Rolled rows and columns: another input with the same kind of values, and then the first one again.
    for words, values in (('changed inputs', torch.roll(x, (1, 1), (0, 1))), ('the first inputs again', x)):
        static.copy_(values)
        for output in outputs.values():
            as_bits(output).fill_(_REPLAY_POISON)
        graph.replay()
        torch.cuda.synchronize()
        eager = operator(values)
        for name, output in outputs.items():
            compare_bytes(log, f'{name}: {what}, graph replay with {words} against eager', name, output, eager[name],
                          context, Reason.NONDETERMINISTIC)
