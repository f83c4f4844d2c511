"""A differing group, named: the pair, its bits on both sides, and which activation would explain them."""
from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from harness.contracts.exhaustive.plan import GROUP
from harness.contracts.exhaustive.sides import Quantised, Sides
from harness.contracts.formats import TORCH_STORAGE
from harness.evidence.bits import from_numpy_bits, to_numpy_bits

# How many representable values on either side of stock's activation are tried as an explanation.
_NEIGHBOURS = 16


@dataclass(frozen=True)
class Mismatch:
    """One element of a group whose bytes differ. All but `position` and `differing_codes` are bit patterns.

    Attributes:
        storage: format of gate, up and the activations.
        gate, up: the element's inputs.
        position: its place in the group, 0 to 127.
        activated: stock's silu(gate) * up.
        group_maximum: magnitude of stock's largest activation in the group.
        explained_by: activations near stock's with which stock's quantiser gives the bytes of the subject on trial.
        codes, scales: (of the subject on trial, of stock).
        differing_codes: how many of the group's 128 codes differ.
    """

    storage: str
    gate: int
    up: int
    position: int
    activated: int
    group_maximum: int
    explained_by: tuple[int, ...]
    codes: tuple[int, int]
    scales: tuple[int, int]
    differing_codes: int

    def as_dict(self) -> dict:
        return asdict(self)

    def lines(self, decode) -> list[str]:
        """For people. `decode`: uint16 bits -> float64 values of the storage format."""

        def value(bits):
            return f'0x{bits:04x} ({float(decode(np.array([bits], np.uint16))[0])!r})'

        scales = ', '.join(f'0x{bits:08x} ({float(np.uint32(bits).view(np.float32))!r})' for bits in self.scales)
        if self.explained_by:
            steps = ', '.join(f'{value(bits)}, {abs(bits - self.activated)} step(s) away' for bits in self.explained_by)
            explanation = f'as if activated were {steps}'
        else:
            explanation = f'no activation within {_NEIGHBOURS} steps explains the bytes of the subject on trial'
        return [f'gate {value(self.gate)}, up {value(self.up)}, position {self.position} of its group',
                f'activated (stock) {value(self.activated)}, group maximum {value(self.group_maximum)}',
                explanation,
                f'code  (on trial, stock): 0x{self.codes[0]:02x}, 0x{self.codes[1]:02x}; '
                f'{self.differing_codes} of the group\'s codes differ',
                f'scale (on trial, stock): {scales}']


def explain(sides: Sides, gate_up: torch.Tensor, group: int) -> Mismatch | None:
    """Run both sides on gate_up [M, 2N] once more and name what differs in the group with this flat index.

    Returns None if nothing differs now: one of the sides does not give the same bytes twice.
    """
    trial = _group_bytes(sides.fused(gate_up), group)
    activated = sides.stock.silu_and_mul(gate_up)
    stock = _group_bytes(sides.quantised(activated), group)
    differing = np.flatnonzero(trial[0] != stock[0])
    if not len(differing) and trial[1] == stock[1]:
        return None
    columns = activated.size(1)
    row, start = divmod(group * GROUP, columns)
    values = to_numpy_bits(activated[row, start:start + GROUP])
    magnitudes = np.where((values & 0x7FFF) > sides.fmt.storage_format.infinity, 0, values & 0x7FFF)
    element = int(differing[0]) if len(differing) else int(magnitudes.argmax())
    inputs = to_numpy_bits(gate_up[row, [start + element, columns + start + element]])
    return Mismatch(storage=sides.fmt.storage, gate=int(inputs[0]), up=int(inputs[1]), position=element,
                    activated=int(values[element]), group_maximum=int(magnitudes.max()),
                    explained_by=_explanations(sides, values, element, trial),
                    codes=(int(trial[0][element]), int(stock[0][element])), scales=(trial[1], stock[1]),
                    differing_codes=len(differing))


def _group_bytes(quantised: Quantised, group: int) -> tuple[np.ndarray, int]:
    codes, scales = quantised
    return (to_numpy_bits(codes.reshape(-1, GROUP)[group]), int(to_numpy_bits(scales.reshape(-1)[group].reshape(1))[0]))


def _explanations(sides: Sides, values: np.ndarray, element: int, trial: tuple[np.ndarray, int]) -> tuple[int, ...]:
    steps = sorted((step for step in range(-_NEIGHBOURS, _NEIGHBOURS + 1) if step), key=abs)
    candidates = [int(values[element]) + step for step in steps]
    candidates = [bits for bits in candidates if 0 <= bits <= 0xFFFF]
    groups = np.tile(values, (len(candidates), 1))
    groups[:, element] = candidates
    activated = from_numpy_bits(groups, TORCH_STORAGE[sides.fmt.storage], sides.device)
    codes, scales = (to_numpy_bits(output) for output in sides.quantised(activated))
    same = (codes == trial[0]).all(axis=1) & (scales.reshape(-1) == trial[1])
    return tuple(bits for bits, fits in zip(candidates, same, strict=True) if fits)
