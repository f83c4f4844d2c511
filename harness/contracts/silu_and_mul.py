"""silu_and_mul: gate_up [M, 2N] -> silu(gate) * up [M, N], in the storage dtype.

Promise (bytes): the product is one IEEE multiplication of the rounded silu with up. The rounded silu is a table over
all 2^16 gates, read from the subject itself with up = 1.
Promise (bound): that table holds, for every gate, the float64 value within the error of float32 arithmetic, rounded
once; -0 as well where exp overflows. How far it is from float64 in steps is recorded.
Comparator: float64 and an IEEE oracle; for subjects other than stock, stock as well.
"""
from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from harness.contracts import bad_calls, bad_input, values
from harness.contracts.case import SM90_ONLY, Case
from harness.contracts.formats import TORCH_STORAGE
from harness.contracts.layouts import FAR_SPOTS, far_rows, with_gaps
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import describe, from_numpy_bits, to_numpy_bits
from harness.evidence.compare import compare_bytes, compare_layout
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.oracles import swiglu
from harness.oracles.fp8 import E4M3FN
from harness.oracles.storage import FORMATS, Format
from harness.subjects.protocol import Subject

OPERATOR = 'silu_and_mul'
ALL_BITS = np.arange(65536, dtype=np.uint32).astype(np.uint16)


def gates_and_ups(gates: np.ndarray, ups: np.ndarray) -> np.ndarray:
    """uint16 [M, N] and [M, N] -> gate_up [M, 2N]."""
    return np.concatenate([gates, ups], axis=1)


def edge_gates(storage: Format) -> np.ndarray:
    """Gates at which silu changes its nature: zeros, subnormals, overflow of exp from both sides, the ends, NaN."""
    around = storage.round(np.array([-88.0, -88.5, -89.0, -90.0, -96.0, -97.0, -103.0, -17.0, -9.0]))
    points = np.concatenate([around, around - 1, around + 1, storage.round(np.array([1.28, 88.7, 1e-4, -1e-4, 20.0]))])
    inf = storage.infinity
    special = [0, 0x8000, 1, 0x8001, 1 << storage.mantissa, inf - 1, (inf - 1) | 0x8000, inf, inf | 0x8000, 0x7FFF,
               0xFFFF]
    return np.concatenate([points, np.array(special)]).astype(np.uint16)


