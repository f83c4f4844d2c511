"""How the two grouped GEMMs are called and judged: what both contracts share."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts import grouped_gemm_far_rows
from harness.contracts.case import Case
from harness.contracts.expert_batches import batches
from harness.contracts.formats import code_values
from harness.contracts.grouped_gemm_far_rows import FAR_ROWS
from harness.contracts.grouped_gemm_problem import OUT_DTYPES, SENTINEL, Built, strides_of_out
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bounds import compare_bound
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.trial import Tensors
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.machine_code.executed import matrix_instructions
from harness.oracles import grouped_gemm as oracle
from harness.oracles.grouped_gemm import FLOAT32, MMA, WGMMA, Instruction
from harness.subjects.protocol import Subject

# Largest observed / allowed that a case whose terms all have one sign must reach: a bound that is never approached
# would let a wrong kernel pass.
COHERENT_AT_LEAST = 0.1
_SMALLEST = {'e4m3fn': -6, 'e5m2': -14}


# (subject, tensors, built, out) runs the operator on `out`.
Call = Callable[[Subject, Tensors, Built, torch.Tensor], None]


def outcome(call: Call, subject: Subject, built: Built, tensors: Tensors) -> torch.Tensor:
    """One call into an output that the caller owns, [routes, N], filled with the sentinel."""
    problem = built.problem
    out = torch.empty_strided((built.routes, problem.n), strides_of_out(problem.layout, problem.n),
                              dtype=OUT_DTYPES[problem.out], device=tensors['a'].device)
    out.fill_(SENTINEL)
    call(subject, tensors, built, out)
    return out


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog, call: Call,
          further: Callable[[Built, torch.Tensor, Instruction, Context], None] = lambda *found: None) -> None:
    """Judge one case of either operator. Raises ContractBroken.

    Args:
        further: what a contract promises beside: (built, output, instruction that ran, context).
    """
    built = case.build(setting.device)
    problem, tile = built.problem, built.tile
    what = f'{subject.name} {case.operator}'
    sides = _sides(built)
    if case.id.endswith(FAR_ROWS):
        (side, ) = sides
        expected = oracle.exact(*side.operands)[0, 0].to(OUT_DTYPES[problem.out])
        grouped_gemm_far_rows.judge(what, setting, log, lambda out: call(subject, built.tensors, built, out), expected)
        return
    context = setting.context(inputs_at=lambda name, index: _inputs_at(built, index))
    changed = problem.rerouted().build(tile, setting.device).tensors if case.options['replay'] else None

    def operator(tensors: Tensors) -> Tensors:
        return {'out': outcome(call, subject, built, tensors)}

    with matrix_instructions() as used:
        found = trial.run(log, what, operator, built.tensors, context, changed)['out']
    compare_layout(log, 'layout', 'out', found, (built.routes, problem.n), OUT_DTYPES[problem.out], context)
    _judge_unowned(log, what, found, sides, context)
    instruction = instruction_of(used, setting.lane)
    log.add(Record('observed', f'{what}: {instruction.name}, from {", ".join(sorted(used)) or "no Triton kernel"}', 1))
    _judge_values(log, what, found, built, sides, instruction, context)
    further(built, found, instruction, context)
    if subject.name == 'stock' and setting.lane is Lane.SM90 and instruction != tile.instruction:
        raise ContractBroken(Reason.LATENT, f'{what}: expected {tile.instruction.name} for {tile}, found '
                             f'{sorted(used)}: other bits than before, within their bound\n'
                             f'reproduce: {setting.reproduce}')


@dataclass(frozen=True)
class _Side:
    """The operands of local experts with as many rows each: float64 a [E, m, K], a_scale [E, m, G], b [E, N, K],
    b_scale [E, N / group_n, G], bias [E, 1, N] or None, and the rows of the output, int64 [E, m]."""

    a: torch.Tensor
    a_scale: torch.Tensor
    b: torch.Tensor
    b_scale: torch.Tensor
    bias: torch.Tensor | None
    out_rows: torch.Tensor

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        return self.a, self.a_scale, self.b, self.b_scale


def _sides(built: Built) -> list[_Side]:
    """Every local expert that has routes, in batches; a row of a batch may stand twice."""
    tensors, device, active = built.tensors, built.tensors['a'].device, built.active()
    sides = []
    rows = [np.stack(built.rows(expert)) for expert in active]
    for batch, place in batches([torch.arange(own.shape[1]) for own in rows], built.problem.n):
        source, out_rows = (torch.from_numpy(np.stack([rows[at][side][own] for at, own in zip(
            batch, place.numpy(), strict=True)]).astype(np.int64)).to(device) for side in (0, 1))
        experts = torch.tensor([active[at] for at in batch], device=device)
        a, b = (code_values(built.problem.codes, tensors[name], at) for name, at in (('a', source), ('b', experts)))
        bias = tensors['bias'][experts].double()[:, None] if 'bias' in tensors else None
        a_scale = tensors['a_scale'][source].double().repeat_interleave(built.problem.groups_to_a_scale, -1)
        sides.append(_Side(a, a_scale, b, tensors['b_scale'][experts].double(), bias, out_rows))
    return sides


def _judge_unowned(log: EvidenceLog, what: str, found: torch.Tensor, sides: list[_Side], context: Context) -> None:
    """Rows of foreign experts keep what the caller had there."""
    owned = torch.zeros(len(found), dtype=torch.bool, device=found.device)
    for side in sides:
        owned[side.out_rows] = True
    kept = found[~owned]
    compare_bytes(log, f'out: {what}, rows of experts that are not here against what was there before', 'out', kept,
                  torch.full_like(kept, SENTINEL), context, Reason.OUTSIDE_WRITE)


def instruction_of(used: set[str], lane: Lane) -> Instruction:
    """The least exact matrix instruction that ran. Of a subject that launched no Triton kernel nothing is known, and
    the widest bound is taken."""
    if lane is Lane.CPU:
        return FLOAT32
    return MMA if used and all(name.startswith(MMA.name) for name in used) else WGMMA


def _judge_values(log: EvidenceLog, what: str, found: torch.Tensor, built: Built, sides: list[_Side],
                  instruction: Instruction, context: Context) -> None:
    problem = built.problem
    exact = torch.full(found.shape, SENTINEL, dtype=torch.float64, device=found.device)
    allowed, model = torch.zeros_like(exact), exact.clone()
    for side in sides:
        rows, smallest = side.out_rows, _SMALLEST[problem.codes]
        exact[rows] = oracle.exact(*side.operands, side.bias)
        allowed[rows] = oracle.error_bound(*side.operands, instruction, problem.out, smallest, side.bias)
        if problem.bits:
            model[rows] = oracle.emulate(*side.operands, instruction, smallest)
    if problem.values == 'nan_codes':
        found, exact = _judge_nan(log, what, found, exact, context)
    if problem.exact:
        compare_bytes(log, f'out: {what} against sums that are exact in any order', 'out', found,
                      exact.float().to(found.dtype), context)
        return
    worst = compare_bound(log, f'out: {what} against float64, bound of {instruction.name}', 'out', found, exact,
                          allowed, context)
    if problem.values == 'coherent' and worst < COHERENT_AT_LEAST:
        raise ContractBroken(Reason.BETTER, f'{what}: expected terms of one sign to reach {COHERENT_AT_LEAST} of the '
                             f'bound, found {worst:.3g}: the bound is too wide to judge by\n'
                             f'reproduce: {context.reproduce}')
    if problem.bits:
        compare_bytes(log, f'out: {what} against {instruction.name} emulated bit by bit', 'out', found,
                      model.float().to(found.dtype), context, Reason.WORSE_WITHIN_BOUND)


def _judge_nan(log: EvidenceLog, what: str, found: torch.Tensor, exact: torch.Tensor,
               context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    """NaN exactly where a NaN takes part; the rest for the bound."""
    compare_bytes(log, f'out is NaN: {what}, exactly where a NaN takes part', 'out is NaN', found.isnan(),
                  exact.isnan(), context)
    return found.nan_to_num(nan=0.0), exact.nan_to_num(nan=0.0)


def _inputs_at(built: Built, index: tuple[int, ...]) -> list[str]:
    row, column = index
    for expert in built.active():
        rows, out_rows = built.rows(expert)
        if row in out_rows:
            place = int(np.flatnonzero(out_rows == row)[0])
            tensors, source = built.tensors, int(rows[place])
            return [f'local expert {expert}, its row {place} of {len(rows)}: row {source} of a',
                    f'a_scale {tensors["a_scale"][source].tolist()}',
                    f'b_scale {tensors["b_scale"][expert, column // built.problem.group_n].tolist()}']
    return ['a row that no expert here owns']
