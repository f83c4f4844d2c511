"""Tensors as bits: the integer view in which bytes are compared, and how one element is written down."""
from __future__ import annotations

import numpy as np
import torch

_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements as integers of the same width; shape, strides and device are kept."""
    return tensor.view(_INTEGER_VIEW[tensor.element_size()]) if tensor.dtype != torch.bool else tensor


def to_numpy_bits(tensor: torch.Tensor) -> np.ndarray:
    """Bits as a contiguous unsigned numpy array of the same shape."""
    array = as_bits(tensor.detach()).contiguous().cpu().numpy()
    return array.view(np.dtype(f'u{array.dtype.itemsize}'))


def from_numpy_bits(bits: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Unsigned numpy bits [..] -> a tensor of `dtype` with those bits on `device`."""
    signed = np.ascontiguousarray(bits).view(np.dtype(f'i{bits.dtype.itemsize}'))
    return torch.from_numpy(signed.copy()).to(device).view(dtype)


def storage_numpy(tensor: torch.Tensor) -> np.ndarray:
    """bf16 or fp16 tensor -> float32 numpy values, exact, NaN with its sign: a GPU's own conversion would drop it."""
    bits = to_numpy_bits(tensor)
    if tensor.dtype == torch.bfloat16:
        return (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid='ignore'):  # a signalling NaN is a value like others here
        return bits.view(np.float16).astype(np.float32)


def describe(tensor: torch.Tensor, index: tuple[int, ...]) -> str:
    """One element: its value and its bits, for example '0.5 (0x3f00)'."""
    element = tensor[index].reshape(1)
    bits = int(to_numpy_bits(element)[0])
    value = element.to(torch.float64).item() if element.dtype.is_floating_point else element.item()
    return f'{value!r} (0x{bits:0{2 * tensor.element_size()}x})'
