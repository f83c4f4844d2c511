"""Guarded memory: every allocation between guard bands, filled with poison, and checked afterwards.

A write outside an output lands in a guard band or in a gap of a padded output, an element that was never written
still holds poison, and a read outside an input brings in NaN.
"""
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode

GUARD_BYTES = 4096
# Two fills, so that an element that was never written differs between two runs; as 16-bit or 32-bit floats and as FP8
# codes both are ordinary negative or positive numbers, which no kernel would ignore.
OUTPUT_POISONS = (0xA5, 0x5A)
# All ones is NaN in bf16, fp16, float32 and e4m3fn; a maximum may lose NaN, but not the large finite number of 0x7B.
INPUT_POISONS = (0xFF, 0x7B)


@dataclass
class Arena:
    """One allocation. `buffer` uint8 holds guard, payload, guard; `view` is the tensor handed out."""

    buffer: torch.Tensor
    view: torch.Tensor
    poison: int

    def outside_bytes(self) -> int:
        """How many bytes of the buffer no element of the view owns."""
        return self.buffer.numel() - self.view.numel() * self.view.element_size()

    def written_outside(self) -> torch.Tensor:
        """Offsets (int64, bytes from the first byte of the view) outside the view that no longer hold the poison."""
        changed = self.buffer != self.poison
        elements = changed[GUARD_BYTES:].view(-1, self.view.element_size())[:_extent(self.view)]
        owned = torch.as_strided(elements, (*self.view.shape, elements.shape[1]),
                                 (*(s * elements.stride(0) for s in self.view.stride()), 1),
                                 elements.storage_offset())
        owned.fill_(False)
        return changed.nonzero().reshape(-1).cpu() - GUARD_BYTES


def _extent(view: torch.Tensor) -> int:
    """Elements from the first to the last that the view can reach, both included."""
    if view.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride(), strict=True))


def allocate(shape, stride, dtype: torch.dtype, device: torch.device, poison: int) -> Arena:
    """A tensor of `shape` and `stride` (elements) between guard bands, everything filled with `poison`."""
    itemsize = torch.empty((), dtype=dtype, device='meta').element_size()
    reach = 0
    if math.prod(shape):
        reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    total = GUARD_BYTES + math.ceil(reach * itemsize / 16) * 16 + GUARD_BYTES
    buffer = torch.full((total, ), poison, dtype=torch.uint8, device=device)
    view = torch.as_strided(buffer.view(dtype), tuple(shape), tuple(stride), GUARD_BYTES // itemsize)
    return Arena(buffer, view, poison)


def guard_input(tensor: torch.Tensor, poison: int = INPUT_POISONS[0]) -> Arena:
    """A copy of `tensor` (strides kept) between guard bands of poison; gaps between strided rows hold it, too."""
    arena = allocate(tensor.shape, tensor.stride(), tensor.dtype, tensor.device, poison)
    arena.view.copy_(tensor)
    return arena


class GuardedAllocations(TorchFunctionMode):
    """While active, serves torch's allocations, uninitialised and zeroed, from arenas. Stock allocates its own outputs
    and scratch, so this is how they get poison and guard bands without its help.

    Attributes:
        arenas: what was served, in order.
    """

    def __init__(self, poison: int):
        super().__init__()
        self.poison = poison
        self.arenas: list[Arena] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        if func not in _ALLOCATORS | _ZEROING or made.numel() == 0:
            return made
        arena = allocate(made.shape, made.stride(), made.dtype, made.device, self.poison)
        self.arenas.append(arena)
        return arena.view.zero_() if func in _ZEROING else arena.view

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` lies in memory that was served here."""
        return any(a.buffer.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for a in self.arenas)


_ALLOCATORS = frozenset({
    torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided
})
_ZEROING = frozenset({torch.zeros, torch.zeros_like, torch.Tensor.new_zeros})
