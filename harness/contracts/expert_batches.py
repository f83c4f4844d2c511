"""Experts that the oracles compute together: one of a few rows leaves a device idle, and Python is what takes the time.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

# Products that are held at once: 64 MiB of float64.
_MOST_PRODUCTS = 2**23
# Products of one row and column that are held at once, see harness/oracles/tensor_core.py.
_STEP = 32


def batches(rows: Sequence[torch.Tensor], columns: int) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Cut experts into batches of like size.

    Args:
        rows: int64 [m_e] for every expert, m_e > 0: its rows. columns: N of the GEMM.

    Yields:
        (places in `rows`, int64 [E, m] of their rows). Where an expert has fewer than m, its last one stands again, so
        that whatever is stored by row is stored twice alike.
    """
    batch: list[int] = []
    for place in sorted(range(len(rows)), key=lambda at: len(rows[at])):
        if batch and (len(batch) + 1) * len(rows[place]) * columns * _STEP > _MOST_PRODUCTS:
            yield batch, _padded([rows[at] for at in batch])
            batch = []
        batch.append(place)
    if batch:
        yield batch, _padded([rows[at] for at in batch])


def _padded(rows: list[torch.Tensor]) -> torch.Tensor:
    most = max(map(len, rows))
    return torch.stack([torch.cat([own, own[-1:].expand(most - len(own))]) for own in rows])
