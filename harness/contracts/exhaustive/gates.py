"""Part a: silu of all 2^16 gates, with up = 1.

Stock's table is held against float64, and the fused operator, each gate alone in its group, against stock's table.
"""
from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import torch

from harness.contracts.exhaustive.listed import compare_listed
from harness.contracts.exhaustive.plan import PATTERNS, Arrangement
from harness.contracts.exhaustive.results import PartResult, reason_for
from harness.contracts.exhaustive.sides import Sides
from harness.contracts.formats import QuantFormat
from harness.contracts.silu_and_mul import ALL_BITS, silu_table
from harness.evidence.bits import from_numpy_bits, storage_numpy, to_numpy_bits
from harness.evidence.verdicts import Reason
from harness.oracles import swiglu
from harness.oracles.quantisation import quantise
from harness.oracles.storage import Format
from harness.subjects.protocol import Subject

# scale_fmt None: a power of two would hide the product's bits.
CODES, SCALE_FMT = 'e4m3fn', None
# Bounds the memory of the oracles, which work in float64.
_INTERPRETED_ROWS = 128


class TableStock:
    """Stock as a table: its own silu by gate, then the oracles' product and quantisation.

    Stands in for stock where its quantiser would take a minute: lone gates in Triton's interpreter.
    """

    def __init__(self, table: np.ndarray, fmt: QuantFormat):
        self._table, self._fmt = table, fmt

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        bits = to_numpy_bits(gate_up)
        columns = bits.shape[1] // 2
        product = swiglu.product(self._table[bits[:, :columns]], bits[:, columns:], self._fmt.storage_format)
        return from_numpy_bits(product, gate_up.dtype, gate_up.device)

    def quant_fp8(self, x, group_size, dtype, trans_scale, scale_fmt):
        result = quantise(storage_numpy(x), group_size, self._fmt.codes, scale_fmt)
        return (from_numpy_bits(result.codes, dtype, x.device), torch.from_numpy(result.scales).to(x.device))


def every_gate(trial: Subject, stock: Subject, storage: Format, device: torch.device) -> PartResult:
    """All 2^16 gates of a storage format.

    BOUND if stock's silu leaves float64 by more than a step where that is promised, BYTES if the fused operator does
    not give what stock's silu and quantiser give. Gates outside the promise are counted, and listed where they are off.
    """
    started = time.perf_counter()
    fmt = QuantFormat(storage.name, CODES, SCALE_FMT)
    table = silu_table(stock, storage.name, device)
    sides = Sides(trial, stock, fmt, device)
    reference, rows = 'stock quant_fp8(silu_and_mul(x)), run on the same input', None
    if device.type == 'cpu':
        sides, rows = replace(sides, stock=TableStock(table, fmt)), _INTERPRETED_ROWS
        reference = 'stock silu_and_mul(x) as a table, then the quantiser\'s oracle'
    one = np.full(PATTERNS, storage.round(np.array(1.0)), np.uint16)
    differing, mismatch = compare_listed(sides, Arrangement.ALONE, ALL_BITS, one, rows=rows)
    facts, bound_holds = _against_float64(table, storage)
    reason = reason_for(differing, mismatch) or (None if bound_holds else Reason.BOUND)
    return PartResult(part='a', fmt=fmt, unit='gates', visited=PATTERNS, possible=PATTERNS,
                      differing_groups=differing, mismatch=mismatch, reason=reason,
                      seconds=time.perf_counter() - started, reference=reference, facts=facts)


def _against_float64(table: np.ndarray, storage: Format) -> tuple[dict, bool]:
    """Facts about stock's silu table (uint16 [65536]), and whether the promised gates are within the promised steps."""
    gates = storage.decode(ALL_BITS)
    judged = swiglu.judged_gates(gates, storage)
    steps = swiglu.silu_steps(ALL_BITS, table, storage)
    others = ~judged & np.isfinite(gates)
    off = np.flatnonzero(others & (steps > swiglu.ALLOWED_STEPS))
    facts = {'judged_gates': int(judged.sum()), 'judged_off_by_one_step': int((steps[judged] == 1).sum()),
             'worst_judged_steps': int(steps[judged].max()), 'other_finite_gates': int(others.sum()),
             'others_off': len(off), 'others_off_in': _runs(off, gates)}
    return facts, facts['worst_judged_steps'] <= swiglu.ALLOWED_STEPS


def _runs(bits: np.ndarray, values: np.ndarray) -> list[str]:
    """Ascending bit patterns -> '0xc2b2..0xc2bf (-89.0 .. -95.5)', one text for each run without a gap."""
    if not len(bits):
        return []
    ends = np.flatnonzero(np.diff(bits) != 1)
    first, last = bits[np.concatenate([[0], ends + 1])], bits[np.concatenate([ends, [len(bits) - 1]])]
    return [f'0x{low:04x}..0x{high:04x} ({float(values[low])!r} .. {float(values[high])!r})'
            for low, high in zip(first, last, strict=True)]
