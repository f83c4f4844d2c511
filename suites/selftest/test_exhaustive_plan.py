"""A proof visits what it says, every pair once and every (value, maximum) pair, and sees a difference anywhere."""
from __future__ import annotations

from collections import Counter
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from harness.contracts.exhaustive.listed import compare_listed
from harness.contracts.exhaustive.pairs import every_pair, partner_maxima, unit_gate
from harness.contracts.exhaustive.plan import Arrangement, pair_key, pair_of_key, plan_sweep
from harness.contracts.exhaustive.quantiser import every_value
from harness.contracts.exhaustive.results import PartResult
from harness.contracts.exhaustive.samples import edge_ups, sample_maxima, sample_pairs
from harness.contracts.exhaustive.sides import PairBuffer, Sides
from harness.contracts.exhaustive.sweep import SweepRun
from harness.contracts.exhaustive.value_groups import ValueGroups
from harness.contracts.formats import QuantFormat
from harness.evidence import differing_groups
from harness.evidence.bits import to_numpy_bits
from harness.evidence.differing_groups import ComparatorBlind, new_tally, require_sight, tally_differing_groups
from harness.evidence.verdicts import Reason
from harness.oracles.storage import BF16, FORMATS
from harness.subjects import load

GROUP = 128
FORMAT = QuantFormat('bf16', 'e4m3fn', None)


