"""Layouts change where values lie, never the values; the far rows reach past 2^31 elements where it matters."""
import numpy as np
import pytest
import torch

from harness.contracts import layouts


@pytest.mark.parametrize(('shape', 'gaps', 'strides'), [
    ((3, 8), {1: 5}, (13, 1)), ((3, 8), {0: 2}, (8, 1)), ((2, 3, 4), {1: 2}, (20, 4, 1)),
    ((2, 3, 4), {1: 1, 2: 6}, (40, 10, 1)), ((0, 8), {1: 5}, (13, 1)),
])
def test_gaps_keep_the_values_and_lengthen_the_strides(shape, gaps, strides):
    x = torch.arange(1, 1 + int(np.prod(shape)), dtype=torch.float32).reshape(shape)
    found = layouts.with_gaps(x, gaps)
    assert torch.equal(found, x)
    assert found.stride() == strides
    assert found.dtype == x.dtype


def test_the_far_rows_wrap_32_bits_in_an_output_of_one_group():
    last = (layouts.FAR_ROWS - 1) * 128
    assert last >= 2**31
    assert layouts.FAR_SPOTS[-1][1] == layouts.FAR_ROWS
    assert any(start * 256 < 2**31 <= (stop - 1) * 256 for start, stop in layouts.FAR_SPOTS)  # the input's own edge


def test_far_rows_hold_what_is_made_at_the_spots_and_zeros_elsewhere(monkeypatch):
    monkeypatch.setattr(layouts, 'FAR_ROWS', 9)
    monkeypatch.setattr(layouts, 'FAR_SPOTS', ((0, 2), (7, 9)))
    found = layouts.far_rows(4, torch.float16, torch.device('cpu'), lambda rows: np.full((rows, 4), 0x3C00, np.uint16))
    assert found[:, 0].tolist() == [1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert found.shape == (9, 4)
