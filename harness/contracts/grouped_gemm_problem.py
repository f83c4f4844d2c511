"""One problem for a grouped GEMM: codes, scales, routing metadata, and the memory in which they lie.

Everything that a right kernel must not use is NaN: weights, scales and biases of experts without routes, rows of `a`
that belong to no local expert.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from harness.contracts import grouped_gemm_values as data
from harness.contracts.formats import TORCH_CODES
from harness.oracles import routing
from harness.oracles.grouped_gemm import MMA, WGMMA, Instruction

OUT_DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
# What a row that the kernel does not own holds before and after; no sum of the catalogue gives it.
SENTINEL = -77.5


@dataclass(frozen=True)
class Tile:
    """A launch configuration.

    Attributes:
        block_m, block_n: of the tile. transposed: whether the kernel computes b times a, and turns the result over.
    """

    block_m: int
    block_n: int = 128
    transposed: bool = False

    @property
    def id(self) -> str:
        return f'm{self.block_m}n{self.block_n}{"t" if self.transposed else ""}'

    @property
    def instruction(self) -> Instruction:
        """What the dense and the compact kernel of 0.18.0 compile to on sm90 (Triton 3.4 to 3.8)."""
        return MMA if self.block_m < 64 and not self.transposed else WGMMA


@dataclass(frozen=True)
class Problem:
    """What the operator is asked, without the numbers.

    Attributes:
        ids: () -> int64 [M, top_k], experts of the whole layer.
        experts, local, offset: experts of the layer, and the slice [offset, offset + local) that is here.
        role: 'gate_up' (row r of `a` is token r, outputs stand in the order of sorted routes) or 'down' (`a` stands in
            that order, outputs by route).
        k, n, group_k, group_n: sizes, and elements per scale along them.
        group_a: elements of a per scale along K, a multiple of group_k; None is group_k.
        values: name of a pattern of harness/contracts/grouped_gemm_values.py.
        codes: 'e4m3fn' or 'e5m2'. out: 'fp32', 'bf16' or 'fp16'. bias: whether there is one.
        layout: name of a layout below.
        order: 'ascending' or 'descending', of the routes inside an expert, which atomics decide.
        seed: distinguishes problems that are otherwise equal.
    """

    ids: Callable[[], np.ndarray]
    experts: int
    role: str
    values: str
    codes: str = 'e4m3fn'
    out: str = 'fp32'
    k: int = 256
    n: int = 256
    group_k: int = 128
    group_n: int = 128
    group_a: int | None = None
    local: int | None = None
    offset: int = 0
    bias: bool = False
    layout: str = 'plain'
    order: str = 'ascending'
    seed: str = ''

    @property
    def local_experts(self) -> int:
        return self.experts if self.local is None else self.local

    @property
    def groups_to_a_scale(self) -> int:
        """How many K groups of b one scale of a stands for."""
        return (self.group_a or self.group_k) // self.group_k

    @property
    def gate_up(self) -> bool:
        return self.role == 'gate_up'

    @property
    def exact(self) -> bool:
        """Whether every partial sum is exact, so that every right kernel gives the same bits."""
        return self.values in ('exact', 'one_hot')

    @property
    def bits(self) -> bool:
        """Whether scales are powers of two, so that a running accumulator's bits can be emulated."""
        return self.values.startswith(('bits', 'probe'))

    def build(self, tile: Tile, device: torch.device) -> Built:
        """The tensors, with routes cut into blocks of the tile's block_m."""
        ids = self.ids()
        by_expert = routing.sorted_routes(ids, self.experts)
        if self.order == 'descending':
            by_expert = _descending(by_expert)
        blocks = routing.route_blocks(by_expert, self.offset, self.local_experts, tile.block_m)
        room = routing.most_blocks(ids.size, self.local_experts, tile.block_m)
        tensors = data.PATTERNS[self.values](self, ids.shape, by_expert)
        for name in ('a', 'b'):
            tensors[name] = tensors[name].view(np.int8)
        tensors |= {'sorted_idx': _filled(by_expert.routes, ids.size),
                    'exp_start': by_expert.start, 'exp_end': by_expert.end, 'block_end': blocks.end,
                    'block_expert_ids': _filled(blocks.experts, room), 'block_offsets': _filled(blocks.offsets, room)}
        on_device = {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in tensors.items()}
        for name in ('a', 'b'):
            on_device[name] = on_device[name].view(TORCH_CODES[self.codes])
        if self.bias:
            on_device['bias'] = on_device['bias'].to(OUT_DTYPES[self.out])
        return Built(self, tile, ids.shape[1], ids.size, by_expert, LAYOUTS[self.layout](on_device))

    def rerouted(self) -> Problem:
        """Another problem whose tensors have the same shapes: other numbers, other experts active, as many routes."""
        first = self.ids()
        there = np.unique(first[(first >= self.offset) & (first < self.offset + self.local_experts)])
        spread = len(there) < min(first.size, self.local_experts)

        def ids() -> np.ndarray:
            if spread:
                return self.offset + (np.arange(first.size) % self.local_experts).reshape(first.shape)
            return np.full_like(first, self.offset + self.local_experts - 1)

        return replace(self, ids=ids, seed=self.seed + '/rerouted')


