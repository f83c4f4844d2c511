"""fused_moe_blocked_fp8: the MoE layer, from hidden codes and a router's choice to the weighted sum of its experts.

Promise (bound), for every subject, from outside: the output lies in the interval that right roundings can reach, which
moves through the stages in float64 (harness/oracles/moe_layer.py); a code may move only where its value lies within the
GEMM's error of a rounding edge.
Promise, stage by stage, for a subject that lets its stages be tapped (stock): routing metadata as in sorted_routes and
route_blocks; both projections within the bound of the matrix instruction that ran, given the codes that they took;
activation and quantisation in every byte of stock's own; the reduce as in moe_reduce; every stage takes what the one
before it gave. Promise (bytes): the relations of harness/contracts/fused_moe_relations.py; in decode a token alone
gives its row of the batch. Promise (observed): the kernels and tiles that a case names are those that ran.
Weights of idle experts are never read. Hidden codes and weights that are grouped unlike one another along K are
computed with the scales that they have, or refused.
Comparator: the float64 oracle; stock's silu_and_mul and quant_fp8 of the same install.
"""
from __future__ import annotations

import torch

from harness.contracts import fused_moe_relations, fused_moe_stages, fused_moe_truth
from harness.contracts.case import Case
from harness.contracts.formats import TORCH_STORAGE
from harness.contracts.fused_moe_cases import OPERATOR, layer_of, make_cases
from harness.contracts.fused_moe_problem import ACTIVATIONS, Layer, call
from harness.contracts.fused_moe_stages import Observed
from harness.contracts.grouped_gemm_judging import instruction_of
from harness.contracts.moe_schedule import judge_schedule
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bounds import compare_bound
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.trial import Tensors
from harness.lanes.lane import Lane
from harness.machine_code.executed import matrix_instructions
from harness.oracles.grouped_gemm import Instruction
from harness.subjects import taps
from harness.subjects.protocol import Subject

CASES = make_cases()


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if 'relation' in case.options:
        _judge_relation(case, subject, setting, log)
        return
    try:
        _judge(case, subject, setting, log)
    except (ValueError, TypeError) as error:
        if not case.options['refusable']:
            raise
        log.add(Record('refusal', f'{subject.name} {OPERATOR} refuses: {error}', 1))


def _judge_relation(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    layer, context, name = layer_of(case), setting.context(), case.options['relation']
    relation = fused_moe_relations.RELATIONS[name][1]
    for words, found, expected in relation(layer, lambda *asked: call(subject, *asked), case.build(setting.device)):
        compare_bytes(log, f'output: {subject.name} {OPERATOR}, {words}', 'output', found, expected, context)


def _judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    layer, context, what = layer_of(case), setting.context(), f'{subject.name} {OPERATOR}'
    tensors = case.build(setting.device)
    observed: list[Observed] = []

    def operator(given: Tensors) -> Tensors:
        with setting.as_on_gpu(case.options['as_on_gpu']):
            if observed or not hasattr(subject, 'tapped'):
                return {'output': call(subject, layer, given)}
            # The first call only: the second, untapped, must give the same bytes, and a graph captures no tap.
            observed.append(_observe(subject, layer, given))
        return {'output': observed[0].output}

    replayed = case.options['replay'] and setting.lane is Lane.SM90 and len(tensors['hidden'])
    changed = layer.rerouted().build(setting.device) if replayed else None
    alone = _last_token(tensors) if case.options['alone'] else None
    with matrix_instructions() as used:
        found = trial.run(log, what, operator, tensors, context, changed, alone)['output']
    shape = (len(tensors['topk_ids']), layer.hidden_size)
    compare_layout(log, 'layout', 'output', found, shape, TORCH_STORAGE[layer.out], context, (layer.hidden_size, 1))
    instructions = [instruction_of(used, setting.lane)] * 2
    if observed:
        instructions = _judge_inside(case, what, layer, observed[0], setting, log, context)
    middle, allowed = fused_moe_truth.interval(layer, tensors, setting, *instructions)
    compare_bound(log, f'output: {what} against the interval of right roundings', 'output', found, middle, allowed,
                  context)


def _observe(subject: Subject, layer: Layer, given: Tensors) -> Observed:
    custom, seen = ACTIVATIONS[layer.activation], []

    def recording(gate_up: torch.Tensor) -> torch.Tensor:
        activated = custom(gate_up)
        seen.append((gate_up.clone(), activated.clone()))
        return activated

    with subject.tapped() as calls:
        output = call(subject, layer, given, recording if custom else None)
    return Observed(given, calls, seen[0] if seen else None, output)


def _judge_inside(case: Case, what: str, layer: Layer, seen: Observed, setting: Setting, log: EvidenceLog,
                  context: Context) -> list[Instruction]:
    """Stages, and the way that was taken; returns the instructions of both projections."""
    fused_moe_stages.judge(log, what, layer, seen, setting, context)
    launches = [stage for stage in seen.calls if stage.stage in taps.GEMMS]
    judge_schedule(log, what, taps.schedule(seen.calls), case.options['path'], setting)
    instructions = [instruction_of(set(launch.instructions), setting.lane) for launch in launches]
    log.add(Record('observed', f'{what}: gate_up by {instructions[0].name}, down by {instructions[1].name}', 1))
    return instructions


def _last_token(tensors: Tensors) -> Tensors:
    return tensors | {name: tensors[name][-1:] for name in fused_moe_relations.BY_TOKEN}
