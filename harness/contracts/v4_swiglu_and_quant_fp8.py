"""v4_swiglu_and_quant_fp8: gate_up [..., 2N] -> codes [..., N] and scales [..., N / 128] of silu(gate) * up.

The product is rounded to storage once; the default activation rounds twice, silu first. Gates are cut above
swiglu_limit and ups at both of its ends, unless it is 0.

Promise (bytes): scales and codes follow harness/oracles/quantisation.py from values that are determined: float64's,
rounded once, wherever the error of float32 cannot reach the next rounding edge. Elsewhere (counted) a group's scale and
codes must follow from one of the two neighbours. Finite values only. Promise (observed): the bytes are not those of
quant_fp8(silu_and_mul(x)), and by how many.
Comparator: the oracle; stock's composition for what is observed.
"""
from __future__ import annotations

import numpy as np
import torch

from harness.contracts import quant_fp8 as quantiser
from harness.contracts import silu_and_mul as activation
from harness.contracts import values
from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.formats import TORCH_CODES, TORCH_STORAGE, QuantFormat
from harness.contracts.layouts import with_gaps
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import as_bits, describe, from_numpy_bits, to_numpy_bits
from harness.evidence.compare import Context, compare_layout
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.oracles import quantisation, swiglu
from harness.oracles.fp8 import FP8_FORMATS
from harness.oracles.storage import FORMATS, Format
from harness.subjects.protocol import Subject

OPERATOR = 'v4_swiglu_and_quant_fp8'
GROUP = values.GROUP
# At most this share of groups may hang on a rounding edge in ordinary values: a judge that lets more pass is none. (An
# error of 12 * 2^-24 reaches an edge of fp16 in 0.3 % of values, of which a group has 128.)
UNDECIDED_AT_MOST = {'bf16': 0.08, 'fp16': 0.4}
_SHAPES = {(1, 1): 'one row of one group', (7, 3): 'groups no multiple of a program\'s', (5, 5): 'one group past them',
           (33, 2): 'the decode width', (0, 2): 'no rows'}


def _noise(storage: Format, rows: int, groups: int) -> np.ndarray:
    return values.noise(storage, f'v4/{rows}x{groups}', (rows, 2 * groups * GROUP), scale=3.0)


def _edges(storage: Format) -> np.ndarray:
    """Edge gates with edge ups, the finite ones."""
    bits = activation.edge_pairs(storage).copy()
    bits[~np.isfinite(storage.decode(bits))] = 0
    halves = bits.reshape(len(bits), 2, -1)
    overflowing = ~np.isfinite(storage.decode(storage.round(swiglu.silu(storage.decode(halves[:, 0]))
                                                            * storage.decode(halves[:, 1]))))
    halves[:, 1][overflowing] = 0
    return bits


def _zero_groups(storage: Format) -> np.ndarray:
    zeros = values.zero_groups(storage, FP8_FORMATS['e4m3fn'])
    return activation.gates_and_ups(np.full_like(zeros, storage.round(np.array(2.0))), zeros)


def _beyond_limit(storage: Format) -> np.ndarray:
    return values.noise(storage, 'v4/limit', (6, 4 * GROUP), scale=12.0)


def _as_given(x: torch.Tensor) -> torch.Tensor:
    """Strides of rows, which torch does not give an empty numpy array."""
    return x.new_empty(x.shape).copy_(x)


