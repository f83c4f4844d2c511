"""Part c: every (value, group maximum) pair through the quantiser behind the fused operator.

The gate is one with silu(gate) == 1, so that the product is the up value itself; stock's quantiser gets the same
values.
"""
from __future__ import annotations

import time

import numpy as np
import torch

from harness.contracts.exhaustive.mismatch import explain
from harness.contracts.exhaustive.pairs import BULK_ROWS, unit_gate
from harness.contracts.exhaustive.plan import COLUMNS, GROUPS_PER_ROW
from harness.contracts.exhaustive.results import PartResult, reason_for
from harness.contracts.exhaustive.samples import sample_maxima
from harness.contracts.exhaustive.sides import Progress, Sides, signed
from harness.contracts.exhaustive.value_groups import ValueGroups
from harness.contracts.formats import TORCH_STORAGE
from harness.evidence.differing_groups import new_tally, require_sight, tally_differing_groups

REFERENCE = 'stock quant_fp8 of the same values'


class ValueRun:
    """The fused operator's input for groups of values, and the comparison with stock's quantiser."""

    def __init__(self, sides: Sides, rows: int, largest: int):
        self.sides, self.rows = sides, rows
        self.groups = ValueGroups(largest, sides.device)
        self._bits = torch.empty(rows, 2 * COLUMNS, dtype=torch.int16, device=sides.device)
        self._bits[:, :COLUMNS] = int(signed(np.array(unit_gate(sides))))
        self.gate_up = self._bits.view(TORCH_STORAGE[sides.fmt.storage])
        self._keys = torch.arange(rows * GROUPS_PER_ROW, device=sides.device)
        self._sighted = False

    def write(self, numbers: torch.Tensor) -> torch.Tensor:
        """Put groups (numbers int64 [rows * 128]) into the input. Returns their values [rows, COLUMNS]."""
        values = self.groups.bits(numbers).view(self.rows, COLUMNS)
        self._bits[:, COLUMNS:] = values
        return values.view(TORCH_STORAGE[self.sides.fmt.storage])

    def visit(self, numbers: torch.Tensor, base: torch.Tensor, tally: torch.Tensor, only: int | None = None) -> None:
        """Compare the first `only` groups (None: all). A group's key is its place in `numbers` plus `base` (int64)."""
        values = self.write(numbers)
        stock = self.sides.quantised(values)
        if not self._sighted:
            require_sight(stock)
            self._sighted = True
        tally_differing_groups(self.sides.fused(self.gate_up), stock, self._keys, base, tally, only)


def every_value(sides: Sides, progress: Progress, rows: int = BULK_ROWS, largest: int | None = None) -> PartResult:
    """All values with all group maxima up to the bit pattern `largest`; up to infinity if None."""
    infinity = sides.fmt.storage_format.infinity
    run = ValueRun(sides, rows, infinity if largest is None else largest)
    per_chunk = rows * GROUPS_PER_ROW
    within = torch.arange(per_chunk, device=sides.device)
    run.visit(within.clamp(max=run.groups.count - 1), within[:1], new_tally(sides.device))  # compiles, off the clock
    tally = new_tally(sides.device)
    clock = _Clock(sides.device)
    for start in range(0, run.groups.count, per_chunk):
        # The last chunk is filled up with the last group, which is compared once.
        left = run.groups.count - start
        run.visit((within + start).clamp_(max=run.groups.count - 1), within[:1] + start, tally, min(left, per_chunk))
        progress(min(start + per_chunk, run.groups.count), run.groups.count)
    seconds = clock.stop()
    differing, first = tally.tolist()
    mismatch = None
    if differing:
        start = first // per_chunk * per_chunk
        run.write((within + start).clamp_(max=run.groups.count - 1))
        mismatch = explain(sides, run.gate_up, first - start)
    possible = ValueGroups(infinity, sides.device).pairs
    return _result(sides, run.groups.pairs, possible, differing, mismatch, seconds, {'rows_per_chunk': rows})


def sampled_values(sides: Sides, count: int, seed: int) -> PartResult:
    """`count` groups: the first and the last group of edge maxima, then random ones."""
    infinity = sides.fmt.storage_format.infinity
    started, rows = time.perf_counter(), -(-count // GROUPS_PER_ROW)
    run = ValueRun(sides, rows, infinity)
    edges = run.groups.of_maxima(sample_maxima(sides.fmt.storage_format, sides.fmt.fp8_format.maximum))
    rng = np.random.Generator(np.random.PCG64(seed))
    numbers = np.concatenate([edges, rng.integers(0, run.groups.count, size=max(count - len(edges), 0))])
    filled = torch.from_numpy(np.resize(numbers, rows * GROUPS_PER_ROW)).to(sides.device)
    tally = new_tally(sides.device)
    run.visit(filled, torch.zeros_like(filled[:1]), tally, len(numbers))
    differing, first = tally.tolist()
    mismatch = explain(sides, run.gate_up, first) if differing else None
    return _result(sides, run.groups.pairs_in(np.unique(numbers)), run.groups.pairs, differing, mismatch,
                   time.perf_counter() - started, {'seed': seed})


class _Clock:
    """GPU seconds between construction and `stop` on a GPU, wall seconds on the cpu lane."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == 'cuda'
        self._start = torch.cuda.Event(enable_timing=True) if self._cuda else time.perf_counter()
        if self._cuda:
            self._start.record()

    def stop(self) -> float:
        if not self._cuda:
            return time.perf_counter() - self._start
        end = torch.cuda.Event(enable_timing=True)
        end.record()
        end.synchronize()
        return self._start.elapsed_time(end) / 1e3


def _result(sides, visited, possible, differing, mismatch, seconds, facts) -> PartResult:
    return PartResult(part='c', fmt=sides.fmt, unit='(value, maximum) pairs', visited=visited, possible=possible,
                      differing_groups=differing, mismatch=mismatch, reason=reason_for(differing, mismatch),
                      seconds=seconds, reference=REFERENCE, facts=facts)
