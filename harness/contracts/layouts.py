"""Where the same values lie in memory: gaps between rows, and rows past 2^31 elements."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from harness.evidence.bits import from_numpy_bits

# 2^24 + 3 rows of 128 columns: the last elements lie past 2^31, where 32-bit offsets wrap.
FAR_ROWS = 2**24 + 3
FAR_SPOTS = ((0, 2), (2**23 - 1, 2**23 + 1), (2**24 - 2, 2**24 + 3))


def with_gaps(tensor: torch.Tensor, gaps: dict[int, int]) -> torch.Tensor:
    """The same values in memory in which dimension d is longer by gaps[d] elements.

    The gaps hold zeros here; a trial copies inputs into guarded memory, where they hold its poison.
    """
    wide = tensor.new_zeros([size + gaps.get(dim, 0) for dim, size in enumerate(tensor.shape)])
    return wide[tuple(slice(size) for size in tensor.shape)].copy_(tensor)


def far_rows(columns: int, dtype: torch.dtype, device: torch.device, make: Callable[[int], np.ndarray]) -> torch.Tensor:
    """[FAR_ROWS, columns], `make(count)` (uint16 [count, columns]) at the spots and zeros elsewhere."""
    x = torch.zeros(FAR_ROWS, columns, dtype=dtype, device=device)
    for start, stop in FAR_SPOTS:
        x[start:stop] = from_numpy_bits(make(stop - start), dtype, device)
    return x