def _catalogue() -> tuple[Case, ...]:
    cases = []
    for fmt in (QuantFormat('bf16', 'e4m3fn', 'ue8m0'), QuantFormat('bf16', 'e4m3fn', None),
                QuantFormat('fp16', 'e4m3fn', None), QuantFormat('fp16', 'e5m2', 'ue8m0')):

        def case(name, why, bits, lanes=None, limit=0.0, fmt=fmt, layout=_as_given, **options):
            def build(device):
                return layout(from_numpy_bits(bits(fmt.storage_format), TORCH_STORAGE[fmt.storage], device))

            extra = {} if lanes is None else {'lanes': lanes}
            return Case(OPERATOR, f'{fmt.id.removesuffix("-row")}-{name}', why, build,
                        options={**fmt.options(), 'limit': limit, **options}, **extra)

        cases += [case(f'shape_{m}x{g}', why, lambda s, m=m, g=g: _noise(s, m, g)) for (m, g), why in _SHAPES.items()]
        cases += [
            case('edges', 'gates where silu changes its nature, ups that do', _edges, edge=True),
            case('zero_groups', 'groups of zeros: the floor keeps the scale finite', _zero_groups),
            case('limit', 'values beyond the limit of DeepSeek-V4, which cuts gates above and ups on both sides',
                 _beyond_limit, limit=10.0),
            case('limit_off', 'the same without a limit', _beyond_limit),
            case('pitched', 'rows further apart than they are long', lambda s: _noise(s, 5, 2),
                 layout=lambda x: with_gaps(x, {1: 24})),
            case('three_dimensions', 'tokens by top-k', lambda s: _noise(s, 6, 2), layout=lambda x: x.view(2, 3, -1)),
            case('row_loop', 'more rows than programs: the strided row loop', lambda s: _noise(s, 40, 1), sm_count=1),
            case('not_the_default', 'one rounding is not two: how many codes and scales differ',
                 lambda s: _noise(s, 48, 4), differs=True),
            case('many_ordinary', 'a million values', lambda s: _noise(s, 1024, 8), SM90_ONLY),
        ]
    return tuple(cases)


