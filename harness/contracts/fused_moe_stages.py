"""The layer judged stage by stage, from what was tapped between its stages: every stage on the bytes that it was given.

An error of one stage is then never excused by another's, and a bound never has to allow for codes that flipped.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts import moe_reduce, route_blocks, routing
from harness.contracts.expert_batches import batches
from harness.contracts.formats import TORCH_CODES, code_values
from harness.contracts.fused_moe_problem import Layer
from harness.contracts.grouped_gemm_judging import instruction_of
from harness.contracts.routing_invariants import Slice
from harness.contracts.setting import Setting
from harness.evidence.bounds import compare_bound
from harness.evidence.compare import Context, compare_bytes
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.trial import Tensors
from harness.evidence.verdicts import Reason
from harness.oracles import grouped_gemm as gemm
from harness.oracles.fp8 import FP8_FORMATS
from harness.oracles.routing import SortedRoutes
from harness.subjects.taps import GEMMS, StageCall

PROJECTIONS = ('gate_up', 'down')


@dataclass(frozen=True)
class Observed:
    """One call of the layer from inside.

    Attributes:
        tensors: its inputs. calls: its stages. activation: (input, output) of a custom activation, or None.
        output: [M, H].
    """

    tensors: Tensors
    calls: list[StageCall]
    activation: tuple[torch.Tensor, torch.Tensor] | None
    output: torch.Tensor


@dataclass(frozen=True)
class _Judge:
    log: EvidenceLog
    what: str
    layer: Layer
    seen: Observed
    setting: Setting
    context: Context

    def same(self, name: str, what: str, actual: torch.Tensor, expected: torch.Tensor) -> None:
        """Both sides as matrices of one dtype, byte by byte."""
        compare_bytes(self.log, f'{name}: {self.what}, {what}', name, actual.reshape(expected.shape), expected,
                      self.context)

    def require(self, sentence: str, holds: bool) -> None:
        self.log.add(Record('stage', f'{self.what}: {sentence}', 1, int(not holds)))
        if not holds:
            raise ContractBroken(Reason.BYTES, f'{self.what}: {sentence}; this does not hold\n'
                                 f'reproduce: {self.context.reproduce}')

    @property
    def dtype(self) -> torch.dtype:
        return self.seen.output.dtype


def judge(log: EvidenceLog, what: str, layer: Layer, seen: Observed, setting: Setting, context: Context) -> None:
    """Judge every stage of one call. Raises ContractBroken."""
    j = _Judge(log, what, layer, seen, setting, context)
    swiglu = [] if seen.activation else ['silu_and_mul']
    order = ['renormalise', 'routes', 'gemm', *swiglu, 'quant_fp8', 'gemm', 'moe_reduce']
    found = [_kind(call.stage) for call in seen.calls]
    j.require(f'the stages are {", ".join(order)}; found {", ".join(found)}', found == order)
    calls = dict(zip([*order[:2], 'gate_up', *order[3:-2], 'down', 'moe_reduce'], seen.calls, strict=True))
    by_weight = _judge_weights(j, calls['renormalise'])
    by_expert = _judge_routes(j, calls['routes'])
    gate_up = _judge_gemm(j, 'gate_up', calls, (seen.tensors['hidden'], seen.tensors['hidden_scale']), by_expert)
    activated = _judge_activation(j, calls, gate_up.flatten(0, -2))
    quantised = _judge_quantisation(j, calls['quant_fp8'], activated)
    down = _judge_gemm(j, 'down', calls, quantised, by_expert)
    _judge_reduce(j, calls['moe_reduce'], down, by_weight)


def _kind(stage: str) -> str:
    return 'gemm' if stage in GEMMS else 'routes' if stage in ('sorted_routes', 'route_blocks') else stage


def _judge_weights(j: _Judge, call: StageCall) -> torch.Tensor:
    weights = j.seen.tensors['topk_weights']
    j.same('weights', 'renormalised are the router\'s', call.arguments['topk_weights'], weights)
    if not j.layer.renormalise:
        j.same('weights', 'untouched against the router\'s', call.result, weights)
        return call.result
    share = weights.double() / weights.double().sum(-1, keepdim=True)
    compare_bound(j.log, f'weights: {j.what}, renormalised against float64', 'weights', call.result, share,
                  share * gemm.UNIT * (weights.size(1) + 2), j.context)
    return call.result


def _judge_routes(j: _Judge, call: StageCall) -> SortedRoutes:
    """Metadata against the oracle, the order inside an expert aside."""
    told, layer = call.arguments, j.layer
    ids = j.seen.tensors['topk_ids']
    j.same('topk_ids', 'those that are sorted are the router\'s', told['topk_ids'], ids)
    found = dict(zip(route_blocks.NAMES, [tensor.clone() for tensor in call.result], strict=False))
    routing.ascending_within_experts(found['sorted_idx'], found['exp_end'])
    numbers = ids.long().cpu().numpy()
    by_expert = routing.judge_sorted(j.log, j.what, found, numbers, layer.experts, j.context)
    if call.stage == 'route_blocks':
        part = Slice(layer.offset, layer.local_experts, told['block_m'])
        route_blocks.clear_after_last_block(found['block_expert_ids'], found['block_end'])
        route_blocks.clear_after_last_block(found['block_offsets'], found['block_end'])
        route_blocks.judge_blocks(j.log, j.what, found, by_expert, part, j.context)
    return by_expert


def _judge_gemm(j: _Judge, projection: str, calls: dict[str, StageCall], operand: tuple[torch.Tensor, torch.Tensor],
                by_expert: SortedRoutes) -> torch.Tensor:
    """Every row of an expert that is here within the bound, given these very codes; every other row zero."""
    call, routes = calls[projection], calls['routes'].result
    told, weight, gate_up = call.arguments, f'w{1 + PROJECTIONS.index(projection)}', projection == 'gate_up'
    for name, passed, expected in zip(('codes', 'scales'), (told['A'], told['A_scale']), operand, strict=True):
        j.same(name, f'those that {projection} takes are the ones of the stage before', passed, expected)
    names = {'B': weight, 'B_scale': f'{weight}_scale', 'bias': f'{weight}_bias'}
    j.require(f'{projection} takes {", ".join(names.values())}', all(
        _same_memory(told[name], j.seen.tensors.get(own)) for name, own in names.items()))
    j.same('sorted_idx', f'the routes of {projection}', told['sorted_idx'], routes[0])
    out = call.result.flatten(0, -2)
    exact = torch.zeros(out.shape, dtype=torch.float64, device=out.device)
    allowed, owned = torch.zeros_like(exact), torch.zeros(len(out), dtype=torch.bool, device=out.device)
    instruction = instruction_of(set(call.instructions), j.setting.lane)
    smallest = 1 - FP8_FORMATS[j.layer.codes].bias
    active = j.layer.active()
    ranges = [torch.arange(by_expert.start[e], by_expert.end[e], device=out.device) for e in j.layer.offset + active]
    for batch, positions in batches(ranges, out.size(-1)):
        route = routes[0][positions].long()  # in the order that the atomics of this call gave
        source, rows = (route // j.seen.tensors['topk_ids'].size(1), positions) if gate_up else (positions, route)
        experts = torch.from_numpy(active[batch]).to(out.device)
        bias = j.seen.tensors[f'{weight}_bias'][experts].double()[:, None] if j.layer.bias else None
        operands = (code_values(j.layer.codes, operand[0], source), operand[1][source].double(),
                    code_values(j.layer.codes, j.seen.tensors[weight], experts),
                    j.seen.tensors[f'{weight}_scale'][experts].double())
        operands = _with_common_groups(*operands)
        exact[rows] = gemm.exact(*operands, bias)
        allowed[rows] = gemm.error_bound(*operands, instruction, j.layer.out, smallest, bias)
        owned[rows] = True
    compare_bound(j.log, f'{projection}: {j.what} against float64 given its codes, bound of {instruction.name}',
                  projection, out[owned], exact[owned], allowed[owned], j.context)
    j.same(projection, 'rows of experts that are not here against zero', out[~owned], torch.zeros_like(out[~owned]))
    return call.result


def _with_common_groups(a, a_scale, b, b_scale):
    groups = max(a_scale.size(-1), b_scale.size(-1))
    a_scale, b_scale = (s.repeat_interleave(groups // s.size(-1), -1) for s in (a_scale, b_scale))
    return a, a_scale, b, b_scale


def _same_memory(passed: torch.Tensor | None, own: torch.Tensor | None) -> bool:
    if passed is None or own is None:
        return passed is own
    return (passed.data_ptr(), passed.shape, passed.stride()) == (own.data_ptr(), own.shape, own.stride())


def _judge_activation(j: _Judge, calls: dict[str, StageCall], gate_up: torch.Tensor) -> torch.Tensor:
    if j.seen.activation:  # our own function: that it was given the right rows is all there is to say
        given, activated = j.seen.activation
        j.same('gate_up', 'what the activation takes is what gate_up gave', given, gate_up)
        return activated
    call = calls['silu_and_mul']
    j.same('gate_up', 'what the activation takes is what gate_up gave', call.arguments['gate_up'], gate_up)
    j.same('activated', 'against stock silu_and_mul', call.result, j.setting.stock.silu_and_mul(gate_up))
    return call.result


def _judge_quantisation(j: _Judge, call: StageCall, activated: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    j.same('activated', 'what is quantised is what the activation gave', call.arguments['A'], activated)
    expected = j.setting.stock.quant_fp8(activated, j.layer.group, TORCH_CODES[j.layer.codes], False, None)
    for name, found, wanted in zip(('codes', 'scales'), call.result, expected, strict=True):
        j.same(name, 'against stock quant_fp8 in groups of the hidden codes', found, wanted)
    return call.result


def _judge_reduce(j: _Judge, call: StageCall, down: torch.Tensor, by_weight: torch.Tensor) -> None:
    j.same('states', 'what is reduced is what down gave', call.arguments['hidden_states'], down)
    j.same('weights', 'those of the reduce', call.arguments['topk_weights'], by_weight)
    j.same('output', 'the layer\'s is the reduce\'s', j.seen.output, call.result)
    options = {'storage': j.layer.out, 'fp32_acc': False, 'order_free': False}
    if np.prod(call.result.shape):
        moe_reduce.judge_sums(j.log, call.result, moe_reduce.Routed(down, by_weight), options, j.setting.lane,
                              j.context)
