"""silu_and_mul_quant (fused): gate_up [M, 2N] -> codes [M, N] and scales [M, N / 128].

Promise (bytes): codes and scales equal stock's quant_fp8(silu_and_mul(gate_up)) of the same install in every bit, for
every input, NaN and infinities included; two roundings. Comparator: that composition; and independently the oracle
(IEEE product of stock's silu table with up, then the quantiser's oracle), so that a reference gone wrong shows.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.contracts import quant_fp8 as quantiser
from harness.contracts import silu_and_mul as activation
from harness.contracts import values
from harness.contracts.case import Case
from harness.contracts.formats import EVERY_FORMAT, TORCH_STORAGE, TWO_FORMATS, QuantFormat
from harness.contracts.setting import Setting
from harness.evidence import trial
from harness.evidence.bits import describe, from_numpy_bits, to_numpy_bits
from harness.evidence.compare import compare_bytes
from harness.evidence.log import EvidenceLog
from harness.oracles import swiglu
from harness.oracles.storage import FORMATS
from harness.subjects.protocol import Subject

OPERATOR = 'silu_and_mul_quant'
GROUP = values.GROUP
# silu of this gate rounds to exactly 1 in both storage formats, a quarter of a step away from the next value at the
# nearest, so that the product is the up value itself and the quantiser's catalogue reaches the fused kernel unchanged.
GATE_OF_ONE = {'bf16': 1.28125, 'fp16': 1.2783203125}


def _through_one(fmt: QuantFormat, bits: np.ndarray) -> np.ndarray:
    gate = fmt.storage_format.round(np.array(GATE_OF_ONE[fmt.storage]))
    return activation.gates_and_ups(np.full_like(bits, gate), bits)


def _every_gate(fmt: QuantFormat) -> np.ndarray:
    storage = fmt.storage_format
    return activation.gates_and_ups(activation.ALL_BITS.reshape(32, 2048),
                                    np.full((32, 2048), storage.round(np.array(1.0)), np.uint16))


def _noise(fmt: QuantFormat, rows: int, groups: int) -> np.ndarray:
    return values.noise(fmt.storage_format, f'fused/{rows}x{groups}', (rows, 2 * groups * GROUP), scale=3.0)


def _alone(fmt: QuantFormat, gates: np.ndarray, ups: np.ndarray, per_row: int = 16) -> np.ndarray:
    """Each pair alone in its group: the scale then shows every bit of the product, which a code would hide."""
    count = -(-len(gates) // per_row) * per_row
    gates, ups = np.resize(gates, count), np.resize(ups, count)
    halves = np.zeros((2, count, GROUP), np.uint16)
    place = np.arange(count) * 53 % GROUP
    halves[0, np.arange(count), place], halves[1, np.arange(count), place] = gates, ups
    return activation.gates_and_ups(*halves.reshape(2, -1, per_row * GROUP))


def _alone_random(fmt: QuantFormat) -> np.ndarray:
    gates = values.noise(fmt.storage_format, 'alone/gates', (1, 256), scale=3.0).reshape(-1)
    ups = values.noise(fmt.storage_format, 'alone/ups', (1, 256), scale=3.0).reshape(-1)
    return _alone(fmt, gates, ups)


def _alone_edges(fmt: QuantFormat) -> np.ndarray:
    gate = activation.edge_gates(fmt.storage_format)
    ups = fmt.storage_format.round(np.array([1.0, -3.0, 448.0]))
    return _alone(fmt, np.repeat(gate, len(ups)), np.tile(ups, len(gate)))


def _alone_close_calls(fmt: QuantFormat) -> np.ndarray:
    """Gates whose silu lies so near a rounding edge that another float32 form of silu can fall on its other side."""
    storage = fmt.storage_format
    gates = storage.decode(activation.ALL_BITS)
    gates = gates[np.isfinite(gates)]
    truth, error = swiglu.silu(gates), swiglu.float32_error(gates)
    # (truth + error would make +0 of the -0 of large negative gates.)
    close = storage.round(gates[(truth != 0) & (storage.round(truth - error) != storage.round(truth + error))])
    return _alone(fmt, close, np.full_like(close, storage.round(np.array(1.0))))


_GATE_PATTERNS: dict[str, tuple[str, Callable[[QuantFormat], np.ndarray]]] = {
    'every_gate': ('each of the 2^16 gates, infinities and NaN included', _every_gate),
    'edge_pairs': ('gates where silu changes its nature with ups that do', lambda f: activation.edge_pairs(
        f.storage_format)),
    'overflow': ('products at both sides of the end of the storage range', lambda f: activation.overflowing_products(
        f.storage_format)),
    'alone_random': ('pairs alone in their group: one rounding instead of two shows in the scale', _alone_random),
    'alone_edges': ('edge gates alone in their group', _alone_edges),
    'alone_close_calls': ('gates whose silu lies at a rounding edge, alone in their group', _alone_close_calls),
    'ordinary': ('ordinary values: one rounding instead of two moves a code in thirty', lambda f: _noise(f, 12, 4)),
}


def _catalogue() -> tuple[Case, ...]:
    def case(fmt, name, why, bits, **options):
        def build(device):
            return from_numpy_bits(bits(fmt), TORCH_STORAGE[fmt.storage], device)

        return Case(OPERATOR, f'{fmt.id}-{name}', why, build, options={**fmt.options(), **options})

    cases = list(quantiser.make_cases(OPERATOR, _through_one))
    for fmt in EVERY_FORMAT:
        cases += [case(fmt, name, why, bits) for name, (why, bits) in _GATE_PATTERNS.items()]
    for fmt in TWO_FORMATS:
        for scales_by in ('row', 'column', 'neither'):
            why = f'codes and scales given by the caller, inside larger buffers; scales adjacent by {scales_by}'
            cases.append(case(fmt, f'preallocated_by_{scales_by}', why, lambda f: _noise(f, 5, 3),
                              preallocated=scales_by))
    return tuple(cases)


CASES = _catalogue()


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    gate_up = case.build(setting.device)
    rows, columns = gate_up.size(0), gate_up.size(1) // 2
    arguments = quantiser.call_arguments(case.options)

    def operator(x):
        codes, scales = call(subject.silu_and_mul_quant, case.options, x)
        return {'codes': codes, 'scales': scales}

    context = setting.context(GROUP, _inputs_at(gate_up, columns))
    if 'spots' in case.options:
        trial.run_rows_of_many(log, f'{subject.name} silu_and_mul_quant', operator, gate_up, case.options['spots'],
                               context)
        return
    with setting.few_sms(case.options):
        found = trial.run_by_row(log, f'{subject.name} silu_and_mul_quant', operator, gate_up, context)
        if rows:
            activated = setting.stock.silu_and_mul(gate_up)
            codes, scales = setting.stock.quant_fp8(activated, GROUP, **arguments)
            what = f'{subject.name} against stock quant_fp8(silu_and_mul(x))'
            compare_bytes(log, f'scales: {what}', 'scales', found['scales'], scales, context)
            compare_bytes(log, f'codes: {what}', 'codes', found['codes'], codes, context)
    if 'preallocated' not in case.options:
        like = torch.empty(rows, columns, device='meta')
        quantiser.judge_layout(log, found, like, arguments, context)
    quantiser.judge_against_oracle(log, found, _activated(gate_up, case.options['storage'], setting), case.options,
                                   setting, context)


def call(function: Callable, options: dict, gate_up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`function`, a fused operator, as a case with these options calls it: (codes, scales).

    With the option 'preallocated' these are buffers of the caller's, inside larger ones, whatever the function returns.
    """
    arguments = quantiser.call_arguments(options)
    if 'preallocated' not in options:
        return function(gate_up, GROUP, **arguments)
    rows, columns = gate_up.size(0), gate_up.size(1) // 2
    groups = columns // GROUP
    stride = {'row': (groups + 5, 1), 'column': (1, rows + 3), 'neither': (2 * groups + 5, 2)}[options['preallocated']]
    out = torch.empty_strided((rows, columns), (columns + 64, 1), dtype=arguments['dtype'], device=gate_up.device)
    scales = torch.empty_strided((rows, groups), stride, dtype=torch.float32, device=gate_up.device)
    function(gate_up, GROUP, **arguments, out=out, scales=scales)
    return out, scales


def _activated(gate_up: torch.Tensor, storage: str, setting: Setting) -> np.ndarray:
    """float32 [M, N]: the oracle's product of stock's silu table with up."""
    table = activation.trusted_table(setting.stock, storage, setting.device)
    bits = to_numpy_bits(gate_up)
    columns = bits.shape[1] // 2
    product = swiglu.product(table[bits[:, :columns]], bits[:, columns:], FORMATS[storage])
    return FORMATS[storage].decode(product).astype(np.float32)


def _inputs_at(gate_up: torch.Tensor, columns: int):
    def lines(name, index):
        row, column = index if name == 'codes' else (index[0], index[1] * GROUP)
        if name == 'scales':  # the element that decides a scale is the group's largest product
            group = slice(column, column + GROUP)
            gates, ups = gate_up[row].float()[:columns][group], gate_up[row].float()[columns:][group]
            column += int((torch.nn.functional.silu(gates) * ups).abs().nan_to_num(0).argmax())
        return [f'gate     {describe(gate_up, (row, column))}   at row {row}, column {column}',
                f'up       {describe(gate_up, (row, columns + column))}']

    return lines

