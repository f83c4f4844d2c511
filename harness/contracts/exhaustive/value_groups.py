"""Every realisable (value, group maximum) pair, packed into groups: one element is the maximum, 127 are not larger.

For a maximum with the bit pattern m, the values are the patterns 0..m with both signs (magnitudes of 16-bit floats are
ordered as their bits are), infinity included; NaN never is a maximum. They fill ceil(2 (m + 1) / 127) groups.
"""
from __future__ import annotations

import numpy as np
import torch

from harness.contracts.exhaustive.plan import GROUP

_VALUES_PER_GROUP = GROUP - 1
_SIGN = 0x8000


class ValueGroups:
    """The groups of every maximum from 0 to `largest` (bit patterns), numbered one after the other.

    The maximum of group g stands at position g % 128, its sign changes every 128 groups.

    Attributes:
        count: of groups.
        pairs: (value, maximum) pairs in all of them.
    """

    def __init__(self, largest: int, device: torch.device):
        maxima = np.arange(largest + 1, dtype=np.int64)
        groups = -(-2 * (maxima + 1) // _VALUES_PER_GROUP)
        self._first = np.concatenate([[0], np.cumsum(groups)])  # first group of every maximum, and their number
        self._first_on_device = torch.from_numpy(self._first).to(device)
        self._place = torch.arange(GROUP, device=device)
        self.count = int(self._first[-1])
        self.pairs = int((2 * (maxima + 1)).sum())

    def of_maxima(self, maxima: np.ndarray) -> np.ndarray:
        """int64 numbers of the first and the last group of each of `maxima`, without repetition."""
        return np.unique(np.concatenate([self._first[maxima], self._first[maxima + 1] - 1]))

    def pairs_in(self, groups: np.ndarray) -> int:
        """How many (value, maximum) pairs the groups with these numbers hold."""
        maxima = np.searchsorted(self._first, groups, side='right') - 1
        before = (groups - self._first[maxima]) * _VALUES_PER_GROUP
        return int(np.minimum(2 * (maxima + 1) - before, _VALUES_PER_GROUP).sum())

    def bits(self, groups: torch.Tensor) -> torch.Tensor:
        """Numbers int64 [n] on the device -> int16 bits [n, 128]; a maximum's last group repeats the last value."""
        maxima = torch.searchsorted(self._first_on_device, groups, right=True) - 1
        block = groups - self._first_on_device[maxima]
        at = groups % GROUP  # [n], where the maximum stands
        place, maximum = self._place[None, :], maxima[:, None]
        index = block[:, None] * _VALUES_PER_GROUP + place - (place > at[:, None]).to(torch.int64)
        index = torch.minimum(index, 2 * maximum + 1)
        values = (index >> 1) | ((index & 1) * _SIGN)
        signed_maximum = maximum | (((groups[:, None] // GROUP) & 1) * _SIGN)
        values = torch.where(place == at[:, None], signed_maximum, values)
        # To the int16 with the same bits: 0x8000..0xffff are its negative numbers.
        return ((values ^ _SIGN) - _SIGN).to(torch.int16)
