"""Runs one operation on whole arrays of bit patterns, through real Triton kernels on the cpu lane."""
from __future__ import annotations

import numpy as np
import torch

from harness.lanes.activation import activate
from harness.lanes.lane import Lane

_LARGEST_BLOCK = 1 << 17


def apply(kernel: str, op: str, operands: list[np.ndarray], source: str, target: str) -> np.ndarray:
    """Bits in, bits out.

    `operands` are unsigned integer arrays of one length, the bit patterns of format `source`; the result holds bit
    patterns of `target`, which must be the format in which the operation answers.
    """
    device = activate(Lane.CPU)
    from harness.lanes import semantics_kernels  # triton must not be imported before the lane is active
    from harness.lanes.record_semantics import INTEGERS, TORCH
    from harness.lanes.semantics_inputs import FORMATS
    count = operands[0].size
    block = min(_LARGEST_BLOCK, 1 << max(count - 1, 1).bit_length())
    inputs = [_as_tensor(a).view(TORCH[source]).to(device) for a in operands]
    out = torch.zeros(count, dtype=INTEGERS[FORMATS[target].bits], device=device).view(TORCH[target])
    answered = torch.zeros(1, dtype=torch.int32, device=device)
    getattr(semantics_kernels, kernel)[(-(-count // block), )](*inputs, out, answered, count, OP=op, BLOCK=block)
    expected = FORMATS[target].bits * 100 + FORMATS[target].mantissa
    assert int(answered) == expected, f'{op} on {source}: expected an answer in {target}, found format {int(answered)}'
    return out.view(INTEGERS[FORMATS[target].bits]).numpy().view(FORMATS[target].storage)


def cast(bits: np.ndarray, source: str, target: str) -> np.ndarray:
    return apply('unary', 'cast', [bits], source, target)


def _as_tensor(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits if bits.dtype == np.uint8 else bits.view(f'int{bits.dtype.itemsize * 8}'))