CASES = _catalogue()


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    gate_up, options = case.build(setting.device), case.options
    flat = gate_up.reshape(-1, gate_up.size(-1))
    rows, columns = flat.size(0), flat.size(1) // 2
    what = f'{subject.name} {OPERATOR}'

    def operator(inputs):
        codes, scales = subject.v4_swiglu_and_quant_fp8(inputs['gate_up'], options['limit'], GROUP,
                                                        TORCH_CODES[options['codes']], options['scale_fmt'])
        return {'codes': codes, 'scales': scales}

    context = setting.context(GROUP, _inputs_at(flat, columns))
    changed = {'gate_up': _rolled(gate_up)} if rows else None
    with setting.few_sms(options):
        found = trial.run(log, what, operator, {'gate_up': gate_up}, context, changed)
    leading = tuple(gate_up.shape[:-1])
    compare_layout(log, 'codes: layout', 'codes', found['codes'], (*leading, columns), TORCH_CODES[options['codes']],
                   context)
    compare_layout(log, 'scales: layout', 'scales', found['scales'], (*leading, columns // GROUP), torch.float32,
                   context)
    if not rows:
        return
    found = {'codes': found['codes'].reshape(rows, columns), 'scales': found['scales'].reshape(rows, -1)}
    _judge_values(log, what, found, flat, options, setting, context)
    if options.get('differs'):
        _observe_difference(log, what, found, flat, options, setting)


def _rolled(gate_up: torch.Tensor) -> torch.Tensor:
    other = torch.empty_strided(gate_up.shape, gate_up.stride(), dtype=gate_up.dtype, device=gate_up.device)
    return other.copy_(gate_up.roll(1, -1))


def _inputs_at(flat: torch.Tensor, columns: int):
    def lines(name, index):
        row, column = index if name == 'codes' else (index[0], index[1] * GROUP)
        return [f'gate     {describe(flat, (row, column))}', f'up       {describe(flat, (row, columns + column))}']

    return lines


def _judge_values(log: EvidenceLog, what: str, found: dict, flat: torch.Tensor, options: dict, setting: Setting,
                  context: Context) -> None:
    storage = FORMATS[options['storage']]
    decoded = storage.decode(to_numpy_bits(flat)).astype(np.float64)
    columns = decoded.shape[1] // 2
    least, most = swiglu.one_rounding(decoded[:, :columns], decoded[:, columns:], options['limit'], storage)
    groups = (len(decoded), columns // GROUP, GROUP)
    decided = (least.view(np.uint32) == most.view(np.uint32)).reshape(groups).all(axis=2)
    share = 1 - decided.mean()
    log.add(Record('observed', f'{what}: groups that hang on a rounding edge', decided.size,
                   detail={'undecided': int((~decided).sum())}))
    at_most = UNDECIDED_AT_MOST[options['storage']]
    if share > at_most and decided.size > 100 and not options.get('edge'):
        raise ContractBroken(Reason.BOUND, f'{what}: {share:.1%} of groups hang on a rounding edge, expected at most '
                             f'{at_most:.0%}\nreproduce: {setting.reproduce}')
    codes, scales = (found[name].reshape(*groups[:2], -1) for name in ('codes', 'scales'))
    if decided.any():
        certain = torch.from_numpy(decided).to(codes.device)
        quantiser.judge_against_oracle(
            log, {'codes': codes[certain], 'scales': scales[certain]}, least.reshape(groups)[decided], options, setting,
            setting.context(GROUP))
    if not decided.all():
        unsure = ~decided
        index = torch.from_numpy(unsure).to(codes.device)
        _judge_undecided(log, what, to_numpy_bits(codes[index]), to_numpy_bits(scales[index]).reshape(-1),
                         least.reshape(groups)[unsure], most.reshape(groups)[unsure], options, setting)


def _judge_undecided(log: EvidenceLog, what: str, codes: np.ndarray, scales: np.ndarray, least: np.ndarray,
                     most: np.ndarray, options: dict, setting: Setting) -> None:
    """Every scale and code follows from one of the two neighbours, under the maximum of either.

    Args:
        codes: uint8 [n, 128]. scales: uint32 bits [n]. least, most: float32 [n, 128].
    """
    exact = setting.exact_division or options['scale_fmt'] == 'ue8m0'
    allowed = 0 if exact else quantisation.DIVISION_ULPS
    formats = (options['codes'], options['scale_fmt'])
    right_scale, right_code = np.zeros(len(codes), bool), np.zeros(codes.shape, bool)
    maxima = np.abs(np.stack([least, most])).max(axis=2)
    for maximum in maxima:
        # A value may stand beside a larger maximum than its own side's, never beside a smaller one.
        of_maximum = np.repeat(maximum[:, None], GROUP, axis=1)
        expected = quantisation.quantise(of_maximum, GROUP, *formats).scales.view(np.uint32).reshape(-1)
        right_scale |= expected == scales
        for x in (least, most):
            beside = np.concatenate([np.where(np.abs(x) > of_maximum, least, x), of_maximum], axis=1)
            for ulps in range(-allowed, allowed + 1):
                right_code |= quantisation.quantise(beside, 2 * GROUP, *formats, ulps).codes[:, :GROUP] == codes
    wrong = ~right_scale | ~right_code.all(axis=1)
    log.add(Record('bytes', f'{what}: undecided groups follow from one of two neighbours', codes.size,
                   int(wrong.sum())))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise ContractBroken(Reason.BYTES, f'{what}: a group whose values hang on a rounding edge has codes or a scale '
                             f'that follow from neither side: codes {codes[at][:8].tolist()}..., scale bits '
                             f'0x{scales[at]:08x}\nreproduce: {setting.reproduce}')


def _observe_difference(log: EvidenceLog, what: str, found: dict, flat: torch.Tensor, options: dict,
                        setting: Setting) -> None:
    arguments = quantiser.call_arguments(options)
    codes, scales = setting.stock.quant_fp8(setting.stock.silu_and_mul(flat), GROUP, **arguments)
    differing = {'codes': int((as_bits(found['codes']) != as_bits(codes)).sum()),
                 'scales': int((as_bits(found['scales']) != as_bits(scales)).sum())}
    log.add(Record('observed', f'{what}: not the bytes of quant_fp8(silu_and_mul(x))', codes.numel(),
                   detail={**differing, 'of_codes': codes.numel(), 'of_scales': scales.numel()}))
    if not differing['codes']:
        raise ContractBroken(Reason.BETTER, f'{what}: expected other codes than those of quant_fp8(silu_and_mul(x)), '
                             f'found the same: it rounds twice now?\nreproduce: {setting.reproduce}')