class Recorder:
    """A subject that computes nothing and keeps its inputs. `fault(call, codes, scales)` may spoil its outputs."""

    def __init__(self, fault=lambda call, codes, scales: None):
        self.inputs, self._fault = [], fault

    def silu_and_mul(self, gate_up):
        return gate_up[:, :gate_up.size(1) // 2].contiguous()

    def quant_fp8(self, x, group_size, dtype, trans_scale, scale_fmt):
        codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
        return codes.view(dtype), torch.ones(x.size(0), x.size(1) // group_size, device=x.device)

    def silu_and_mul_quant(self, gate_up, group_size, dtype, trans_scale, scale_fmt):
        self.inputs.append(to_numpy_bits(gate_up).copy())  # the buffer is written again
        codes, scales = self.quant_fp8(self.silu_and_mul(gate_up), group_size, dtype, trans_scale, scale_fmt)
        self._fault(len(self.inputs), codes.view(torch.uint8), scales)
        return codes, scales


def no_progress(visited: int, possible: int) -> None:
    """Nobody watches."""


@pytest.fixture
def sides(device):
    """(fault) -> the two sides, of which only the one on trial may be spoilt."""
    return lambda **spoilt: Sides(Recorder(**spoilt), Recorder(), FORMAT, device)


# Shapes whose chunks hold several gates, several rows of a gate, or one part of the ups.
SWEEPS = [(Arrangement.ALONE, 3, range(7, 13), range(0x8000 - 128, 0x8000 + 128)),
          (Arrangement.ALONE, 2, range(0xFFFE, 0x10000), range(0, 512)),
          (Arrangement.WITH_PARTNER, 2, range(0, 3), range(8192, 3 * 8192)),
          (Arrangement.PACKED, 2, range(0x7FFF, 0x8003), range(3 * 16384, 4 * 16384))]


@pytest.mark.parametrize(('arrangement', 'rows', 'gates', 'ups'), SWEEPS)
def test_a_sweep_visits_every_pair_once(sides, arrangement, rows, gates, ups):
    both = sides()
    run = SweepRun(both, plan_sweep(arrangement, rows, gates, ups))
    if arrangement is Arrangement.WITH_PARTNER:
        run.buffer.set_partner(0x1234, 0x4321)
    both.trial.inputs.clear()
    assert run.run(no_progress).differing == 0

    seen, others = Counter(), Counter()
    for gate_up in both.trial.inputs:
        columns = gate_up.shape[1] // 2
        gate, up = (half.reshape(-1, GROUP) for half in (gate_up[:, :columns], gate_up[:, columns:]))
        live = np.zeros(gate.shape, bool)
        if arrangement is Arrangement.ALONE:
            live[np.arange(len(live)), np.arange(len(live)) % GROUP] = True
        else:
            live[:, ::2 if arrangement is Arrangement.WITH_PARTNER else 1] = True
        seen.update(zip(gate[live].tolist(), up[live].tolist(), strict=True))
        others.update(zip(gate[~live].tolist(), up[~live].tolist(), strict=True))
    assert seen == Counter(product(gates, ups)), 'every pair of the two ranges, once'
    expected = {Arrangement.ALONE: {(0, 0)}, Arrangement.WITH_PARTNER: {(0x1234, 0x4321)}, Arrangement.PACKED: set()}
    assert set(others) == expected[arrangement], 'beside the pairs, only what the arrangement says'


@pytest.mark.lane('cpu')
def test_replayed_graphs_visit_every_pair_once(sides, monkeypatch):
    """The loop of the sm90 lane, with a graph that takes its captured steps when it is replayed."""
    run = SweepRun(sides(), plan_sweep(Arrangement.ALONE, 1, range(40, 104), range(256)))
    replay = SimpleNamespace(replay=lambda: [run._step() for _ in range(run._steps_per_graph)])
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 1500.0)
    monkeypatch.setattr(torch.cuda, 'Event', lambda **options: event)
    monkeypatch.setattr(run, '_graph', replay)
    run.sides.trial.inputs.clear()
    told = []
    tally = run.run(lambda visited, possible: told.append((visited, possible)))

    live = np.arange(GROUP)
    seen = Counter()
    for gate_up in run.sides.trial.inputs:
        gate, up = gate_up[0, live * (GROUP + 1)], gate_up[0, GROUP * GROUP + live * (GROUP + 1)]
        seen.update(zip(gate.tolist(), up.tolist(), strict=True))
    assert run._steps_per_graph == 32
    assert seen == Counter(product(range(40, 104), range(256)))
    assert (tally.differing, tally.seconds) == (0, 1.5)
    assert told == sorted(told)
    assert told[-1] == (64 * 256, 64 * 256)


@pytest.mark.parametrize(('arrangement', 'rows', 'gates', 'ups'), SWEEPS)
def test_a_pair_is_located_in_the_chunk_that_visits_it(arrangement, rows, gates, ups):
    sweep = plan_sweep(arrangement, rows, gates, ups)
    chunks = list(sweep.chunks())
    assert len(chunks) * sweep.pairs_per_chunk == sweep.pairs == len(gates) * len(ups)
    for gate, up in product(gates, (ups[0], ups[1], ups[len(ups) // 2], ups[-1])):
        chunk, group = sweep.locate(gate, up)
        assert chunk in chunks
        slot = (gate - chunk.gate) * sweep.ups_per_chunk + up - chunk.up
        assert 0 <= slot < sweep.pairs_per_chunk
        assert group == slot // arrangement.pairs_per_group
        assert pair_of_key(pair_key(gate, up)) == (gate, up)


@pytest.mark.parametrize('rows', [1, 512, 4096])
@pytest.mark.parametrize('arrangement', list(Arrangement))
def test_the_whole_space_is_planned(arrangement, rows):
    sweep = plan_sweep(arrangement, rows)
    assert sweep.pairs == 2**32
    assert len(sweep.up_blocks()) * sweep.gate_steps * sweep.pairs_per_chunk == 2**32
    assert sweep.rows <= max(rows, 1)


@pytest.mark.parametrize('spoilt_group', [0, 131, 255])
@pytest.mark.parametrize('what', ['code', 'scale'])
def test_a_sweep_names_the_pair_whose_bytes_differ(sides, what, spoilt_group):
    def fault(call, codes, scales):
        if what == 'code':
            codes.view(-1, GROUP)[spoilt_group, 5] = 1
        else:
            scales.view(-1)[spoilt_group] = 2

    found = every_pair(sides(fault=fault), 'b', no_progress, rows=2, gates=range(9, 10), ups=range(256, 512))
    assert (found.differing_groups, found.reason) == (1, Reason.BYTES)
    assert found.facts['first_group_from_pair'] == (9, 256 + spoilt_group)
    assert found.mismatch.differing_codes == (what == 'code')


def test_the_first_pair_is_the_smallest_whatever_the_order_of_visits(sides):
    def fault(call, codes, scales):
        scales.fill_(3)

    found = every_pair(sides(fault=fault), 'b', no_progress, rows=1, gates=range(4, 6), ups=range(128, 384))
    assert found.differing_groups == 512
    assert found.facts['first_group_from_pair'] == (4, 128)


def test_a_difference_that_does_not_return_is_no_byte_mismatch(sides):
    def fault(call, codes, scales):
        scales[0, 0] = 1 + (call == 1)

    found = every_pair(sides(fault=fault), 'b', no_progress, rows=1, gates=range(4, 5), ups=range(128))
    assert (found.differing_groups, found.mismatch, found.reason) == (1, None, Reason.NONDETERMINISTIC)


def test_a_listed_pair_is_named(sides):
    def fault(call, codes, scales):
        scales.view(-1)[129] = 2

    gates, ups = np.arange(130, dtype=np.uint16), np.arange(1000, 1130, dtype=np.uint16)
    differing, named = compare_listed(sides(fault=fault), Arrangement.ALONE, gates, ups)
    assert (differing, named.gate, named.up, named.position) == (1, 129, 1129, 1)


def test_value_groups_hold_every_value_with_every_maximum(device):
    largest = 300
    groups = ValueGroups(largest, device)
    numbers = torch.arange(groups.count, device=device)
    bits = groups.bits(numbers).cpu().numpy().view(np.uint16)
    magnitude = bits & 0x7FFF
    maxima = magnitude.max(axis=1)
    assert (magnitude[np.arange(len(bits)), np.arange(len(bits)) % GROUP] == maxima).all(), 'at position g % 128'

    seen = {(int(value), int(maximum)) for row, maximum in zip(bits, maxima, strict=True) for value in row}
    expected = {(value | sign, maximum) for maximum in range(largest + 1) for value in range(maximum + 1)
                for sign in (0, 0x8000)}
    assert seen == expected
    assert groups.pairs == len(expected) == groups.pairs_in(np.arange(groups.count))
    assert ValueGroups(BF16.infinity, device).pairs == (BF16.infinity + 1) * (BF16.infinity + 2)


def test_part_c_names_the_value_whose_code_differs(device):
    stock = load('stock')

    class OneCode:
        def silu_and_mul_quant(self, gate_up, group_size, dtype, trans_scale, scale_fmt):
            codes, scales = stock.quant_fp8(stock.silu_and_mul(gate_up), group_size, dtype, trans_scale, scale_fmt)
            up = gate_up[:, gate_up.size(1) // 2:].contiguous()
            codes.view(torch.uint8)[up.view(torch.int16) == 77] ^= 1
            return codes, scales

    found = every_value(Sides(OneCode(), stock, FORMAT, device), no_progress, rows=1, largest=78)
    assert found.differing_groups == 3, 'the two groups of the maximum 77, and one of the two below 78'
    assert (found.mismatch.up, found.mismatch.group_maximum) == (77, 77)
    assert found.visited < found.possible


@pytest.mark.parametrize('storage', FORMATS.values(), ids=lambda storage: storage.name)
def test_samples_hold_every_edge(storage):
    gates, ups = sample_pairs(storage, range(65536), 256, seed=0)
    assert len(gates) == len(ups) == 256
    inf = storage.infinity
    assert {0, 0x8000, 1, 0x8001, inf - 1, inf, inf | 0x8000, 0x7FFF, 0xFFFF} <= set(gates.tolist())
    assert set(edge_ups(storage).tolist()) <= set(ups.tolist())
    narrow, ups = sample_pairs(storage, range(100, 102), 128, seed=0)
    assert set(narrow.tolist()) == {100, 101}
    assert set(edge_ups(storage).tolist()) <= set(ups[narrow == 101].tolist())
    maxima = sample_maxima(storage, 448.0)
    assert {0, 1, inf - 1, inf} <= set(maxima.tolist())


@pytest.mark.parametrize('storage', FORMATS.values(), ids=lambda storage: storage.name)
def test_partners_lie_between_the_floor_and_twice_it(storage):
    values = storage.decode(partner_maxima(storage, 16))
    assert len(values) >= 8
    assert ((values >= 1e-6) & (values <= 2.1e-6)).all()


def test_the_unit_gate_sends_values_through_unchanged(device):
    stock = load('stock')
    for name, storage in FORMATS.items():
        both = Sides(stock, stock, QuantFormat(name, 'e4m3fn', None), device)
        buffer = PairBuffer(Arrangement.PACKED, 4, name, device)
        every = np.arange(65536, dtype=np.uint32).astype(np.uint16)
        buffer.write(np.full_like(every, unit_gate(both)), every)
        product_bits = to_numpy_bits(stock.silu_and_mul(buffer.gate_up)).reshape(-1)
        number = ~storage.is_nan(every)
        assert (product_bits[number] == every[number]).all()


def test_a_comparator_that_sees_nothing_is_caught(device, monkeypatch):
    quantised = torch.zeros(2, 512, dtype=torch.uint8, device=device).view(torch.float8_e5m2), torch.ones(
        2, 4, device=device)
    require_sight(quantised)
    monkeypatch.setattr(differing_groups, 'tally_differing_groups', lambda *arguments: None)
    with pytest.raises(ComparatorBlind):
        require_sight(quantised)


def test_the_tally_refuses_what_it_cannot_compare(device):
    codes = torch.zeros(2, 512, dtype=torch.uint8, device=device)
    scales, keys = torch.ones(2, 4, device=device), torch.arange(8, device=device)
    column_major = torch.ones(4, 2, device=device).t()
    for left in ((codes[:, :256], scales), (codes, scales[:1]), (codes, column_major), (codes, scales.double())):
        with pytest.raises(ValueError, match='tally_differing_groups: left'):
            tally_differing_groups(left, (codes, scales), keys, keys[:1], new_tally(device))


def test_a_result_that_visited_nothing_cannot_be_made():
    facts = SimpleNamespace(part='b', fmt=FORMAT, unit='pairs', differing_groups=0, mismatch=None, reason=None,
                            seconds=0.0, reference='x')
    with pytest.raises(ValueError, match='visited'):
        PartResult(visited=0, possible=10, **vars(facts))
