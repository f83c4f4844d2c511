"""One operator call on trial, under the rules that hold for every operator.

Outputs poisoned, guard bands around inputs and outputs, inputs untouched, the same call twice, a row alone, and on a
GPU the replay of a CUDA graph with changed inputs. What the right bytes are is the contract's business; this file
proves that the call does nothing else, and gives the same again.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from harness.evidence.bits import as_bits
from harness.evidence.compare import Context, compare_bytes
from harness.evidence.guarded import INPUT_POISONS, OUTPUT_POISONS, Arena, GuardedAllocations, guard_input
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason

# Fits every integer view; neither zero nor the bits of a common value.
_REPLAY_POISON = 0x5A

Tensors = dict[str, torch.Tensor]
Operator = Callable[[Tensors], Tensors]


def run(log: EvidenceLog, what: str, operator: Operator, inputs: Tensors, context: Context,
        changed: Tensors | None = None, last_row: Tensors | None = None) -> Tensors:
    """Call `operator(inputs)` under guard, twice; its last row alone; and on a GPU through a CUDA graph.

    Args:
        what: who is called, for the records, for example 'candidate silu_and_mul_quant'.
        operator: named inputs -> named outputs; must be a pure function of its inputs.
        inputs: any strides.
        changed: other inputs of the same shapes, for the replay of the graph; no replay without them.
        last_row: the inputs of the last row alone, for operators whose rows do not depend on each other.

    Returns:
        The outputs of the first call.

    Raises:
        ContractBroken: OUTSIDE_WRITE (guard bands, gaps or an input changed), NONDETERMINISTIC (the second call or the
            replay gave other bytes), BYTES (the last row depends on the others).
    """
    first = _guarded_call(log, what, operator, inputs, context, 0)
    kept = {name: output.clone() for name, output in first.items()}
    again = _guarded_call(log, f'{what}, second call', operator, inputs, context, 1)
    _check_own_memory(log, what, first, kept, again, context)
    for name, output in first.items():
        compare_bytes(log, f'{name}: {what}, the same call twice over different poison', name, again[name], output,
                      context, Reason.NONDETERMINISTIC)
    if last_row is not None:
        alone = _guarded_call(log, f'{what}, last row alone', operator, last_row, context, 0)
        rows = next(iter(first.values())).size(0)
        of_last = replace(context, inputs_at=lambda name, index: context.inputs_at(name, (rows - 1, *index[1:])))
        for name, output in first.items():
            compare_bytes(log, f'{name}: {what}, the last row alone against the last row among all', name, alone[name],
                          output[-1:], of_last)
    if changed is not None and next(iter(inputs.values())).is_cuda:
        _graph_replay(log, what, operator, inputs, changed, context)
    return first


def run_by_row(log: EvidenceLog, what: str, operator: Callable[[torch.Tensor], Tensors], x: torch.Tensor,
               context: Context) -> Tensors:
    """`run` for an operator of one matrix x [M, N] whose rows do not depend on each other."""
    # Rolled rows and columns: another input with the same kind of values.
    changed = {'x': torch.roll(x, (1, 1), (0, 1))} if x.numel() else None
    return run(log, what, lambda inputs: operator(inputs['x']), {'x': x}, context, changed,
               {'x': x[-1:]} if x.size(0) > 1 else None)


def _guarded_call(log, what, operator, inputs, context, poison: int) -> Tensors:
    """One call; `poison` 0 or 1 chooses which of the two is around inputs and in outputs."""
    sources = {name: guard_input(tensor, INPUT_POISONS[poison]) for name, tensor in inputs.items()}
    before = {name: source.buffer.clone() for name, source in sources.items()}
    with GuardedAllocations(OUTPUT_POISONS[poison]) as memory:
        outputs = operator({name: source.view for name, source in sources.items()})
    if any(tensor.is_cuda for tensor in inputs.values()):
        torch.cuda.synchronize()  # a launch error belongs to this call and to no later one
    for name, output in outputs.items():
        if type(output) is not torch.Tensor:  # a subclass decides for itself what comparing it means
            raise ContractBroken(Reason.BYTES, f'{name}: {what}: expected a plain torch.Tensor, found '
                                 f'{type(output).__name__}\nreproduce: {context.reproduce}')
    for name, source in sources.items():
        _check_untouched(log, what, name, source.buffer, before[name], context)
    check_guards(log, what, memory.arenas, context)
    unguarded = [name for name, output in outputs.items() if output.numel() and not memory.owns(output)]
    if unguarded:
        log.add(Record('unguarded', f'{what}: {", ".join(unguarded)} allocated out of reach of the guards', 1))
    return outputs


def _check_own_memory(log, what, first, kept, again, context) -> None:
    """Every call has outputs of its own: the second neither shares memory with the first nor writes into it."""
    for name, output in first.items():
        if not output.numel():
            continue
        shared = output.untyped_storage().data_ptr() == again[name].untyped_storage().data_ptr()
        log.add(Record('guard', f'{what}: {name} of two calls lie in different memory', 1, int(shared)))
        if shared:
            raise ContractBroken(
                Reason.OUTSIDE_WRITE, f'{what}: the second call returned the memory of the first for {name}, and '
                f'overwrote what a caller still holds\nreproduce: {context.reproduce}')
        compare_bytes(log, f'{name}: {what}, the first call\'s output after the second call', name, output, kept[name],
                      context, Reason.OUTSIDE_WRITE)


def run_rows_of_many(log: EvidenceLog, what: str, operator: Callable[[torch.Tensor], Tensors], x: torch.Tensor,
                     spots: tuple[tuple[int, int], ...], context: Context) -> None:
    """An x too large to guard or to hold against an oracle: chosen rows of the whole against the same rows alone."""
    outputs = operator(x)
    for start, stop in spots:
        alone = operator(x[start:stop].clone())
        for name, output in outputs.items():
            compare_bytes(log, f'{name}: {what}, rows {start} to {stop} of {x.size(0)} against the same rows alone',
                          name, output[start:stop], alone[name], context)


def _check_untouched(log, what, name, buffer, before, context) -> None:
    changed = int((buffer != before).sum())
    log.add(Record('guard', f'{what}: input {name} and the poison around it unchanged', buffer.numel(), changed))
    if changed:
        raise ContractBroken(
            Reason.OUTSIDE_WRITE, f'{what} wrote into its input {name} or beside it: {changed} bytes changed\n'
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


def _graph_replay(log, what, operator, inputs, changed, context) -> None:
    """Capture once, then replay with changed inputs and poisoned outputs, and compare with eager calls."""
    static = {}
    for name, tensor in inputs.items():
        static[name] = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        static[name].copy_(tensor)
    operator(static)  # compile outside the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = operator(static)
    for words, values in (('changed inputs', changed), ('the first inputs again', inputs)):
        for name, tensor in values.items():
            static[name].copy_(tensor)
        for output in outputs.values():
            as_bits(output).fill_(_REPLAY_POISON)
        graph.replay()
        torch.cuda.synchronize()
        eager = operator(values)
        for name, output in outputs.items():
            compare_bytes(log, f'{name}: {what}, graph replay with {words} against eager', name, output, eager[name],
                          context, Reason.NONDETERMINISTIC)
