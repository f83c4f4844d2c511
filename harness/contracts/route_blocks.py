"""route_blocks: topk_ids [M, top_k] -> the sorted routes of all experts, and the blocks of a slice of experts.

sorted_idx, exp_start and exp_end as in sorted_routes; block_end [local experts], block_expert_ids and block_offsets
[room for blocks], all int32. The routes of local expert l, which is expert `expert_offset + l`, are cut into blocks of
block_m; its blocks end before block_end[l]. Block b belongs to local expert block_expert_ids[b] and starts at
sorted_idx[block_offsets[b]]; a last block that is not full ends with the expert's range.

Promise: that of sorted_routes, and (bytes) block_end, block_expert_ids and block_offsets up to the last block. What
stands in the entries after it is not promised, for whoever runs the blocks stops at block_end[-1]: they are set to -1
before anything is compared, in place. Promise (invariants): block ends are prefix sums; a block carries the expert that
encloses it, starts inside its range and a multiple of block_m into it; every local route lies in one block; there is
room for the blocks of every routing of the same shape, since a captured graph is replayed with others. A slice that
leaves the experts is refused. Comparator: the brute-force oracle, for every subject.
"""
from __future__ import annotations

import numpy as np
import torch

from harness.contracts import routing, routing_invariants
from harness.contracts.case import Case
from harness.contracts.routing_cases import BLOCK_ROUTINGS, SLICES, STRANGE_SLICES, make_cases
from harness.contracts.routing_invariants import Slice
from harness.contracts.setting import Setting
from harness.evidence.compare import Context, compare_layout
from harness.evidence.log import EvidenceLog
from harness.evidence.trial import Tensors
from harness.oracles import routing as oracle
from harness.subjects.protocol import Subject

OPERATOR = 'route_blocks'
CASES = make_cases(OPERATOR, BLOCK_ROUTINGS, (*SLICES, *STRANGE_SLICES))
NAMES = ('sorted_idx', 'exp_start', 'exp_end', 'block_end', 'block_expert_ids', 'block_offsets')
NO_BLOCK = -1


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    options = case.options
    part = Slice(options['offset'], options['local'], options['block_m'])

    def operator(inputs):
        preparation = options['preparation']
        with setting.as_on_gpu(preparation is None):
            found = subject.route_blocks(inputs['topk_ids'], options['experts'], part.local, part.offset, part.block_m,
                                         preparation)
        named = dict(zip(NAMES, found, strict=True))
        routing.ascending_within_experts(named['sorted_idx'], named['exp_end'])
        for name in ('block_expert_ids', 'block_offsets'):
            clear_after_last_block(named[name], named['block_end'])
        return named

    def judge_routed(found, ids, what, context):
        by_expert = routing.judge_sorted(log, what, found, ids, options['experts'], context)
        judge_blocks(log, what, found, by_expert, part, context)

    routing.judge(case, subject, setting, log, operator, judge_routed)


def clear_after_last_block(entries: torch.Tensor, block_end: torch.Tensor) -> None:
    """In place, and without waiting for the device: a graph captures this."""
    entries.masked_fill_(torch.arange(entries.numel(), device=entries.device) >= block_end[-1], NO_BLOCK)


def judge_blocks(log: EvidenceLog, what: str, found: Tensors, by_expert: oracle.SortedRoutes, part: Slice,
                 context: Context) -> None:
    """Layout, room, invariants and bytes of block metadata over sorted routes that are right."""
    room = found['block_expert_ids'].numel()
    for name, length in (('block_end', part.local), ('block_expert_ids', room), ('block_offsets', room)):
        compare_layout(log, f'{name}: layout', name, found[name], (length, ), torch.int32, context, (1, ))
    end, experts, offsets = (found[name].cpu().numpy() for name in NAMES[3:])
    routes = found['sorted_idx'].numel()
    routing_invariants.require(log, what, [routing_invariants.room(routes, room, part)], context)
    routing_invariants.require(log, what, routing_invariants.of_blocks(
        by_expert.start, by_expert.end, end, experts, offsets, part), context)
    expected = oracle.route_blocks(by_expert, part.offset, part.local, part.block_m)
    unused = np.full(room - len(expected.experts), NO_BLOCK, np.int32)
    for name, values in zip(NAMES[3:], (expected.end, np.concatenate([expected.experts, unused]),
                                        np.concatenate([expected.offsets, unused])), strict=True):
        routing.compare_oracle(log, name, found[name], values, context)
