"""The two ways to the same bytes, and the memory on which both are tried."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from harness.contracts.exhaustive.plan import COLUMNS, GROUP, GROUPS_PER_ROW, Arrangement
from harness.contracts.formats import TORCH_CODES, TORCH_STORAGE, QuantFormat
from harness.subjects.protocol import Subject

Quantised = tuple[torch.Tensor, torch.Tensor]
Progress = Callable[[int, int], None]  # (visited, all)


@dataclass(frozen=True)
class Sides:
    """The fused operator on trial and stock's own composition, in one format.

    Attributes:
        trial: must offer silu_and_mul_quant.
        stock: the reference, of the same install.
        fmt: row-major scales.
        device: of the lane.
    """

    trial: Subject
    stock: Subject
    fmt: QuantFormat
    device: torch.device

    @property
    def arguments(self) -> dict:
        return {'dtype': TORCH_CODES[self.fmt.codes], 'trans_scale': False, 'scale_fmt': self.fmt.scale_fmt}

    def fused(self, gate_up: torch.Tensor) -> Quantised:
        """gate_up [M, 2N] -> codes [M, N] and scales [M, N // 128] of the subject on trial."""
        return self.trial.silu_and_mul_quant(gate_up, GROUP, **self.arguments)

    def quantised(self, activated: torch.Tensor) -> Quantised:
        """activated [M, N] -> the same of stock's quantiser."""
        return self.stock.quant_fp8(activated, GROUP, **self.arguments)

    def unfused(self, gate_up: torch.Tensor) -> Quantised:
        """The same of stock's activation and quantiser, one after the other."""
        return self.quantised(self.stock.silu_and_mul(gate_up))


class PairBuffer:
    """One input whose pairs are written in place, chunk after chunk; everything else in it stays.

    Attributes:
        gate_up: [rows, 2 * COLUMNS], what the operators read.
        gates, ups: int16 [rows, slots], the pairs in it, as bits.
    """

    def __init__(self, arrangement: Arrangement, rows: int, storage: str, device: torch.device):
        self.arrangement = arrangement
        bits = torch.zeros(rows, 2 * COLUMNS, dtype=torch.int16, device=device)
        self.gate_up = bits.view(TORCH_STORAGE[storage])
        self._halves = bits[:, :COLUMNS], bits[:, COLUMNS:]
        self.gates, self.ups = (self._slots(half) for half in self._halves)

    def _slots(self, half: torch.Tensor) -> torch.Tensor:
        if self.arrangement is Arrangement.ALONE:
            # Position j in group j: columns 0, 129, 258, ...
            return half.as_strided((half.size(0), GROUPS_PER_ROW), (half.stride(0), GROUP + 1), half.storage_offset())
        return half[:, ::2] if self.arrangement is Arrangement.WITH_PARTNER else half

    def set_partner(self, gate: int, up: int) -> None:
        """The pair (bits) that stands beside every pair of the sweep."""
        if self.arrangement is not Arrangement.WITH_PARTNER:
            raise ValueError(f'set_partner: expected an arrangement with a partner, found {self.arrangement.name}')
        for half, bits in zip(self._halves, (gate, up), strict=True):
            half[:, 1::2].fill_(int(signed(np.array(bits))))

    def write(self, gates: np.ndarray, ups: np.ndarray) -> None:
        """Put uint16 bits into all slots, in order; repeated from the start if there are fewer than slots."""
        for slots, bits in ((self.gates, gates), (self.ups, ups)):
            filled = np.resize(signed(bits), tuple(slots.shape))
            slots.copy_(torch.from_numpy(filled))


def signed(bits: np.ndarray) -> np.ndarray:
    """Bits 0..65535 as int16, the integer in which torch handles them."""
    return np.asarray(bits).astype(np.uint16).view(np.int16)
