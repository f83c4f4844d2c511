"""What holds of routing metadata one by one, each with the sentence that a reader sees when it does not.

Computed from the metadata and the expert ids alone. Later invariants rely on earlier ones, so that they come as they
are asked for: whoever finds one broken must not ask for the next.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from harness.evidence.compare import Context
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.oracles import routing

_SHOWN = 4


@dataclass(frozen=True)
class Invariant:
    """One invariant, looked at in one result.

    Attributes:
        sentence: what has to hold.
        compared: how many places were looked at.
        wrong: int [..], the places where it does not hold.
        show: place -> what stands there.
    """

    sentence: str
    compared: int
    wrong: np.ndarray
    show: Callable[[int], str]


@dataclass(frozen=True)
class Slice:
    """The experts whose routes are cut into blocks: `local` of them from `offset` on."""

    offset: int
    local: int
    block_m: int


def require(log: EvidenceLog, what: str, invariants: Iterable[Invariant], context: Context) -> None:
    """Record every invariant; raise ContractBroken(BYTES) at the first that does not hold."""
    for invariant in invariants:
        if invariant.compared == 0:
            continue  # no routes, no blocks: nothing that could be wrong, and no evidence either
        log.add(Record('invariant', f'{what}: {invariant.sentence}', invariant.compared, len(invariant.wrong)))
        if len(invariant.wrong):
            places = [f'  {invariant.show(int(place))}' for place in invariant.wrong[:_SHOWN]]
            raise ContractBroken(Reason.BYTES, '\n'.join(
                [f'{what}: {invariant.sentence}; this does not hold in {len(invariant.wrong)} of '
                 f'{invariant.compared} places', *places, f'reproduce: {context.reproduce}']))


def of_routes(expert_of_route: np.ndarray, routes: np.ndarray, start: np.ndarray,
              end: np.ndarray) -> Iterator[Invariant]:
    """The invariants of sorted routes.

    Args:
        expert_of_route: int [R], every id an expert's.
        routes: int32 [R].
        start, end: int32 [E].
    """
    count = len(expert_of_route)
    seen = np.bincount(routes[(routes >= 0) & (routes < count)], minlength=count)
    yield Invariant('every route stands exactly once in the sorted routes (a permutation)', count,
                    np.flatnonzero(seen != 1), lambda route: f'route {route} stands there {seen[route]} times')

    before = np.concatenate([[0], end[:-1]])
    yield Invariant('an expert starts where the one before it ends, the first at 0', len(start),
                    np.flatnonzero(start != before),
                    lambda e: f'expert {e} starts at {start[e]}, the one before it ends at {before[e]}')
    yield Invariant('the last expert ends at the number of routes', 1, np.flatnonzero(end[-1:] != count),
                    lambda _: f'the last expert ends at {end[-1]}, there are {count} routes')

    counts = np.bincount(expert_of_route, minlength=len(start))
    yield Invariant('an expert\'s range is as long as the expert has routes', len(start),
                    np.flatnonzero(end - start != counts),
                    lambda e: f'expert {e} has {counts[e]} routes and a range of {end[e] - start[e]}')

    expert_of_position = np.repeat(np.arange(len(start)), counts)
    found = expert_of_route[routes]
    yield Invariant('an expert\'s range holds routes of that expert only', count,
                    np.flatnonzero(found != expert_of_position),
                    lambda p: f'position {p}, in the range of expert {expert_of_position[p]}: route {routes[p]} of '
                    f'expert {found[p]}')


def of_blocks(start: np.ndarray, end: np.ndarray, block_end: np.ndarray, experts: np.ndarray, offsets: np.ndarray,
              part: Slice) -> Iterator[Invariant]:
    """The invariants of block metadata over sorted routes whose own invariants hold.

    Args:
        start, end: int32 [E], of all experts.
        block_end: int32 [local experts]. experts, offsets: int32 [room for blocks].
    """
    start, end = (edge[part.offset:part.offset + part.local].astype(np.int64) for edge in (start, end))
    blocks = -(-(end - start) // part.block_m)
    expected_end = np.cumsum(blocks)
    yield Invariant('the block ends are the prefix sums of ceil(routes / block_m) over the local experts', part.local,
                    np.flatnonzero(block_end != expected_end),
                    lambda e: f'local expert {e} has {end[e] - start[e]} routes; its blocks end at {block_end[e]}, '
                    f'expected {expected_end[e]}')

    total, routes = int(expected_end[-1]), int(end[-1] - start[0])
    yield from _of_each_block(start, end, np.repeat(np.arange(part.local), blocks), experts[:total], offsets[:total])

    in_expert = offsets[:total] - start[experts[:total]]
    yield Invariant('a block starts at a multiple of block_m from where its expert starts', total,
                    np.flatnonzero(in_expert % part.block_m),
                    lambda b: f'block {b} starts {in_expert[b]} routes into its expert, block_m is {part.block_m}')

    covered = np.zeros(routes, np.int64)
    for expert, offset in zip(experts[:total], offsets[:total], strict=True):
        covered[offset - start[0]:min(offset + part.block_m, end[expert]) - start[0]] += 1
    yield Invariant('every route of a local expert lies in exactly one block', routes, np.flatnonzero(covered != 1),
                    lambda p: f'position {start[0] + p} of the sorted routes lies in {covered[p]} blocks')


def room(routes: int, found: int, part: Slice) -> Invariant:
    """The room for blocks comes from shapes alone: a captured graph meets every other routing of the same shape."""
    needed = routing.most_blocks(routes, part.local, part.block_m)
    return Invariant('there is room for the blocks of every routing of this shape', 1,
                     np.flatnonzero([found < needed]), lambda _: f'room for {found} blocks, up to {needed} are needed')


def _of_each_block(start, end, expert_of_block, experts, offsets) -> Iterator[Invariant]:
    yield Invariant('a block carries the local expert whose block ends enclose it', len(experts),
                    np.flatnonzero(experts != expert_of_block),
                    lambda b: f'block {b} carries local expert {experts[b]}, expected {expert_of_block[b]}')
    inside = (offsets >= start[experts]) & (offsets < end[experts])
    yield Invariant('a block starts inside the range of its expert', len(experts), np.flatnonzero(~inside),
                    lambda b: f'block {b} of local expert {experts[b]} starts at {offsets[b]}, outside '
                    f'[{start[experts[b]]}, {end[experts[b]]})')
