"""quant_fp8: x [M, N] -> FP8 codes [M, N] and float32 scales [M, N / 128].

Promise (bytes): scales follow harness/oracles/quantisation.py in every bit; codes follow it for one reciprocal per
group that is at most 2 ulp from correctly rounded (the GPU's `div.full.f32`), exactly where division is exact (the
cpu lane, and every ue8m0 scale). How many groups needed an ulp is recorded. NaN and infinities follow the observed
table. Comparator: the oracle; for subjects other than stock, stock in the same environment as well.
"""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from harness.contracts import bad_calls, bad_input, values
from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.formats import (
    COLUMN_MAJOR,
    EVERY_FORMAT,
    TORCH_CODES,
    TORCH_STORAGE,
    TWO_FORMATS,
    QuantFormat,
)
from harness.contracts.layouts import FAR_SPOTS, far_rows, with_gaps
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import describe, from_numpy_bits, storage_numpy, to_numpy_bits
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.oracles import quantisation
from harness.subjects.protocol import Subject

OPERATOR = 'quant_fp8'
GROUP = values.GROUP

# Pattern -> why. In every format: what goes wrong here goes wrong by format.
PATTERNS = {
    values.zero_groups: 'zero groups at every position of a row: the floor keeps the scale finite',
    values.signed_zeros: 'zeros of both signs, and values whose code is one: the sign stays',
    values.subnormals: 'storage subnormals, and values whose codes are FP8 subnormals',
    values.maximum_ties: 'the maximum several times in a group, with both signs',
    values.code_edges: 'every code and every midpoint between codes, with both neighbours: ties to even',
    values.format_edge: 'group maxima at the format\'s largest value and both neighbours: scale and clamp',
    values.powers_of_two: 'maxima where the ue8m0 scale is an exact power of two, and both neighbours',
    values.floor: 'group maxima at the floor of 1e-6 and on both sides of it',
    values.nan: 'NaN of both signs, quiet and signalling, one and all of a group',
    values.infinities: 'infinities of both signs, alone, beside NaN and zeros',
    values.every_value: 'every finite bit pattern of the storage format',
}
# In two formats: what goes wrong here goes wrong by place.
PLACES = {
    values.nan_positions: 'NaN at each of the 128 positions: the maximum of the others survives',
    values.max_positions: 'the maximum at each of the 128 positions in every group slot of a program',
}
SHAPES = {
    (1, 1): 'one row of one group, less than one program', (1, 5): 'one row, a last program that is mostly masked',
    (7, 3): 'odd rows, groups no multiple of a program\'s', (33, 2): 'the decode width', (2, 64): 'many groups a row',
    (2, 129): 'more groups a row than any launcher has a constant for', (260, 1): 'hundreds of rows',
}
TALL = {4225: 'one row past the grid of an H200 (132 SMs of 32 programs)', 65535: 'the largest legal grid axis',
        65536: 'one past it', 65537: 'two past it'}


def shape_noise(fmt: QuantFormat, rows: int, groups: int) -> np.ndarray:
    """Values of ordinary size, uint16 [rows, groups * 128]."""
    return values.noise(fmt.storage_format, f'quant/{rows}x{groups}', (rows, groups * GROUP), scale=2.0)


FAR_WHY = 'offsets past 2^31 elements: rows of the end, the middle and the start against the same rows alone'


