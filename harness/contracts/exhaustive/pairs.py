"""Parts b, floor and packed: (gate, up) pairs, fused against stock's composition.

    b       each pair alone in its group: the float32 scale shows every bit of the product
    floor   beside partners that set the group's maximum: products too small to set a scale of their own
    packed  128 pairs to a group: one gate with consecutive ups
"""
from __future__ import annotations

import time

import numpy as np

from harness.contracts.exhaustive.listed import compare_listed
from harness.contracts.exhaustive.mismatch import Mismatch
from harness.contracts.exhaustive.plan import EVERY_PATTERN, PATTERNS, Arrangement, plan_sweep
from harness.contracts.exhaustive.results import PartResult, reason_for
from harness.contracts.exhaustive.samples import partner_maxima, sample_groups, sample_pairs
from harness.contracts.exhaustive.sides import Progress, Sides
from harness.contracts.exhaustive.sweep import SweepRun
from harness.contracts.silu_and_mul import silu_table

PARTS = {'b': Arrangement.ALONE, 'floor': Arrangement.WITH_PARTNER, 'packed': Arrangement.PACKED}
REFERENCE = 'stock quant_fp8(silu_and_mul(x)), run on the same input'
# 256 MiB of input: large enough to hide launches, small beside a GPU's memory.
BULK_ROWS = 4096
PARTNERS = 16


class NoUnitGate(Exception):
    """Stock's silu is exactly 1 for no gate: values cannot be sent through the activation unchanged."""


def unit_gate(sides: Sides) -> int:
    """Bits of a gate whose silu is exactly 1 in stock, so that the product is the up value itself."""
    storage = sides.fmt.storage_format
    table = silu_table(sides.stock, storage.name, sides.device)
    gates = np.flatnonzero(table == storage.round(np.array(1.0)))
    if not len(gates):
        raise NoUnitGate(f'{storage.name}: expected a gate with silu(gate) == 1 among all 2^16, found none')
    return int(gates[0])


def every_pair(sides: Sides, part: str, progress: Progress, rows: int = BULK_ROWS, gates: range = EVERY_PATTERN,
               ups: range = EVERY_PATTERN) -> PartResult:
    """All pairs of two ranges of bit patterns, in chunks of at most `rows` rows of 128 groups."""
    sweep = plan_sweep(PARTS[part], rows, gates, ups)
    run = SweepRun(sides, sweep)
    partners = _partners(sides, part)
    differing, seconds, mismatch, first = 0, 0.0, None, None
    for number, partner in enumerate(partners):
        if partner:
            run.buffer.set_partner(*partner)
        tally = run.run(lambda done, total, n=number: progress(n * total + done, len(partners) * total))
        seconds += tally.seconds
        if tally.first and not differing:
            first, mismatch = tally.first, run.explain(tally.first)
        differing += tally.differing
    facts = {'rows_per_chunk': sweep.rows, 'first_group_from_pair': first}
    return _result(sides, part, sweep.pairs, partners, differing, mismatch, seconds, facts)


def sampled_pairs(sides: Sides, part: str, count: int, seed: int, gates: range = EVERY_PATTERN) -> PartResult:
    """A sample with every edge in it: `count` pairs with gates of a range (b), or `count` groups (floor, packed)."""
    started, storage = time.perf_counter(), sides.fmt.storage_format
    if PARTS[part] is Arrangement.ALONE:
        gate_bits, up_bits = sample_pairs(storage, gates, count, seed)
    else:
        gate_bits, up_bits = sample_groups(storage, PARTS[part], gates, count, seed)
    partners = _partners(sides, part)
    partners = [partners[0], partners[-1]] if len(partners) > 1 else partners
    differing, mismatch = 0, None
    for partner in partners:
        found, named = compare_listed(sides, PARTS[part], gate_bits, up_bits, partner)
        differing, mismatch = differing + found, mismatch or named
    visited = len(set(zip(gate_bits.tolist(), up_bits.tolist(), strict=True)))
    return _result(sides, part, visited, partners, differing, mismatch, time.perf_counter() - started, {'seed': seed})


def one_pair(sides: Sides, gate: int, up: int) -> PartResult:
    """Part b for a single pair, given by its bits."""
    started = time.perf_counter()
    differing, mismatch = compare_listed(sides, Arrangement.ALONE, np.array([gate], np.uint16),
                                         np.array([up], np.uint16))
    return _result(sides, 'b', 1, [None], differing, mismatch, time.perf_counter() - started, {})


def _partners(sides: Sides, part: str) -> list[tuple[int, int] | None]:
    if PARTS[part] is not Arrangement.WITH_PARTNER:
        return [None]
    gate = unit_gate(sides)
    return [(gate, int(up)) for up in partner_maxima(sides.fmt.storage_format, PARTNERS)]


def _result(sides: Sides, part: str, visited: int, partners: list, differing: int, mismatch: Mismatch | None,
            seconds: float, facts: dict) -> PartResult:
    if partners[0]:
        facts['partner_maxima'] = [up for _, up in partners]
    return PartResult(part=part, fmt=sides.fmt, unit='pairs', visited=visited, possible=PATTERNS**2,
                      differing_groups=differing, mismatch=mismatch, reason=reason_for(differing, mismatch),
                      seconds=seconds, reference=REFERENCE, facts=facts)
