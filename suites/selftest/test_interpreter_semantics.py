"""Special values: the repaired interpreter against the table recorded on an H200, row by row."""
from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

import harness.lanes
from harness.lanes.activation import activate
from harness.lanes.lane import Lane

TABLE = Path(harness.lanes.__file__).parent / 'h200_semantics.json'


@pytest.fixture(scope='module')
def recorder():
    activate(Lane.CPU)
    from harness.lanes import record_semantics
    return record_semantics


@pytest.fixture(scope='module')
def recorded() -> dict:
    if not TABLE.is_file():
        pytest.fail(f'{TABLE.name} is missing: record it on an sm90 GPU with '
                    f'`python -m harness.lanes.record_semantics {TABLE.name}`')
    return json.loads(TABLE.read_text())


@pytest.fixture(scope='module')
def found(recorder) -> list[dict]:
    return recorder.rows(activate(Lane.CPU))


def test_the_table_was_recorded_on_sm90_and_covers_every_launch(recorder, recorded):
    assert recorded['environment']['capability'] == [9, 0]
    assert len(recorded['rows']) == sum(len(launch.operands) for launch in recorder.launches())


def test_the_interpreter_agrees_with_the_recorded_table(recorder, recorded, found):
    differences = recorder.compare_rows(recorded['rows'], found)
    assert not differences, f'{len(differences)} rows differ:\n' + '\n'.join(differences[:40])


def test_approximation_rows_are_few_and_only_of_approximate_operations(recorder, found):
    inexact = [row for row in found if not row['exact']]
    assert {row['op'] for row in inexact} == recorder.APPROXIMATE
    assert len(inexact) < len(found) / 20


# controls: each change of one row must be seen

def index_of(rows: list[dict], **wanted) -> int:
    return next(i for i, row in enumerate(rows) if all(row[key] == value for key, value in wanted.items()))


@pytest.mark.parametrize(('where', 'change'), [
    ({'op': 'mul', 'exact': True}, {'output': 'deadbeef'}),
    ({'op': 'cast', 'dtype_out': 'fp8e5'}, {'output': 'aa'}),
    ({'op': 'reduce_sum', 'dtype_out': 'bf16'}, {'dtype_out': 'fp32'}),
    ({'op': 'exp_neg', 'exact': False}, {'output': '7f800000'}),
    ({'op': 'exp_neg', 'exact': False}, {'output': 'ffc00000'}),
    ({'op': 'add'}, {'inputs': ['00000000', '3f800000']}),
], ids=lambda part: '-'.join(map(str, part.values())))
def test_a_changed_row_is_seen(recorder, found, where, change):
    changed = copy.deepcopy(found)
    changed[index_of(found, **where)].update(change)
    assert len(recorder.compare_rows(found, changed)) == 1


def test_a_missing_row_is_seen(recorder, found):
    assert recorder.compare_rows(found, found[:-1])


def test_an_approximate_row_may_differ_in_its_bits_but_not_in_its_class(recorder, found):
    changed = copy.deepcopy(found)
    place = index_of(found, op='exp_neg', exact=False)
    changed[place]['output'] = f'{int(found[place]["output"], 16) + 1:08x}'
    assert recorder.compare_rows(found, changed) == []
