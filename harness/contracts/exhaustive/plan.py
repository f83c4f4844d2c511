"""Which pairs a sweep visits and where each of them stands: arithmetic only, no tensor.

A sweep visits every (gate, up) pair of two ranges of bit patterns. It is cut into chunks that all have the same shape,
so that one buffer, and on a GPU one CUDA graph, serves them all.
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

PATTERNS = 65536
EVERY_PATTERN = range(PATTERNS)
GROUP = 128
# Every proof uses rows of so many groups: enough for both sides to use whole programs, and one geometry for all parts,
# so that one build of each kernel is what all of them speak of.
GROUPS_PER_ROW = 128
COLUMNS = GROUPS_PER_ROW * GROUP


class Arrangement(Enum):
    """How many of a group's 128 elements are pairs of the sweep, and what the others are."""

    ALONE = 1  # 127 zeros: the scale shows every bit of the pair's product. Group j of a row holds it at position j
    WITH_PARTNER = 64  # 64 copies of a partner: the group's maximum is chosen, and the pairs stay below it
    PACKED = 128

    @property
    def pairs_per_group(self) -> int:
        return self.value

    @property
    def slots_per_row(self) -> int:
        """Pairs in one row of the input."""
        return GROUPS_PER_ROW * self.value


@dataclass(frozen=True)
class Chunk:
    """The pairs that are visited together, from the bit patterns `gate` and `up` on."""

    gate: int
    up: int


@dataclass(frozen=True)
class Sweep:
    """The chunks of a sweep over gates x ups. A row of a chunk never holds two gates.

    Attributes:
        arrangement: how the pairs are grouped.
        gates, ups: ranges (step 1) of bit patterns.
        gates_per_chunk, ups_per_chunk: shape of a chunk; divide the lengths of the ranges.
    """

    arrangement: Arrangement
    gates: range
    ups: range
    gates_per_chunk: int
    ups_per_chunk: int

    def __post_init__(self):
        for name, whole, part in (('gates', self.gates, self.gates_per_chunk), ('ups', self.ups, self.ups_per_chunk)):
            if not len(whole) or part < 1 or len(whole) % part:
                raise ValueError(f'Sweep.{name}_per_chunk: expected a divisor of {len(whole)}, found {part}')
        if self.ups_per_chunk % self.arrangement.slots_per_row:
            raise ValueError(f'Sweep.ups_per_chunk: expected a multiple of {self.arrangement.slots_per_row} for '
                             f'{self.arrangement.name}, found {self.ups_per_chunk}')

    @property
    def pairs(self) -> int:
        return len(self.gates) * len(self.ups)

    @property
    def pairs_per_chunk(self) -> int:
        return self.gates_per_chunk * self.ups_per_chunk

    @property
    def rows(self) -> int:
        """Rows of a chunk's input."""
        return self.pairs_per_chunk // self.arrangement.slots_per_row

    @property
    def rows_per_gate(self) -> int:
        return self.ups_per_chunk // self.arrangement.slots_per_row

    @property
    def gate_steps(self) -> int:
        """Chunks that differ in their gates alone."""
        return len(self.gates) // self.gates_per_chunk

    def up_blocks(self) -> range:
        """First up of every block of ups; each block is visited with all gates before the next."""
        return range(self.ups.start, self.ups.stop, self.ups_per_chunk)

    def chunks(self) -> Iterator[Chunk]:
        """Every chunk, in the order in which a run visits them."""
        for up in self.up_blocks():
            for gate in range(self.gates.start, self.gates.stop, self.gates_per_chunk):
                yield Chunk(gate, up)

    def locate(self, gate: int, up: int) -> tuple[Chunk, int]:
        """The chunk that visits a pair, and the flat index of its group there."""
        chunk = Chunk(gate - (gate - self.gates.start) % self.gates_per_chunk,
                      up - (up - self.ups.start) % self.ups_per_chunk)
        slot = (gate - chunk.gate) * self.ups_per_chunk + (up - chunk.up)
        return chunk, slot // self.arrangement.pairs_per_group


def plan_sweep(arrangement: Arrangement, rows: int, gates: range = EVERY_PATTERN,
               ups: range = EVERY_PATTERN) -> Sweep:
    """A sweep whose chunks have at most `rows` rows: as many ups as fit, then several gates.

    Raises:
        ValueError: a range is empty, the ups do not fill whole rows, or not one row is allowed.
    """
    slots = arrangement.slots_per_row
    if not len(gates) or not len(ups) or len(ups) % slots:
        raise ValueError(f'plan_sweep: expected some gates, and ups in a multiple of {slots}, found {gates} and {ups}')
    if rows < 1:
        raise ValueError(f'plan_sweep: rows: expected at least 1, found {rows}')
    rows_per_gate = _largest_divisor(len(ups) // slots, rows)
    return Sweep(arrangement, gates, ups, _largest_divisor(len(gates), rows // rows_per_gate), rows_per_gate * slots)


def _largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    divisors = {d for low in range(1, math.isqrt(number) + 1) if number % low == 0 for d in (low, number // low)}
    return max(d for d in divisors if d <= limit)


def pair_key(gate: int, up: int) -> int:
    """A number for a pair that sorts by gate, then by up."""
    return gate * PATTERNS + up


def pair_of_key(key: int) -> tuple[int, int]:
    """(gate, up) of `pair_key`."""
    return divmod(key, PATTERNS)
