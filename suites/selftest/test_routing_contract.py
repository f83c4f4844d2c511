"""The contracts of routing: the oracle by hand, every invariant broken once, and a subject that keeps them."""
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.contracts import contract, deviations, judge, routing, routing_invariants
from harness.contracts.routing_invariants import Slice
from harness.contracts.setting import Setting
from harness.evidence.compare import Context
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.oracles import routing as oracle

IDS = np.array([[2, 0], [2, 3], [0, 2]])


class TestOracle:

    def test_routes_of_a_small_layer(self):
        found = oracle.sorted_routes(IDS, 5)
        assert found.routes.tolist() == [1, 4, 0, 2, 5, 3]
        assert found.start.tolist() == [0, 2, 2, 5, 6]
        assert found.end.tolist() == [2, 2, 5, 6, 6]
        assert found.of(2).tolist() == [0, 2, 5]

    def test_an_id_that_is_no_experts_belongs_to_none(self):
        assert oracle.sorted_routes(np.array([[5, -1, 0, 2**32]]), 5).routes.tolist() == [2]

    def test_blocks_of_a_slice(self):
        found = oracle.route_blocks(oracle.sorted_routes(IDS, 5), 1, 3, 2)
        assert found.end.tolist() == [0, 2, 3]
        assert found.experts.tolist() == [1, 1, 2]
        assert found.offsets.tolist() == [2, 4, 5]

    @pytest.mark.parametrize(('routes', 'experts', 'block_m'), [(0, 3, 2), (2, 3, 2), (3, 3, 4), (7, 3, 2), (9, 2, 4)])
    def test_most_blocks_is_reached_by_the_worst_distribution(self, routes, experts, block_m):
        every = (counts for counts in itertools.product(range(routes + 1), repeat=experts) if sum(counts) == routes)
        worst = max(sum(-(-count // block_m) for count in counts) for counts in every)
        assert oracle.most_blocks(routes, experts, block_m) == worst


class TestAscendingWithinExperts:

    def test_the_order_inside_a_range_is_gone_and_nothing_else(self):
        routes = torch.tensor([4, 1, 5, 0, 2, 3], dtype=torch.int32)
        routing.ascending_within_experts(routes, torch.tensor([2, 2, 5, 6, 6], dtype=torch.int32))
        assert routes.tolist() == [1, 4, 0, 2, 5, 3]

    def test_a_route_in_another_experts_range_stays_there(self):
        routes = torch.tensor([0, 1, 4], dtype=torch.int32)
        routing.ascending_within_experts(routes, torch.tensor([1, 3], dtype=torch.int32))
        assert routes.tolist() == [0, 1, 4]
        routes = torch.tensor([4, 1, 0], dtype=torch.int32)
        routing.ascending_within_experts(routes, torch.tensor([1, 3], dtype=torch.int32))
        assert routes.tolist() == [4, 0, 1]

    def test_garbage_is_no_index(self):
        routes = torch.tensor([-7, 2**31 - 1, 0], dtype=torch.int32)
        routing.ascending_within_experts(routes, torch.tensor([2**31 - 1, -5], dtype=torch.int32))
        assert sorted(routes.tolist()) == [-7, 0, 2**31 - 1]


# Which array is changed, where, to what; and the invariant that says so.
BROKEN = [
    ('routes', 0, 4, 'permutation'), ('routes', 3, -1, 'permutation'), ('start', 0, 1, 'starts where the one before'),
    ('start', 3, 4, 'starts where the one before'), ('end', 4, 5, 'ends at the number of routes'),
    ('block_end', 0, 1, 'prefix sums of ceil'), ('block_end', 2, 2, 'prefix sums of ceil'),
    ('experts', 1, 2, 'carries the local expert'), ('offsets', 0, 1, 'inside the range of its expert'),
    ('offsets', 2, 6, 'inside the range of its expert'), ('offsets', 1, 3, 'multiple of block_m'),
    ('offsets', 1, 2, 'exactly one block'),
]
PART = Slice(offset=1, local=3, block_m=2)


def require_all(change=None):
    """Every invariant over the oracle's metadata of IDS, one element changed."""
    by_expert = oracle.sorted_routes(IDS, 5)
    blocks = oracle.route_blocks(by_expert, PART.offset, PART.local, PART.block_m)
    arrays = {'routes': by_expert.routes, 'start': by_expert.start, 'end': by_expert.end, 'block_end': blocks.end,
              'experts': blocks.experts, 'offsets': blocks.offsets}
    if change:
        name, place, value = change
        arrays[name] = arrays[name].copy()
        arrays[name][place] = value
    routes, start, end, *block_arrays = arrays.values()
    log, context = EvidenceLog(), Context('the command')
    routing_invariants.require(log, 'x', routing_invariants.of_routes(IDS.reshape(-1), routes, start, end), context)
    routing_invariants.require(log, 'x', [routing_invariants.room(6, len(block_arrays[1]) + 1, PART)], context)
    routing_invariants.require(log, 'x', routing_invariants.of_blocks(start, end, *block_arrays, PART), context)
    return log


class TestInvariants:

    def test_all_hold_of_the_oracle_and_each_leaves_evidence(self):
        log = require_all()
        assert len({record.what for record in log.records}) == 11
        assert all(record.kind == 'invariant' and not record.differing for record in log.records)

    @pytest.mark.parametrize('change', BROKEN, ids=lambda c: f'{c[0]}_{c[1]}_{c[2]}')
    def test_each_is_broken_with_its_sentence(self, change):
        with pytest.raises(ContractBroken, match=change[3]) as broken:
            require_all(change[:3])
        assert broken.value.reason is Reason.BYTES
        assert 'reproduce: the command' in str(broken.value)

    def test_ranges_of_another_length(self):
        by_expert = oracle.sorted_routes(IDS, 5)
        start, end = by_expert.start.copy(), by_expert.end.copy()
        end[2] = start[3] = 4
        with pytest.raises(ContractBroken, match='as long as the expert has routes'):
            routing_invariants.require(EvidenceLog(), 'x', routing_invariants.of_routes(
                IDS.reshape(-1), by_expert.routes, start, end), Context('the command'))

    def test_a_route_of_another_expert(self):
        by_expert = oracle.sorted_routes(IDS, 5)
        swapped = by_expert.routes[[2, 1, 0, 3, 4, 5]]
        with pytest.raises(ContractBroken, match='routes of that expert only'):
            routing_invariants.require(EvidenceLog(), 'x', routing_invariants.of_routes(
                IDS.reshape(-1), swapped, by_expert.start, by_expert.end), Context('the command'))

    def test_too_little_room_for_another_routing(self):
        with pytest.raises(ContractBroken, match='up to 4 are needed'):
            routing_invariants.require(EvidenceLog(), 'x', [routing_invariants.room(6, 3, PART)], Context('c'))


class OracleSubject:
    """The oracle as a subject, descending within experts; refuses what must be refused, ignores strange ids."""

    name = 'oracle'

    def sorted_routes(self, topk_ids, num_experts, preparation=None):
        if topk_ids.dim() != 2 or topk_ids.size(1) > num_experts or topk_ids.dtype.is_floating_point:
            raise ValueError('topk_ids: expected integers [M, top_k], top_k at most num_experts')
        found = oracle.sorted_routes(topk_ids.numpy(), num_experts)
        routes = np.full(topk_ids.numel(), -1, np.int32)
        routes[:len(found.routes)] = np.concatenate([found.of(e)[::-1] for e in range(num_experts)])
        return tuple(_allocated(array) for array in (routes, found.start, found.end))

    def route_blocks(self, topk_ids, num_experts, local_experts, expert_offset, block_m, preparation=None):
        if expert_offset + local_experts > num_experts:
            raise ValueError('expert_offset: expected a slice of the experts')
        sorted_idx, start, end = self.sorted_routes(topk_ids, num_experts)
        by_expert = oracle.SortedRoutes(sorted_idx.numpy(), start.numpy(), end.numpy())
        blocks = oracle.route_blocks(by_expert, expert_offset, local_experts, block_m)
        room = np.full(oracle.most_blocks(topk_ids.numel(), local_experts, block_m), 77, np.int32)
        padded = [np.concatenate([array, room[len(array):]]) for array in (blocks.experts, blocks.offsets)]
        return sorted_idx, start, end, *(_allocated(array) for array in (blocks.end, *padded))


def _allocated(array: np.ndarray) -> torch.Tensor:
    return torch.empty(array.shape, dtype=torch.int32).copy_(torch.from_numpy(array))


@pytest.mark.parametrize('operator', ['sorted_routes', 'route_blocks'])
def test_the_contract_can_be_kept_in_any_order_within_experts(operator, stock, device):
    judged = contract(operator)
    for case in judged.CASES:
        if case.id.startswith('parallel-') and case.options['experts'] <= 160 and 'cpu' in case.lanes:
            log = EvidenceLog()
            judged.judge(case, OracleSubject(), Setting(Lane.CPU, device, stock, 'the command'), log)
            assert log.records
            assert all(record.differing == 0 for record in log.records)


class TestDeviation:
    DEVIATION = deviations.Deviation('F99', 'sorted_routes', '-x', ContractBroken, 'because',
                                     'first at byte offsets 32')

    @staticmethod
    def broken(text):
        def call():
            raise ContractBroken(Reason.OUTSIDE_WRITE, text)
        return call

    def test_as_recorded_is_evidence(self):
        log = EvidenceLog()
        deviations.assert_deviates(log, self.DEVIATION, self.broken('1 bytes, first at byte offsets 32'), 'command')
        assert [record.kind for record in log.records] == ['deviation']

    @pytest.mark.parametrize(('call', 'reason'), [(broken('first at byte offsets 64'), Reason.CRASH),
                                                  (lambda: None, Reason.BETTER)], ids=['changed', 'vanished'])
    def test_changed_or_vanished_is_red(self, call, reason):
        with pytest.raises(ContractBroken) as found:
            deviations.assert_deviates(EvidenceLog(), self.DEVIATION, call, 'command')
        assert found.value.reason is reason

    def test_is_asked_of_stock_alone_whatever_the_operator(self, stock, device):
        cases = {case.id: case for case in contract('sorted_routes').CASES}
        setting = Setting(Lane.CPU, device, stock, 'the command')
        log = EvidenceLog()
        judge(cases['parallel-float_ids'], stock, setting, log)
        assert [record.kind for record in log.records] == ['deviation']
        other = SimpleNamespace(name='other', sorted_routes=stock.sorted_routes)
        with pytest.raises(ContractBroken, match='topk_ids'):
            judge(cases['parallel-float_ids'], other, setting, EvidenceLog())

    def test_a_broken_promise_says_which(self):
        with pytest.raises(ValueError, match='Deviation.shows'):
            deviations.Deviation('F99', 'sorted_routes', '-x', ContractBroken, 'because')