def edge_pairs(storage: Format) -> np.ndarray:
    """Every edge gate with every edge up, gate_up [M, 512] with 256 pairs a row."""
    inf = storage.infinity
    ups = np.concatenate([storage.round(np.array([1.0, -1.0, 0.5, 3.0, 448.0, -57344.0, 1e-5])),
                          np.array([0, 0x8000, 1, inf - 1, inf, inf | 0x8000, 0x7FFF, 0xFFFF])]).astype(np.uint16)
    gate, up = (a.reshape(-1) for a in np.meshgrid(edge_gates(storage), ups, indexing='ij'))
    count = -(-len(gate) // 256) * 256
    return gates_and_ups(np.resize(gate, count).reshape(-1, 256), np.resize(up, count).reshape(-1, 256))


def overflowing_products(storage: Format) -> np.ndarray:
    """Products at the end of the storage range, on both sides: the last finite value, and infinity."""
    gates = storage.round(np.array([2.0, 64.0, 128.0, 255.0, 11.0, 30000.0, 60000.0, 1.3]))
    ups = np.stack([storage.round(storage.largest / np.maximum(swiglu.silu(storage.decode(gates)), 1.0) * nudge)
                    for nudge in np.linspace(0.98, 1.02, 32)])
    ups[1::2] |= 0x8000
    return gates_and_ups(np.broadcast_to(gates, ups.shape).reshape(1, -1), ups.reshape(1, -1)).astype(np.uint16)


def _noise(storage: Format, rows: int, columns: int) -> np.ndarray:
    return values.noise(storage, f'silu/{rows}x{columns}', (rows, 2 * columns), scale=3.0)


def _every_gate(storage: Format, up_bits: np.ndarray) -> np.ndarray:
    gates = ALL_BITS.reshape(64, 1024)
    return gates_and_ups(gates, np.resize(up_bits, gates.shape))


_PATTERNS = {
    'edges': ('gates where silu changes its nature, with ups that do: zeros, ends, infinities, NaN', edge_pairs),
    'overflow': ('products at both sides of the end of the storage range', overflowing_products),
    'every_gate_random_up': ('each of the 2^16 gates once, with an up of random bits',
                             lambda f: _every_gate(f, values.raw('silu/ups', 65536))),
    'signed_zeros': ('zero gates and ups of both signs: the product keeps the sign',
                     lambda f: gates_and_ups(values.signed_zeros(f, E4M3FN), values.signed_zeros(f, E4M3FN)[::-1])),
    'subnormals': ('subnormal ups, and products that underflow',
                   lambda f: gates_and_ups(values.subnormals(f, E4M3FN), values.subnormals(f, E4M3FN)[:, ::-1])),
}
_SHAPES = {
    (0, 128): 'no rows', (1, 1): 'one element', (1, 128): 'one row of one group', (7, 96): 'odd rows, N under a tile',
    (3, 100): 'N no power of two', (2, 511): 'N just under a block', (2, 512): 'N one block',
    (2, 513): 'one column past a block', (3, 1200): 'a last block that is mostly masked', (33, 256): 'the decode width',
    (2, 9100): 'wider than any launcher has a constant for', (260, 128): 'hundreds of rows',
}
_TALL = {2113: 'one row past the grid of an H200 (132 SMs of 16 programs)', 65535: 'the largest legal grid axis',
         65536: 'one past it', 65537: 'two past it'}


def _case(name: str, why: str, storage: str, bits, lanes=None, pitch: int = 0, transposed: bool = False,
          **options) -> Case:
    def build(device: torch.device) -> torch.Tensor:
        x = from_numpy_bits(bits(FORMATS[storage]), TORCH_STORAGE[storage], device)
        if transposed:
            return x.T.contiguous().T
        return with_gaps(x, {1: pitch}) if pitch else x

    extra = {} if lanes is None else {'lanes': lanes}
    return Case(OPERATOR, f'{storage}-{name}', why, build, options={'storage': storage, **options}, **extra)


def _catalogue() -> tuple[Case, ...]:
    cases = []
    for storage in FORMATS:
        cases.append(_case('table', 'all 2^16 gates against float64: the activation function itself', storage,
                           lambda f: _every_gate(f, f.round(np.array([1.0])))))
        cases += [_case(name, why, storage, bits) for name, (why, bits) in _PATTERNS.items()]
        cases += [_case(f'shape_{rows}x{columns}', why, storage, lambda f, r=rows, c=columns: _noise(f, r, c))
                  for (rows, columns), why in _SHAPES.items()]
        cases += [_case(f'tall_{rows}', why, storage, lambda f, r=rows: _noise(f, r, 128), SM90_ONLY)
                  for rows, why in _TALL.items()]
        cases.append(_case('row_loop', 'more rows than programs: the strided row loop', storage,
                           lambda f: _noise(f, 40, 128), sm_count=1))
        why = 'the row loop where no pitch equals another: input and output step by their own'
        cases.append(_case('row_loop_pitched', why, storage, lambda f: _noise(f, 70, 256), pitch=24, sm_count=1,
                           preallocated=True))
        cases.append(_case('tall_pitched', why, storage, lambda f: _noise(f, 9000, 256), SM90_ONLY, pitch=24,
                           preallocated=True))
        cases.append(_case('transposed', 'a dense input stored by column', storage, lambda f: _noise(f, 6, 256),
                           transposed=True))
        cases.append(_case('pitched_rows', 'rows further apart than they are long, NaN between', storage,
                           lambda f: _noise(f, 5, 256), pitch=24))
        cases.append(_case('preallocated', 'an output given by the caller, inside a larger buffer', storage,
                           lambda f: _noise(f, 5, 256), preallocated=True))
    cases.append(Case(OPERATOR, 'bf16-past_2_31', 'offsets past 2^31 elements in input and output', _far, SM90_ONLY,
                      {'storage': 'bf16', 'spots': FAR_SPOTS, 'memory_gib': 20}))
    return tuple(cases)


def _far(device: torch.device) -> torch.Tensor:
    return far_rows(256, torch.bfloat16, device, lambda rows: _noise(FORMATS['bf16'], rows, 128))


CASES = _catalogue() + bad_input.cases(OPERATOR, bad_calls.SILU_AND_MUL)


@lru_cache(maxsize=8)
def silu_table(subject: Subject, storage: str, device: torch.device) -> np.ndarray:
    """The subject's silu, rounded to storage, of all 2^16 gates in order of their bits: uint16 [65536]."""
    fmt = FORMATS[storage]
    x = from_numpy_bits(_every_gate(fmt, fmt.round(np.array([1.0]))), TORCH_STORAGE[storage], device)
    return to_numpy_bits(subject.silu_and_mul(x)).reshape(-1)


@lru_cache(maxsize=8)
def wrong_gates(subject: Subject, storage: str, device: torch.device) -> np.ndarray:
    """Gates whose value in `silu_table` is no silu, in order of their bits: bool [65536]. Judged once for all cases."""
    return swiglu.wrong_silus(ALL_BITS, silu_table(subject, storage, device), FORMATS[storage])


def trusted_table(subject: Subject, storage: str, device: torch.device) -> np.ndarray:
    """`silu_table` of a reference, after a look at it. Raises ContractBroken(BOUND) if it is no silu."""
    wrong = int(wrong_gates(subject, storage, device).sum())
    if wrong:
        raise ContractBroken(Reason.BOUND, f'the reference is wrong: {subject.name} gives {wrong} of 65536 gates a '
                             'value that is no silu in float32')
    return silu_table(subject, storage, device)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    if bad_input.is_bad(case):
        bad_input.judge(case, subject, setting, log)
        return
    x = case.build(setting.device)
    storage = FORMATS[case.options['storage']]
    columns = x.size(1) // 2

    def inputs_at(name, index):
        row, column = index
        return [f'gate     {describe(x, (row, column))}', f'up       {describe(x, (row, columns + column))}']

    context = setting.context(inputs_at=inputs_at)
    if 'spots' in case.options:
        trial.run_rows_of_many(log, f'{subject.name} silu_and_mul', _plain(subject), x, case.options['spots'], context)
        return
    with setting.few_sms(case.options):
        operator = _preallocating(subject) if case.options.get('preallocated') else _plain(subject)
        found = trial.run_by_row(log, f'{subject.name} silu_and_mul', operator, x, context)['activated']
        if subject is not setting.stock:
            compare_bytes(log, f'activated: {subject.name} against stock', 'activated', found,
                          setting.stock.silu_and_mul(x), context)
    compare_layout(log, 'layout', 'activated', found, (x.size(0), columns), x.dtype, context)
    table = silu_table(subject, storage.name, setting.device)
    bits = to_numpy_bits(x)
    expected = swiglu.product(table[bits[:, :columns]], bits[:, columns:], storage)
    compare_bytes(log, 'activated: the IEEE product of the subject\'s own silu with up', 'activated', found,
                  from_numpy_bits(expected, x.dtype, found.device), context)
    if case.id.endswith('-table'):
        _judge_table(log, table, wrong_gates(subject, storage.name, setting.device), storage, context)


def _plain(subject: Subject):
    return lambda x: {'activated': subject.silu_and_mul(x)}


def _preallocating(subject: Subject):
    """The subject writes into a caller's buffer whose rows are further apart than they are long; that is looked at."""

    def call(x):
        columns = x.size(1) // 2
        out = torch.empty_strided((x.size(0), columns), (columns + 40, 1), dtype=x.dtype, device=x.device)
        subject.silu_and_mul(x, out=out)
        return {'activated': out}

    return call


def _judge_table(log: EvidenceLog, table: np.ndarray, wrong: np.ndarray, storage: Format, context) -> None:
    gates = storage.decode(ALL_BITS)
    judged = swiglu.judged_gates(gates, storage)
    steps = swiglu.silu_steps(ALL_BITS, table, storage)
    worst = int(steps[judged].max())
    finite = np.isfinite(gates)
    others = np.flatnonzero(~judged & finite & (steps > swiglu.ALLOWED_STEPS))
    log.add(Record('steps', 'silu of every covered gate against float64', compared=int(judged.sum()),
                   differing=int((steps[judged] > 0).sum()), worst=worst,
                   detail={'unit': 'steps', 'allowed': swiglu.ALLOWED_STEPS, 'off_outside_the_promise': len(others),
                           'first_of_them': [f'{storage.name} {gates[i]!r} -> 0x{table[i]:04x}' for i in others[:8]]}))
    if worst > swiglu.ALLOWED_STEPS:
        at = int(np.flatnonzero(judged & (steps > swiglu.ALLOWED_STEPS))[0])
        raise ContractBroken(
            Reason.BOUND, f'silu({gates[at]!r}) = 0x{table[at]:04x}: {int(steps[at])} steps from float64, allowed '
            f'{swiglu.ALLOWED_STEPS}\nreproduce: {context.reproduce}')
    log.add(Record('bound', 'silu of every gate, infinities and NaN too: float64 within the error of float32, rounded',
                   compared=len(wrong), differing=int(wrong.sum())))
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        reason = Reason.BOUND if np.isfinite(gates[wrong]).any() else Reason.NONFINITE_TABLE
        raise ContractBroken(
            reason, f'silu({gates[at]!r}) = 0x{table[at]:04x} is the first of {int(wrong.sum())} gates with a value '
            f'that float32 cannot give; float64 gives {swiglu.silu(gates[at])!r}\nreproduce: {context.reproduce}')
