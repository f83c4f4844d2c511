"""Where two matrices differ, in plain words: the shape of a mismatch often names its cause."""
from __future__ import annotations

import numpy as np


def _runs(indices: np.ndarray, total: int, noun: str) -> str:
    """'row 3', 'rows 4 to 7', 'the last row', 'every row', 'rows 1, 3, 5 (one in 2)' for sorted unique indices."""
    if len(indices) == total:
        return f'every {noun}'
    if len(indices) == 1:
        place = ' (the last)' if indices[0] == total - 1 else ' (the first)' if indices[0] == 0 else ''
        return f'{noun} {indices[0]}{place} of {total}'
    steps = np.diff(indices)
    if (steps == 1).all():
        tail = ', up to the end' if indices[-1] == total - 1 else ''
        return f'{noun}s {indices[0]} to {indices[-1]} of {total}{tail}'
    if (steps == steps[0]).all():
        return f'one {noun} in {steps[0]}, from {noun} {indices[0]} on'
    shown = ', '.join(map(str, indices[:6])) + (', ...' if len(indices) > 6 else '')
    return f'{len(indices)} of {total} {noun}s ({shown})'


def describe_pattern(differs: np.ndarray, group: int | None = None) -> str:
    """bool mask [M, N] -> where it is set.

    Args:
        group: elements per scale; given for matrices whose columns fall into groups (codes), None otherwise.
    """
    if not differs.any():
        return 'nowhere'
    if differs.all():
        return 'every element'
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    parts = [_runs(rows, differs.shape[0], 'row')]
    if group and differs.shape[1] % group == 0 and differs.shape[1] > group:
        by_group = differs.reshape(differs.shape[0], -1, group)
        groups = np.flatnonzero(by_group.any(axis=(0, 2)))
        parts.append(_runs(groups, by_group.shape[1], 'group'))
        positions = np.flatnonzero(by_group.any(axis=(0, 1)))
        parts.append(_runs(positions, group, 'position') + ' in the group')
    else:
        parts.append(_runs(columns, differs.shape[1], 'column'))
    return f'{int(differs.sum())} of {differs.size} elements: ' + '; '.join(parts)


def step_histogram(actual: np.ndarray, expected: np.ndarray) -> dict[str, int]:
    """Unsigned bit patterns that differ -> how many neighbours apart they lie ('1', '2', '3+', 'sign')."""
    width = actual.dtype.itemsize * 8
    sign = np.array(1 << (width - 1), actual.dtype)
    different = actual != expected
    flipped = different & (((actual ^ expected) & sign) != 0)
    distance = np.abs((actual & ~sign).astype(np.int64) - (expected & ~sign).astype(np.int64))[different & ~flipped]
    counts = {'1': int((distance == 1).sum()), '2': int((distance == 2).sum()), '3+': int((distance > 2).sum()),
              'sign': int(flipped.sum())}
    return {name: count for name, count in counts.items() if count}
