"""Brute-force routing: which routes an expert has, and how they fall into blocks.

A route is one (token, choice) pair; route r of topk_ids [M, top_k] is token r // top_k, choice r % top_k. Looks at
every expert in turn and counts; nothing here is fast, sorted by a trick, or shared with a kernel.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SortedRoutes:
    """The routes of all experts, expert after expert, ascending within an expert.

    Attributes:
        routes: int32 [number of routes that belong to an expert].
        start, end: int32 [num_experts]; expert e has routes[start[e]:end[e]].
    """

    routes: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def of(self, expert: int) -> np.ndarray:
        """The routes of one expert."""
        return self.routes[self.start[expert]:self.end[expert]]


@dataclass(frozen=True)
class RouteBlocks:
    """The blocks of at most block_m routes into which the routes of some neighbouring experts are cut.

    Attributes:
        end: int32 [local experts]; the blocks of local expert e end before block end[e].
        experts: int32 [blocks], the local expert of each block.
        offsets: int32 [blocks], where in the sorted routes each block starts.
    """

    end: np.ndarray
    experts: np.ndarray
    offsets: np.ndarray


def sorted_routes(topk_ids: np.ndarray, num_experts: int) -> SortedRoutes:
    """topk_ids int [M, top_k] -> the routes by expert. An id that is no expert's belongs to none."""
    expert_of_route = topk_ids.reshape(-1)
    routes, start, end = [], [], []
    for expert in range(num_experts):
        start.append(len(routes))
        routes.extend(np.flatnonzero(expert_of_route == expert).tolist())
        end.append(len(routes))
    return SortedRoutes(np.array(routes, np.int32), np.array(start, np.int32), np.array(end, np.int32))


def route_blocks(by_expert: SortedRoutes, expert_offset: int, local_experts: int, block_m: int) -> RouteBlocks:
    """Cut the routes of experts [expert_offset, expert_offset + local_experts) into blocks, none across two experts."""
    end, experts, offsets = [], [], []
    for local in range(local_experts):
        expert = expert_offset + local
        for first in range(by_expert.start[expert], by_expert.end[expert], block_m):
            experts.append(local)
            offsets.append(first)
        end.append(len(experts))
    return RouteBlocks(np.array(end, np.int32), np.array(experts, np.int32), np.array(offsets, np.int32))


def most_blocks(routes: int, experts: int, block_m: int) -> int:
    """The largest number of blocks that any distribution of `routes` over `experts` needs.

    One route each opens a block for `experts` routes; after that a block is opened by every block_m further routes.
    """
    if routes <= experts:
        return routes
    return experts + (routes - experts) // block_m