def make_cases(operator: str, to_input) -> tuple[Case, ...]:
    """The catalogue over a quantiser's input.

    Args:
        to_input: (format, uint16 [M, N]) -> the operator's input bits; identity for quant_fp8 itself.
    """

    def case(fmt: QuantFormat, name: str, why: str, bits, lanes=None, pitch: int = 0, **options) -> Case:

        def build(device: torch.device) -> torch.Tensor:
            x = from_numpy_bits(to_input(fmt, bits(fmt)), TORCH_STORAGE[fmt.storage], device)
            return with_gaps(x, {1: pitch}) if pitch else x

        extra = {} if lanes is None else {'lanes': lanes}
        return Case(operator, f'{fmt.id}-{name}', why, build, options={**fmt.options(), **options}, **extra)

    def pattern(function):
        return lambda fmt: function(fmt.storage_format, fmt.fp8_format)

    def shape(rows, groups):
        return lambda fmt: shape_noise(fmt, rows, groups)

    far = TWO_FORMATS[0]
    columns = to_input(far, shape_noise(far, 1, 1)).shape[1]

    def far_input(device):
        return far_rows(columns, TORCH_STORAGE[far.storage], device,
                        lambda rows: to_input(far, shape_noise(far, rows, 1)))

    cases = [Case(operator, f'{far.id}-past_2_31', FAR_WHY, far_input, SM90_ONLY,
                  {**far.options(), 'spots': FAR_SPOTS, 'memory_gib': 20})]
    for fmt in EVERY_FORMAT:
        cases += [case(fmt, f.__name__, why, pattern(f)) for f, why in PATTERNS.items()]
    for fmt in TWO_FORMATS:
        cases += [case(fmt, f.__name__, why, pattern(f)) for f, why in PLACES.items()]
        cases += [case(fmt, f'shape_{rows}x{groups}', why, shape(rows, groups))
                  for (rows, groups), why in SHAPES.items()]
        cases += [case(fmt, f'tall_{rows}', why, shape(rows, 1), SM90_ONLY) for rows, why in TALL.items()]
        cases.append(case(fmt, 'no_rows', 'M = 0: a rank without tokens', shape(0, 2)))
        cases.append(case(fmt, 'row_loop', 'more rows than programs: the strided row loop', shape(70, 1), sm_count=1))
        for each in (fmt, replace(fmt, column_major=True)):
            why = 'the row loop where no pitch equals another: input, codes and scales step by their own'
            cases.append(case(each, 'row_loop_pitched', why, shape(70, 3), pitch=24, sm_count=1))
            cases.append(case(each, 'tall_pitched', why, shape(9000, 3), SM90_ONLY, pitch=24))
        cases.append(case(fmt, 'pitched_rows', 'rows further apart than they are long, NaN between', shape(5, 3),
                          pitch=24))
    for fmt in COLUMN_MAJOR:
        cases.append(case(fmt, 'shape_5x3', 'column-major scales with a padded pitch', shape(5, 3)))
        cases.append(case(fmt, 'shape_8x2', 'column-major scales whose pitch needs no padding', shape(8, 2)))
        cases.append(case(fmt, 'shape_9x7', 'column-major scales with a pitch of 12: no larger padding would do',
                          shape(9, 7)))
    for fmt in EVERY_FORMAT:
        cases.append(case(fmt, 'many_ordinary', 'a million values, for comparison with stock: its own division',
                          shape(1024, 8), SM90_ONLY))
    return tuple(cases)


def _transposed(fmt: QuantFormat) -> Case:
    def build(device: torch.device) -> torch.Tensor:
        return from_numpy_bits(shape_noise(fmt, 6, 3).T, TORCH_STORAGE[fmt.storage], device).T

    return Case(OPERATOR, f'{fmt.id}-transposed', 'a dense input stored by column: codes come back stored by column',
                build, options=fmt.options())


CASES = (make_cases(OPERATOR, lambda fmt, bits: bits) + tuple(_transposed(fmt) for fmt in TWO_FORMATS)
         + bad_input.cases(OPERATOR, bad_calls.QUANT_FP8))


def call_arguments(options: dict) -> dict:
    """The keyword arguments of a quantiser for a case's options."""
    return {'dtype': TORCH_CODES[options['codes']], 'trans_scale': options['column_major'],
            'scale_fmt': options['scale_fmt']}


