"""The routings that sorted routes and route blocks are tried with, each with the reason why it is there."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from harness.contracts import values
from harness.contracts.case import BOTH_LANES, SM90_ONLY, Case

# A subject's own ways to the same metadata (see Subject.sorted_routes); None lets it choose by shape.
PARALLEL, SINGLE_CTA = 'parallel', 'single_cta'
TORCH_IDS = {'int32': torch.int32, 'int64': torch.int64, 'float32': torch.float32}
# The most routes and the most experts that stock's dispatch gives to its single CTA.
SINGLE_CTA_ROUTES = SINGLE_CTA_EXPERTS = 2048


@dataclass(frozen=True)
class Routing:
    """One routing.

    Attributes:
        name, why: of the case.
        experts: number of experts of the whole layer.
        ids: () -> int64 [M, top_k].
        dtype: of the ids, a key of TORCH_IDS.
        layout: 'rows'; 'columns', tokens adjacent; or 'pitched', rows further apart than they are long.
        lanes: where the case is required. slow: interpreting it program by program takes seconds, so that the cpu
            lane tries it on the single CTA only.
        block_m, offset, local: how the routes are cut into blocks; local None is every expert.
        kind: 'routed'; 'out_of_range', ids that are no expert's; or 'refused', input that must be refused.
        names: the argument that a refusal must name.
    """

    name: str
    why: str
    experts: int
    ids: Callable[[], np.ndarray]
    dtype: str = 'int64'
    layout: str = 'rows'
    lanes: frozenset[str] = BOTH_LANES
    slow: bool = False
    block_m: int = 64
    offset: int = 0
    local: int | None = None
    kind: str = 'routed'
    names: str = ''

    def build(self, device: torch.device) -> torch.Tensor:
        """The expert ids [M, top_k] in the dtype and layout asked for."""
        ids = torch.from_numpy(self.ids()).to(device=device, dtype=TORCH_IDS[self.dtype])
        if self.layout == 'columns':
            return ids.T.contiguous().T
        if self.layout == 'pitched':
            return torch.cat([ids, ids + self.experts], dim=1)[:, :ids.size(1)]
        return ids

    def case(self, operator: str, preparation: str | None) -> Case:
        lanes = SM90_ONLY if self.slow and preparation != SINGLE_CTA else self.lanes
        local = self.experts if self.local is None else self.local
        options = {'preparation': preparation, 'experts': self.experts, 'kind': self.kind, 'names': self.names,
                   'block_m': self.block_m, 'offset': self.offset, 'local': local}
        return Case(operator, f'{preparation or "dispatch"}-{self.name}', self.why, self.build, lanes, options)


def distinct(tokens: int, top_k: int, experts: int, first: int = 0) -> Callable[[], np.ndarray]:
    """`top_k` different experts of [first, first + experts) for every token, as a router's top-k gives them."""

    def ids() -> np.ndarray:
        scores = values.raw(f'routing/{tokens}x{top_k}of{experts}', tokens * experts).reshape(tokens, experts)
        return first + np.argsort(scores, axis=1, kind='stable')[:, :top_k].astype(np.int64)

    return ids


def counted(counts: list[int]) -> Callable[[], np.ndarray]:
    """counts[e] routes for expert e, top-1, in an order that mixes the experts."""

    def ids() -> np.ndarray:
        by_expert = np.repeat(np.arange(len(counts)), counts)
        order = np.argsort(values.raw(f'routing/{counts}', len(by_expert)), kind='stable')
        return by_expert[order].reshape(-1, 1)

    return ids


def constant(tokens: int, top_k: int, expert: int) -> Callable[[], np.ndarray]:
    """Every route on one expert."""
    return lambda: np.full((tokens, top_k), expert, np.int64)


def repeated(tokens: int, top_k: int, experts: int) -> Callable[[], np.ndarray]:
    """Every token names one expert several times, which no router does but nothing forbids."""
    return lambda: distinct(tokens, top_k, experts)()[:, [0, 0, *range(1, top_k - 2), 0]]


def with_wrong_ids(wrong: int) -> Callable[[], np.ndarray]:
    """Ids below 8, three of them replaced by one that is no expert's."""

    def ids() -> np.ndarray:
        made = distinct(6, 2, 8)()
        made[1, 0] = made[1, 1] = made[4, 1] = wrong
        return made

    return ids


