"""The rules that hold for every operator: each is broken on purpose here, by an operator written for it in torch."""
import pytest
import torch

from harness.evidence import trial
from harness.evidence.compare import Context
from harness.evidence.guarded import GUARD_BYTES, GuardedAllocations, allocate
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason

CONTEXT = Context('pytest this-case')


def x():
    return torch.arange(24, dtype=torch.float32).reshape(4, 6)


def doubled(values):
    out = torch.empty_like(values)
    out.copy_(values * 2)
    return {'out': out}


def beyond(tensor, elements):
    """A view of `elements` more elements than `tensor` has: what a kernel with a lost mask writes to."""
    return torch.as_strided(tensor, (tensor.numel() + elements, ), (1, ), tensor.storage_offset())


def test_a_good_operator_leaves_evidence_of_every_rule():
    log = EvidenceLog()
    assert torch.equal(trial.run_by_row(log, 'doubled', doubled, x(), CONTEXT)['out'], x() * 2)
    assert {record.kind for record in log.records} == {'guard', 'bytes'}
    assert all(record.differing == 0 for record in log.records)


@pytest.mark.parametrize('place', ['after', 'before', 'gap'])
def test_a_write_outside_the_output_is_red(place):
    def operator(values):
        out = torch.empty_strided(values.shape, (8, 1), dtype=values.dtype)
        out.copy_(values)
        if place == 'after':
            beyond(out, 12)[-1] = 1.0
        elif place == 'before':
            torch.as_strided(out, (1, ), (1, ), out.storage_offset() - 1).fill_(1.0)
        else:
            torch.as_strided(out, (1, ), (1, ), out.storage_offset() + 6).fill_(1.0)
        return {'out': out}

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.OUTSIDE_WRITE


def test_an_element_that_is_never_written_is_red():
    def operator(values):
        out = torch.empty_like(values)
        out[:, :-1] = values[:, :-1]
        return {'out': out}

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.NONDETERMINISTIC


def test_scratch_in_the_input_is_red():
    def operator(values):
        result = doubled(values)
        values[0, 0] = 77.0
        return result

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.OUTSIDE_WRITE


def test_another_result_the_second_time_is_red():
    calls = []

    def operator(values):
        calls.append(None)
        return doubled(values + (len(calls) == 2))

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.NONDETERMINISTIC


def test_memory_handed_out_twice_is_red():
    cache = {}

    def operator(values):
        out = cache.setdefault(values.shape, torch.empty_like(values))
        out.copy_(values)
        return {'out': out}

    with pytest.raises(ContractBroken, match='still holds') as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.OUTSIDE_WRITE


def test_a_second_call_that_writes_into_the_first_output_is_red():
    earlier = []

    def operator(values):
        result = doubled(values)
        if earlier:
            earlier[0][0, 0] = 99.0
        earlier.append(result['out'])
        return result

    with pytest.raises(ContractBroken, match='after the second call') as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.OUTSIDE_WRITE


def test_rows_of_many_are_held_against_the_same_rows_alone():
    log = EvidenceLog()
    trial.run_rows_of_many(log, 'doubled', doubled, x(), ((0, 1), (2, 4)), CONTEXT)
    assert [record.compared for record in log.records] == [24, 48]
    with pytest.raises(ContractBroken, match='rows 2 to 4 of 4'):
        trial.run_rows_of_many(EvidenceLog(), 'wraps', lambda v: doubled(v * (torch.arange(len(v)) < 3)[:, None]), x(),
                               ((0, 1), (2, 4)), CONTEXT)


def test_a_row_that_depends_on_its_neighbours_is_red():
    def operator(values):
        return doubled(values - values.mean())

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.BYTES


def test_reading_beside_the_input_is_red():
    def operator(values):
        beside = torch.as_strided(values, (1, ), (1, ), values.storage_offset() + values.numel())
        return doubled(torch.maximum(values, beside.nan_to_num(0.0)))

    with pytest.raises(ContractBroken) as broken:
        trial.run_by_row(EvidenceLog(), 'operator', operator, x(), CONTEXT)
    assert broken.value.reason is Reason.NONDETERMINISTIC


def test_an_output_out_of_reach_of_the_guards_is_recorded_as_such():
    log = EvidenceLog()
    trial.run_by_row(log, 'operator', lambda values: {'out': values * 2}, x(), CONTEXT)
    assert 'unguarded' in {record.kind for record in log.records}


def test_arenas_serve_every_way_to_allocate():
    with GuardedAllocations(0xA5) as memory:
        made = [torch.empty(3, 4), torch.empty_like(x()), torch.empty_strided((2, 3), (1, 2)), x().new_empty(5),
                x().new_empty_strided((2, 2), (4, 1))]
    assert len(memory.arenas) == len(made)
    assert all(memory.owns(tensor) for tensor in made)
    assert (made[0].view(torch.uint8) == 0xA5).all()


def test_zeroed_scratch_is_guarded_as_well():
    with GuardedAllocations(0xA5) as memory:
        made = [torch.zeros(3, 4), torch.zeros_like(x()), x().new_zeros(5)]
    assert all(memory.owns(tensor) and not tensor.any() for tensor in made)
    beyond(made[0].reshape(-1), 1)[-1] = 1.0
    assert [len(arena.written_outside()) for arena in memory.arenas] == [4, 0, 0]


def test_written_outside_is_measured_from_the_first_byte():
    arena = allocate((2, 3), (4, 1), torch.int16, torch.device('cpu'), 0xA5)
    arena.view.fill_(0)
    assert len(arena.written_outside()) == 0
    arena.buffer[GUARD_BYTES + 6] = 0
    arena.buffer[GUARD_BYTES - 1] = 0
    assert arena.written_outside().tolist() == [-1, 6]
