"""Inputs of the expert-parallel activations: gate_up [E, M, 2N], of which the first mask[e] rows of expert e count."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts import silu_and_mul as activation
from harness.contracts import values
from harness.contracts.case import BOTH_LANES, SM90_ONLY, Case
from harness.contracts.formats import TORCH_STORAGE
from harness.contracts.layouts import with_gaps
from harness.evidence.bits import describe, from_numpy_bits
from harness.oracles.storage import FORMATS, Format


@dataclass(frozen=True)
class Rows:
    """One input.

    Attributes:
        name, why: of the case. shape: (E, M, N). mask: how many rows of each expert count.
        bits: (storage, (E * M, 2N)) -> uint16 values; ordinary ones if None.
        pitch: elements by which rows are further apart than they are long. integers: dtype of the mask.
        sm_count: SMs that the cpu lane reports. lanes: where the case is required.
    """

    name: str
    why: str
    shape: tuple[int, int, int]
    mask: tuple[int, ...]
    bits: Callable[[Format, tuple[int, int]], np.ndarray] | None = None
    pitch: int = 0
    integers: torch.dtype = torch.int32
    sm_count: int | None = None
    lanes: frozenset[str] = BOTH_LANES

    def case(self, operator: str, storage: str, suffix: str = '', **options) -> Case:
        if self.sm_count is not None:
            options['sm_count'] = self.sm_count
        return Case(operator, f'{storage}-{self.name}{suffix}', self.why, lambda device: self.build(storage, device),
                    self.lanes, {'storage': storage, **options})

    def build(self, storage: str, device: torch.device) -> dict[str, torch.Tensor]:
        """gate_up [E, M, 2N] in storage, NaN in rows that do not count, and mask [E]."""
        experts, rows, columns = self.shape
        matrix = (experts * rows, 2 * columns)
        make = self.bits or (lambda fmt, shape: values.noise(fmt, f'ep/{shape}', shape))
        bits = make(FORMATS[storage], matrix)
        bits = bits.reshape(experts, rows, 2 * columns).copy()
        bits[np.arange(rows)[None] >= np.array(self.mask)[:, None]] = 0x7FFF
        gate_up = from_numpy_bits(bits, TORCH_STORAGE[storage], device)
        if self.pitch:
            gate_up = with_gaps(gate_up, {1: 1, 2: self.pitch})
        return {'gate_up': gate_up, 'mask': torch.tensor(self.mask, dtype=self.integers, device=device)}


def _every_gate(storage: Format, shape: tuple[int, int]) -> np.ndarray:
    return activation.gates_and_ups(np.resize(activation.ALL_BITS, (shape[0], shape[1] // 2)),
                                    values.raw('ep/ups', shape[0] * shape[1] // 2).reshape(shape[0], -1) & 0xBFFF)


# N of whole groups, as a quantiser behind needs it.
WHOLE_GROUPS = (
    Rows('mixed', 'experts with no row, one, some, and all', (4, 6, 128), (0, 1, 3, 6)),
    Rows('decode', 'one row an expert, some of which count', (8, 1, 256), (1, 0, 1, 1, 0, 0, 0, 1)),
    Rows('five_groups', 'N past a block, the last block mostly masked', (3, 9, 640), (9, 4, 0)),
    Rows('every_gate', 'each of the 2^16 gates, infinities and NaN included', (2, 32, 1024), (32, 32), _every_gate),
    Rows('no_row_counts', 'a rank without tokens: nothing is written', (3, 5, 128), (0, 0, 0)),
    # Rows past the first expert's are the second's, of which one must not be written; past the last is a guard band.
    Rows('mask_past_the_rows', 'a count larger than there are rows', (3, 5, 128), (7, 1, 6)),
    Rows('mask_int64', 'counts of 64 bits', (2, 5, 128), (3, 5), integers=torch.int64),
    Rows('row_loop', 'more rows than programs: the strided row loop', (2, 40, 128), (37, 40), sm_count=1),
    Rows('no_rows', 'M = 0: room for no row of any expert', (3, 0, 128), (0, 0, 0)),
    Rows('no_experts', 'E = 0: a rank without experts', (0, 5, 128), ()),
    Rows('one_expert', 'E = 1', (1, 3, 128), (2, )),
    Rows('many_experts', 'a rank of 32 experts and many rows', (32, 256, 512), tuple(range(0, 256, 8)),
         lanes=SM90_ONLY),
)
OTHERS = (
    Rows('columns_100', 'N no power of two', (2, 5, 100), (5, 2)),
    Rows('pitched', 'rows and experts further apart than they are long', (3, 5, 256), (5, 0, 2), pitch=24),
)


def changed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Other values and counts for the replay of a graph: more rows count where few did, and the other way round."""
    rows = tensors['gate_up'].size(1)
    gate_up = tensors['gate_up']
    other = torch.empty_strided(gate_up.shape, gate_up.stride(), dtype=gate_up.dtype, device=gate_up.device)
    other.copy_(gate_up.nan_to_num(nan=0.5).roll(1, -1))
    return {'gate_up': other, 'mask': (rows - tensors['mask']).clamp(min=0)}


def past_the_mask(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """bool [E * M]: rows that do not count."""
    rows = torch.arange(tensors['gate_up'].size(1), device=tensors['mask'].device)
    return (rows[None] >= tensors['mask'][:, None]).reshape(-1)


def inputs_at(tensors: dict[str, torch.Tensor], group: int):
    """For explanations: the gate and up of an output [E * M, ...] at (row, column)."""
    gate_up = tensors['gate_up'].reshape(-1, tensors['gate_up'].size(2))
    columns = gate_up.size(1) // 2

    def lines(name: str, index: tuple[int, ...]) -> list[str]:
        row, column = index if name != 'scales' else (index[0], index[1] * group)
        return [f'gate     {describe(gate_up, (row, column))}',
                f'up       {describe(gate_up, (row, columns + column))}',
                f'expert {row // tensors["gate_up"].size(1)}, counts {tensors["mask"].tolist()}']

    return lines
