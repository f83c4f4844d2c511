"""The byte comparison: equal passes and leaves a record, anything else is red and explained."""
import numpy as np
import pytest
import torch

from harness.evidence.bits import from_numpy_bits
from harness.evidence.compare import Context, compare_bytes, compare_layout
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.pattern import describe_pattern, step_histogram
from harness.evidence.verdicts import Outcome, Reason

CONTEXT = Context('pytest one-case', lambda name, index: [f'gate at {index}'])


def floats(*values, dtype=torch.float32):
    return torch.tensor([values], dtype=dtype)


def bits16(*patterns):
    return from_numpy_bits(np.array([patterns], np.uint16), torch.bfloat16, torch.device('cpu'))


def test_equal_bytes_leave_a_record_with_nan_and_negative_zero_counted():
    log = EvidenceLog()
    left = floats(1.0, float('nan'), -0.0, 0.0)
    compare_bytes(log, 'a against b', 'scales', left, left.clone(), CONTEXT)
    (record,) = log.records
    assert (record.kind, record.compared, record.differing) == ('bytes', 16, 0)
    assert record.detail == {'nan': 1, 'negative_zero': 1}


@pytest.mark.parametrize(('left', 'right'), [
    (floats(float('nan')), floats(1.0)),
    (floats(1.0), floats(float('nan'))),
    (floats(-0.0), floats(0.0)),
    (floats(float('inf')), floats(float('-inf'))),
    (floats(1.0), floats(np.nextafter(np.float32(1), np.float32(2)))),
    (bits16(0x7FC0), bits16(0xFFC0)),
    (bits16(0x7FC0), bits16(0x7FFF)),
], ids=['nan-number', 'number-nan', 'zero-sign', 'infinity-sign', 'one-step', 'nan-sign', 'nan-payload'])
def test_what_equality_of_floats_would_miss_is_red(left, right):
    log = EvidenceLog()
    with pytest.raises(ContractBroken) as broken:
        compare_bytes(log, 'a against b', 'scales', left, right, CONTEXT)
    assert broken.value.reason is Reason.BYTES
    assert log.records[0].differing == 1


def test_one_wrong_element_among_many_is_red_and_located():
    left = torch.zeros(7, 256, dtype=torch.bfloat16)
    right = left.clone()
    right[6, 130] = 1.0
    with pytest.raises(ContractBroken) as broken:
        compare_bytes(EvidenceLog(), 'found against expected', 'codes', left, right,
                      Context('pytest that-case', CONTEXT.inputs_at, group=128))
    text = str(broken.value)
    for part in ('codes[6, 130]', '0.0 (0x0000)', '1.0 (0x3f80)', 'gate at (6, 130)', 'row 6 (the last) of 7',
                 'group 1 (the last) of 2', 'position 2 of 128', 'reproduce: pytest that-case'):
        assert part in text


@pytest.mark.parametrize('other', [torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float16)], ids=['shape', 'dtype'])
def test_another_shape_or_dtype_is_red(other):
    with pytest.raises(ContractBroken):
        compare_bytes(EvidenceLog(), 'a against b', 'scales', torch.zeros(3, 2), other, CONTEXT)


def test_layout_names_strides():
    with pytest.raises(ContractBroken, match=r'\(1, 4\)'):
        compare_layout(EvidenceLog(), 'layout', 'scales', torch.zeros(3, 2), (3, 2), torch.float32, CONTEXT, (1, 4))


def test_a_comparison_of_nothing_is_no_record():
    with pytest.raises(ValueError, match='at least one element'):
        Record('bytes', 'nothing', compared=0)


@pytest.mark.parametrize(('mark', 'words'), [
    (lambda m: m[:, 128:].fill(True), 'every row; group 1 (the last) of 2'),
    (lambda m: m[1::2].fill(True), 'one row in 2, from row 1 on'),
    (lambda m: m[5:].fill(True), 'rows 5 to 7 of 8, up to the end'),
    (lambda m: m[:, ::2].fill(True), 'one position in 2, from position 0 on'),
    (lambda m: m.fill(True), 'every element'),
    (lambda m: None, 'nowhere'),
], ids=['group', 'odd-rows', 'tail', 'lanes', 'all', 'none'])
def test_patterns_in_plain_words(mark, words):
    mask = np.zeros((8, 256), bool)
    mark(mask)
    assert words in describe_pattern(mask, group=128)


def test_step_histogram_counts_neighbours_and_signs():
    left = np.array([0x10, 0x10, 0x10, 0x10, 0x10], np.uint8)
    right = np.array([0x10, 0x11, 0x0E, 0x20, 0x90], np.uint8)
    assert step_histogram(left, right) == {'1': 1, '2': 1, '3+': 1, 'sign': 1}


def test_the_worst_outcome_wins_and_nothing_is_unjudged():
    assert Outcome.worst([Outcome.PASS, Outcome.UNJUDGED, Outcome.MOVED]) is Outcome.MOVED
    assert Outcome.worst([]) is Outcome.UNJUDGED
    assert Reason.OOM.outcome is Outcome.BROKEN
    assert Reason.LATENT.outcome is Outcome.MOVED
    assert Reason.TOO_FEW_SAMPLES.outcome is Outcome.UNJUDGED