ROUTINGS = (
    Routing('one_expert', 'every route on one expert: one long range, all others empty', 8, constant(33, 2, 5)),
    Routing('ends_only', 'the first and the last expert share all routes: nothing in between', 60,
            counted([9] + [0] * 58 + [8])),
    Routing('one_route_each', 'one route per expert: as many blocks as routes', 64, counted([1] * 64)),
    Routing('empty_ends', 'experts without routes at both ends', 60, distinct(21, 4, 45, first=7)),
    Routing('top_1_of_1', 'a single expert: blocks of one route where lmdeploy sorts in programs of E', 1,
            constant(5, 1, 0)),
    Routing('top_2_of_2', 'top-k is E: every expert has every token', 2, distinct(5, 2, 2)),
    Routing('top_1_of_16', 'top-1', 16, distinct(31, 1, 16), block_m=16),
    Routing('top_4_of_60', 'E no power of two', 60, distinct(7, 4, 60), block_m=16),
    Routing('top_6_of_96', 'E and top-k off powers of two', 96, distinct(33, 6, 96), block_m=32),
    Routing('top_6_of_160', 'E and top-k off powers of two, few routes', 160, distinct(5, 6, 160)),
    Routing('top_8_of_128', 'one token, decode', 128, distinct(1, 8, 128)),
    Routing('top_10_of_512', 'top-k off powers of two, many experts, most without a route', 512, distinct(3, 10, 512),
            block_m=128),
    Routing('no_tokens', 'M = 0: a rank without tokens', 32, distinct(0, 4, 32)),
    Routing('duplicates', 'one token names one expert several times: each is a route of its own', 32,
            repeated(19, 6, 32), block_m=16),
    Routing('int32', 'expert ids of 32 bits', 96, distinct(9, 6, 96), dtype='int32'),
    Routing('columns', 'ids whose tokens are adjacent, as a transposed top-k gives them', 60, distinct(9, 4, 60),
            layout='columns'),
    Routing('pitched', 'ids further apart than a row is long, no expert\'s in between', 60, distinct(9, 4, 60),
            dtype='int32', layout='pitched'),
    Routing('program_full', 'exactly as many routes as a program of the parallel preparation takes', 128,
            distinct(16, 8, 128), block_m=16),
    Routing('program_and_one', 'one route in a last program of its own', 128, counted([2] + [1] * 127), block_m=16),
    Routing('experts_2048', 'the most experts that one CTA takes', 2048, distinct(4, 8, 2048), slow=True),
    Routing('routes_2048', 'the most routes that one CTA takes', 256, distinct(256, 8, 256), slow=True),
)
# Shapes that a single CTA is never given.
PARALLEL_ONLY = (
    Routing('routes_2049', 'one route more than one CTA takes', 256, counted([9] + [8] * 255), slow=True),
    Routing('experts_2049', 'one expert more than one CTA takes', 2049, distinct(4, 8, 2049), slow=True),
    Routing('prefill', 'many routes, as a prefill has them', 128, distinct(4096, 8, 128), lanes=SM90_ONLY, block_m=128),
    Routing('prefill_one_expert', 'many routes on one expert: every count by one contended atomic', 128,
            constant(4096, 8, 127), lanes=SM90_ONLY, block_m=128),
    Routing('prefill_2048', 'many routes and many experts', 2048, distinct(1024, 8, 2048), lanes=SM90_ONLY),
)
# What the dispatch decides by shape: cases at both of its edges.
DISPATCHED = ('top_8_of_128', 'no_tokens', 'experts_2048', 'routes_2048')
STRANGE = (
    Routing('id_past_the_end', 'an id that is one past the last expert', 8, with_wrong_ids(8), kind='out_of_range'),
    Routing('id_minus_one', 'an id of -1, which others use for no expert', 8, with_wrong_ids(-1), kind='out_of_range'),
    Routing('id_past_32_bits', 'an id whose low 32 bits are an expert\'s', 8, with_wrong_ids(2**32 + 3),
            kind='out_of_range'),
    Routing('ids_1d', 'ids without a top-k dimension', 8, lambda: np.arange(8), kind='refused', names='topk_ids'),
    Routing('top_k_above_experts', 'more choices than experts', 4, lambda: np.zeros((3, 5), np.int64), kind='refused',
            names='topk_ids'),
    Routing('float_ids', 'ids that are no integers', 8, distinct(6, 2, 8), dtype='float32', kind='refused',
            names='topk_ids'),
)