def scale_stride(rows: int, groups: int, column_major: bool) -> tuple[int, int]:
    """Strides of the scales in elements; a column's pitch is padded to 16 bytes, 4 scales."""
    return (1, -(-rows // 4) * 4) if column_major else (groups, 1)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return
    x = case.build(setting.device)
    arguments = call_arguments(case.options)

    def operator(values_):
        codes, scales = subject.quant_fp8(values_, GROUP, **arguments)
        return {'codes': codes, 'scales': scales}

    def inputs_at(name, index):
        row, column = index if name == 'codes' else (index[0], index[1] * GROUP)
        amax = quantisation.group_maxima(storage_numpy(x[row:row + 1]), GROUP)[0, column // GROUP]
        return [f'x        {describe(x, (row, column))}', f'amax     {float(amax)!r} of group {column // GROUP}']

    context = setting.context(GROUP, inputs_at)
    if 'spots' in case.options:
        trial.run_rows_of_many(log, f'{subject.name} quant_fp8', operator, x, case.options['spots'], context)
        return
    with setting.few_sms(case.options):
        found = trial.run_by_row(log, f'{subject.name} quant_fp8', operator, x, context)
        if subject is not setting.stock and x.size(0):
            codes, scales = setting.stock.quant_fp8(x, GROUP, **arguments)
            compare_bytes(log, f'scales: {subject.name} against stock', 'scales', found['scales'], scales, context)
            compare_bytes(log, f'codes: {subject.name} against stock', 'codes', found['codes'], codes, context)
    judge_layout(log, found, torch.empty_like(x, device='meta'), arguments, context)
    judge_against_oracle(log, found, storage_numpy(x), case.options, setting, context)


def judge_layout(log: EvidenceLog, found: dict, like: torch.Tensor, arguments: dict, context: Context) -> None:
    """Shape, dtype and strides of codes, which are those of `like` [M, N], and of scales."""
    rows, columns = like.shape
    compare_layout(log, 'codes: layout', 'codes', found['codes'], (rows, columns), arguments['dtype'], context,
                   like.stride())
    compare_layout(log, 'scales: layout', 'scales', found['scales'], (rows, columns // GROUP), torch.float32, context,
                   scale_stride(rows, columns // GROUP, arguments['trans_scale']))


def judge_against_oracle(log: EvidenceLog, found: dict, x: np.ndarray, options: dict, setting: Setting,
                         context: Context) -> None:
    """Scales in every bit; codes for one reciprocal per group within the division's error.

    Args:
        x: float32 [M, N], the values that are quantised.
    """
    if x.size == 0:
        return
    arguments = (GROUP, options['codes'], options['scale_fmt'])
    expected = quantisation.quantise(x, *arguments)
    scales = torch.from_numpy(expected.scales).to(found['scales'].device)
    compare_bytes(log, 'scales: against the oracle', 'scales', found['scales'], scales, context)
    exact = setting.exact_division or options['scale_fmt'] == 'ue8m0'
    allowed = 0 if exact else quantisation.DIVISION_ULPS
    codes = to_numpy_bits(found['codes'])
    conformance = quantisation.explain_codes(x, codes, *arguments, allowed)
    log.add(Record('conformance', 'codes: one reciprocal per group within the error of division explains all its codes',
                   compared=conformance.ulps.size, differing=int((conformance.ulps > 0).sum()),
                   worst=int(conformance.ulps.max()), detail={'unit': 'ulp', 'allowed': allowed}))
    if not conformance.unexplained.any():
        return
    broken = np.repeat(conformance.unexplained, GROUP, axis=1)
    # Where the bound holds, take what was found, so that the explanation points at a group that breaks it.
    target = from_numpy_bits(np.where(broken, expected.codes, codes), found['codes'].dtype, found['codes'].device)
    only_nonfinite = not np.isfinite(x[broken]).reshape(-1, GROUP).all(axis=1).any()
    what = f'{int(conformance.unexplained.sum())} groups that no reciprocal within {allowed} ulp explains'
    compare_bytes(log, f'codes: against the oracle, {what}', 'codes', found['codes'], target, context,
                  Reason.NONFINITE_TABLE if only_nonfinite else Reason.BYTES)