@dataclass(frozen=True)
class Built:
    """A problem in memory.

    Attributes:
        problem, tile, top_k, routes: what it is; routes is M * top_k, the rows of the output.
        by_expert: the oracle's sorted routes.
        tensors: a, a_scale, b, b_scale, bias (if any), sorted_idx, exp_start, exp_end, block_end, block_expert_ids,
            block_offsets.
    """

    problem: Problem
    tile: Tile
    top_k: int
    routes: int
    by_expert: routing.SortedRoutes
    tensors: dict[str, torch.Tensor]

    def rows(self, local_expert: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of `a` and of the output that belong to a local expert, int64, in the same order."""
        expert = self.problem.offset + local_expert
        positions = np.arange(self.by_expert.start[expert], self.by_expert.end[expert])
        routes = self.by_expert.of(expert).astype(np.int64)
        return (routes // self.top_k, positions) if self.problem.gate_up else (positions, routes)

    def active(self) -> list[int]:
        """Local experts that have routes."""
        return [e for e in range(self.problem.local_experts) if len(self.rows(e)[0])]


def _filled(entries: np.ndarray, length: int) -> np.ndarray:
    """Room for `length` entries, the unused ones a number that would show."""
    return np.concatenate([entries, np.full(length - len(entries), -1, np.int32)]).astype(np.int32)


def _descending(by_expert: routing.SortedRoutes) -> routing.SortedRoutes:
    expert_of = np.repeat(np.arange(len(by_expert.start)), by_expert.end - by_expert.start)
    return replace(by_expert, routes=by_expert.routes[np.lexsort((-by_expert.routes, expert_of))])


def _wider(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """The same matrix or stack in memory whose rows are `gap` elements further apart."""
    wide = torch.empty((*tensor.shape[:-1], tensor.size(-1) + gap), dtype=tensor.dtype, device=tensor.device)
    return wide[..., :tensor.size(-1)].copy_(tensor)


def _column_major(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _pitched(tensors: dict) -> dict:
    return tensors | {'a': _wider(tensors['a'], 32), 'b': _wider(tensors['b'], 64)}


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor in memory in which no two elements are neighbours, nor any two rows or experts."""
    roomy = torch.empty(tuple(2 * size for size in tensor.shape), dtype=tensor.dtype, device=tensor.device)
    roomy.view(torch.uint8).fill_(0x7F)
    return roomy[tuple(slice(None, None, 2) for _ in tensor.shape)].copy_(tensor)


def _strided(tensors: dict) -> dict:
    return tensors | {name: _apart(tensors[name]) for name in ('a', 'a_scale', 'b', 'b_scale', 'bias')
                      if name in tensors}


def _transposed(tensors: dict) -> dict:
    return tensors | {name: _column_major(tensors[name]) for name in ('b', 'a_scale', 'b_scale')}


# Name -> tensors in another memory layout, the same values.
LAYOUTS: dict[str, Callable[[dict], dict]] = {'plain': dict, 'pitched': _pitched, 'transposed': _transposed,
                                              'strided': _strided}


def strides_of_out(layout: str, columns: int) -> tuple[int, int]:
    """How the output of a layout lies in memory."""
    return {'pitched': (columns + 24, 1), 'strided': (2 * columns + 24, 2)}.get(layout, (columns, 1))
