"""moe_reduce: states of the routed experts [M, K, N] and weights [M, K] -> their weighted sum [M, N], storage dtype.

Promise (bytes): products and sums are taken in the declared accumulation (the storage dtype, to which the weight is
rounded first; or float32), with one rounding to storage at the end. Where the sum is exact in any order, or every order
rounds alike, every bit is promised, the sign of zero included.
Promise (bound): elsewhere the order decides about the last bits. Every element must follow from an order that this
lane is known to use; one that follows from none of them but lies within the bound of any order, as
harness/oracles/moe_reduce.py derives it, has MOVED; one outside is BROKEN. NaN and infinities follow IEEE arithmetic,
with the GPU's canonical NaN.
Comparator: the oracle.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts import bad_calls, bad_input, moe_reduce_far
from harness.contracts import moe_reduce_inputs as inputs
from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.layouts import with_gaps
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import describe, from_numpy_bits, to_numpy_bits
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.oracles import moe_reduce as oracle
from harness.subjects.protocol import Subject

OPERATOR = 'moe_reduce'
TORCH = {'bf16': torch.bfloat16, 'fp16': torch.float16, 'fp32': torch.float32}
# On the cpu lane the order is the interpreter's and no property of the source, so that any known one will do. On sm90
# it is the compiler's: one thread holds all K of a column, and chains them in fused multiply-adds.
ORDERS_OF_LANE = {Lane.CPU: tuple(oracle.ORDERS), Lane.SM90: ('fused', 'fused_from_1')}


@dataclass(frozen=True)
class Routed:
    """hidden [M, K, N] in the storage dtype; weights [M, K], float32 unless the case says otherwise."""

    hidden: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True)
class Accumulation:
    """A storage dtype ('bf16', 'fp16', 'fp32') and whether the sum is taken in float32."""

    storage: str
    fp32_acc: bool

    @property
    def id(self) -> str:
        return f'{self.storage}-{"fp32acc" if self.fp32_acc else "storageacc"}'


EVERY = tuple(Accumulation(storage, fp32_acc) for storage in TORCH for fp32_acc in (False, True))
# Where only geometry is at stake; float32 has another block than the 16-bit dtypes.
THREE = (Accumulation('bf16', False), Accumulation('fp16', True), Accumulation('fp32', False))

TOP_K = tuple(range(1, 17))
PATTERNS: dict[str, tuple[str, Callable]] = {
    'one_expert': ('K = 1: no sum, only the weight\'s rounding and the product\'s',
                   lambda s: inputs.noise(s, 3, 1, 96)),
    'one_hot': ('one weight among zeros: the other experts leave no trace', inputs.one_hot),
    'zero_weights': ('the largest states under zero weights, and a token without any weight', inputs.zero_weights),
    'negative_weights': ('weights of both signs', inputs.negative_weights),
    'cancelling': ('terms that cancel: +0 in any order', inputs.cancelling),
    'signed_zeros_k4': ('zero terms of both signs, top-k a power of two: -0 where all are',
                        lambda s: inputs.signed_zeros(s, 4)),
    'signed_zeros_k3': ('zero terms of both signs beside a masked expert: never -0',
                        lambda s: inputs.signed_zeros(s, 3)),
    'subnormals': ('terms and sums that are subnormal: nothing is flushed', inputs.subnormals),
    'overflow': ('sums that reach the largest value, and sums past it', inputs.overflow),
    'nonfinite': ('NaN and infinities in states and weights, opposed, and under a weight of zero', inputs.nonfinite),
}
_ORDERED = {
    'ordinary_k2': ('two ordinary terms: one sum, fused or not', lambda s: inputs.noise(s, 2, 2, 256)),
    'ordinary_k8': ('eight ordinary terms: the accumulation\'s every rounding', lambda s: inputs.noise(s, 2, 8, 256)),
    'coherent_k4': ('all terms positive: nothing cancels, the error is as large as it gets',
                    lambda s: inputs.noise(s, 2, 4, 256, positive=True)),
}
_SHAPES = {
    (1, 8, 1): 'one token, one column', (3, 8, 127): 'N under a block of float32', (3, 8, 129): 'N past it',
    (2, 8, 255): 'N under a block of 16 bits', (2, 8, 256): 'N one block', (2, 8, 257): 'N past it',
    (2, 6, 600): 'top-k no power of two, a last block that is mostly masked', (33, 8, 40): 'the decode width',
}


def _pitched_tokens(hidden, weights):
    return with_gaps(hidden, {1: 2}), with_gaps(weights, {1: 3})


def _pitched_experts(hidden, weights):
    return with_gaps(hidden, {2: 24}), weights


def _columns_apart(hidden, weights):
    return hidden.repeat_interleave(2, dim=2)[:, :, ::2], weights


def _experts_outermost(hidden, weights):
    return (hidden.transpose(0, 1).contiguous().transpose(0, 1), weights.t().contiguous().t())


_LAYOUTS = {
    'pitched_tokens': ('tokens further apart than they are long, states and weights', _pitched_tokens),
    'pitched_experts': ('experts further apart than N', _pitched_experts),
    'columns_apart': ('columns two apart', _columns_apart),
    'experts_outermost': ('states and weights stored expert by expert', _experts_outermost),
}


def _case(kind: Accumulation, name: str, why: str, make, lanes=None, weights_dtype: torch.dtype = torch.float32,
          layout=None, **options) -> Case:

    def build(device: torch.device) -> Routed:
        hidden, weights = (torch.from_numpy(np.ascontiguousarray(array)) for array in make(kind.storage))
        hidden, weights = hidden.to(device, TORCH[kind.storage]), weights.to(device, weights_dtype)
        return Routed(*(layout(hidden, weights) if layout else (hidden, weights)))

    options = {'storage': kind.storage, 'fp32_acc': kind.fp32_acc, 'order_free': True, **options}
    extra = {} if lanes is None else {'lanes': lanes}
    return Case(OPERATOR, f'{kind.id}-{name}', why, build, options=options, **extra)


def _values(kind: Accumulation) -> list[Case]:
    cases = [_case(kind, f'experts_k{k}', f'top-k {k}: every expert with a gain of its own, a mix-up shows',
                   lambda s, k=k: inputs.distinct_gains(s, 2, k, 72)) for k in TOP_K]
    cases += [_case(kind, name, why, make) for name, (why, make) in PATTERNS.items()]
    cases += [_case(kind, name, why, make, order_free=False) for name, (why, make) in _ORDERED.items()]
    weights = 'bf16' if kind.storage == 'fp32' else kind.storage
    cases.append(_case(kind, f'weights_{weights}', 'weights that are no float32', weights_dtype=TORCH[weights],
                       make=lambda s: inputs.noise(s, 3, 1, 72)))
    if kind.fp32_acc:
        cases.append(_case(kind, 'past_storage', 'sums of 16 bits: exact in float32 alone', inputs.past_storage))
    if kind.storage != 'fp32':
        cases += [_case(kind, f'every_step_k{k}', 'storage accumulation rounds every step, float32 only the last: they '
                        'differ here in any order', lambda s, k=k: inputs.rounded_every_step(s, k)) for k in (3, 8)]
    if kind == Accumulation('fp16', True):
        cases.append(_case(kind, 'back_from_overflow', 'past 65504 and back, in float32', inputs.back_from_overflow))
    return cases


def _geometry(kind: Accumulation) -> list[Case]:
    cases = [_case(kind, f'shape_{m}x{k}x{n}', why, lambda s, shape=(m, k, n): inputs.distinct_gains(s, *shape))
             for (m, k, n), why in _SHAPES.items()]
    cases.append(_case(kind, 'no_rows', 'M = 0: a rank without tokens', lambda s: inputs.distinct_gains(s, 0, 8, 96)))
    cases += [_case(kind, name, why, lambda s: inputs.distinct_gains(s, 3, 6, 72), layout=layout)
              for name, (why, layout) in _LAYOUTS.items()]
    cases.append(_case(kind, 'tall_65537', 'more tokens than a second grid axis could hold',
                       lambda s: inputs.distinct_gains(s, 65537, 2, 40), SM90_ONLY))
    return cases


def _catalogue() -> tuple[Case, ...]:
    cases = [case for kind in EVERY for case in _values(kind)]
    cases += [case for kind in THREE for case in _geometry(kind)]
    cases += [_case(kind, 'many_ordinary', 'two million ordinary terms: a rare rounding shows',
                    lambda s: inputs.noise(s, 256, 8, 1024), SM90_ONLY, order_free=False) for kind in EVERY]
    return tuple(cases)


CASES = _catalogue() + (moe_reduce_far.case(OPERATOR), ) + bad_input.cases(OPERATOR, bad_calls.MOE_REDUCE)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return
    if case.id.endswith(moe_reduce_far.FAR):
        moe_reduce_far.judge(case, subject, setting, log)
        return
    routed = case.build(setting.device)
    rows, experts, columns = routed.hidden.shape
    named = {'hidden': routed.hidden, 'weights': routed.weights}

    def operator(tensors):
        return {'reduced': subject.moe_reduce(tensors['hidden'], tensors['weights'], case.options['fp32_acc'])}

    def inputs_at(name, index):
        row, column = index
        return [f'expert {k:<3}{describe(routed.hidden, (row, k, column))} * {describe(routed.weights, (row, k))}'
                for k in range(experts)]

    context = setting.context(inputs_at=inputs_at)
    changed = {name: torch.roll(tensor, 1, 0) for name, tensor in named.items()} if rows > 1 else None
    last = {name: tensor[-1:] for name, tensor in named.items()} if rows > 1 else None
    found = trial.run(log, f'{subject.name} moe_reduce', operator, named, context, changed, last)['reduced']
    compare_layout(log, 'layout', 'reduced', found, (rows, columns), routed.hidden.dtype, context,
                   (columns, 1) if rows else None)
    if found.numel():
        judge_sums(log, found, routed, case.options, setting.lane, context)


def judge_sums(log: EvidenceLog, found: torch.Tensor, routed: Routed, options: dict, lane: Lane,
                context: Context) -> None:
    """Every sum of `found` [M, N], as this contract promises it for a lane. `options` as a case has them."""
    hidden, weights = (tensor.to(torch.float64).cpu().numpy() for tensor in (routed.hidden, routed.weights))
    arguments = (hidden, weights, options['storage'], options['fp32_acc'])
    results = {order: oracle.reduce(*arguments, order) for order in ORDERS_OF_LANE[lane]}
    expected = next(iter(results.values()))
    if options['order_free']:
        nonfinite = not (np.isfinite(hidden).all() and np.isfinite(weights).all())
        _compare(log, 'the only result that any order can have', found, expected, context,
                 Reason.NONFINITE_TABLE if nonfinite else Reason.BYTES)
        return
    bits = to_numpy_bits(found)
    matches = {order: result == bits for order, result in results.items()}
    unexplained = ~np.logical_or.reduce(list(matches.values()))
    outside = _judge_bound(log, found, arguments)
    log.add(Record('bytes', 'reduced: every element follows from an order of this lane', bits.nbytes,
                   int(unexplained.sum()), detail={order: int(match.sum()) for order, match in matches.items()}))
    if outside.any():
        _compare(log, f'{int(outside.sum())} elements outside the bound of any order', found,
                 np.where(outside, expected, bits), context, Reason.BOUND)
    if unexplained.any():
        _compare(log, f'{int(unexplained.sum())} elements within the bound, but of no order known for this lane '
                 f'({", ".join(results)})', found, np.where(unexplained, expected, bits), context,
                 Reason.WORSE_WITHIN_BOUND)


def _judge_bound(log: EvidenceLog, found: torch.Tensor, arguments: tuple) -> np.ndarray:
    """bool [M, N]: elements outside the bound; leaves the largest observed / allowed."""
    hidden, _, storage, fp32_acc = arguments
    total, magnitude = oracle.exact_sum(*arguments)
    allowed = oracle.error_bound(total, magnitude, hidden.shape[1], storage, fp32_acc)
    with np.errstate(invalid='ignore'):
        ratio = np.abs(found.to(torch.float64).cpu().numpy() - total) / allowed
    outside = ~(ratio <= 1)
    log.add(Record('bound', 'reduced: distance from the exact sum, in bounds', ratio.size, int(outside.sum()),
                   float(np.nanmax(ratio, initial=0)), {'unit': 'observed / allowed'}))
    return outside


def _compare(log: EvidenceLog, what: str, found: torch.Tensor, expected: np.ndarray, context: Context,
             reason: Reason) -> None:
    compare_bytes(log, f'reduced: against the oracle, {what}', 'reduced', found,
                  from_numpy_bits(expected, found.dtype, found.device), context, reason)