def block_edges(block_m: int) -> Routing:
    """Experts on both sides of one and of two blocks, empty ones between, and one with a single route."""
    counts = [0, block_m - 1, block_m, block_m + 1, 0, 2 * block_m, 1, 2 * block_m + 1, 0]
    # 128 experts, so that the parallel preparation sorts in few programs, each of which the cpu lane interprets.
    return Routing(f'block_edges_{block_m}', 'ranges one short of a block, full, and one past it', 128,
                   counted(counts + [0] * (128 - len(counts))), block_m=block_m)


# block_m 16, 32, 64 and 128 are what the dispatch of the blocked-FP8 layer can ask for.
BLOCK_ROUTINGS = tuple(block_edges(block_m) for block_m in (16, 32, 64, 128))
_SLICED = Routing('slice', 'experts of a rank', 64, distinct(33, 6, 64), block_m=16, local=16)
SLICES = (
    replace(_SLICED, name='slice_first', why='the first of four ranks'),
    replace(_SLICED, name='slice_middle', why='a rank in the middle', offset=32),
    replace(_SLICED, name='slice_last', why='the last rank: its slice ends with the experts', offset=48),
    Routing('slice_odd', 'the last of eight ranks, E and the slice no power of two', 160, distinct(29, 6, 160),
            block_m=16, offset=140, local=20),
    Routing('slice_uneven', 'a rank with fewer experts than the others', 60, distinct(13, 4, 60), block_m=16, offset=53,
            local=7, dtype='int32'),
    Routing('slice_of_one', 'a rank with a single expert', 64, counted([3] * 40 + [35] + [0] * 23), block_m=16,
            offset=40, local=1),
    Routing('slice_without_routes', 'a rank none of whose experts has a route: no block', 64,
            distinct(17, 4, 32), block_m=16, offset=32, local=16),
    Routing('slice_with_every_route', 'one expert of a rank has every route', 64, constant(25, 4, 47), block_m=16,
            offset=32, local=16),
    Routing('slice_no_tokens', 'M = 0 on a rank', 64, distinct(0, 4, 64), offset=16, local=16),
    Routing('slice_prefill', 'a rank of a large layer, many routes', 256, distinct(2048, 8, 256), lanes=SM90_ONLY,
            offset=96, local=32, block_m=128),
)
STRANGE_SLICES = (
    Routing('slice_past_the_end', 'a slice that ends after the last expert', 8, distinct(6, 2, 8), offset=6, local=4,
            kind='refused', names='expert_offset'),
)


def make_cases(operator: str, further: tuple[Routing, ...] = (), slices: tuple[Routing, ...] = ()) -> tuple[Case, ...]:
    """The catalogue of one operator.

    Args:
        further: routings for this operator alone.
        slices: routings of a part of the experts, which a single CTA is not given.
    """
    shared = (*ROUTINGS, *further, *STRANGE)
    by_preparation = {PARALLEL: (*shared, *PARALLEL_ONLY, *slices), SINGLE_CTA: shared,
                      None: tuple(r for r in ROUTINGS if r.name in DISPATCHED) + PARALLEL_ONLY + slices[2:3]}
    return tuple(routing.case(operator, preparation) for preparation, routings in by_preparation.items()
                 for routing in routings)


def changed(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """Other ids of the same shape, dtype and strides, for the replay of a graph: with more active experts than `ids`
    has if it can have more, with one otherwise. Replayed between the first ids, experts come and go."""
    other = torch.empty_strided(ids.shape, ids.stride(), dtype=ids.dtype, device=ids.device)
    if len(ids.unique()) < min(ids.numel(), experts):
        return other.copy_((torch.arange(ids.numel(), device=ids.device) % experts).reshape(ids.shape))
    return other.fill_(experts - 1)
