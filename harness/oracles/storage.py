"""The 16-bit storage formats (bf16, fp16): rounding, ordering and neighbours, from their definition.

Values travel as float64 and bits as uint16, so that nothing here depends on a library's conversion.
"""
from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """A binary floating point format with subnormals and infinities.

    Attributes:
        name: 'bf16' or 'fp16'.
        mantissa: explicit fraction bits.
        exponent_min: exponent of the smallest normal number.
        numpy: dtype whose bit layout this is.
    """

    name: str
    mantissa: int
    exponent_min: int
    numpy: np.dtype

    @property
    def infinity(self) -> int:
        """Bits of +infinity."""
        return 0x7FFF >> self.mantissa << self.mantissa

    @property
    def largest(self) -> float:
        """Largest finite value."""
        return float(self.decode(np.array([self.infinity - 1], np.uint16))[0])

    def decode(self, bits: np.ndarray) -> np.ndarray:
        """uint16 bits -> float64 values, exact."""
        with np.errstate(invalid='ignore'):  # a signalling NaN is a value like others here
            return np.ascontiguousarray(bits, np.uint16).view(self.numpy).astype(np.float64)

    def round(self, values: np.ndarray) -> np.ndarray:
        """float64 values -> uint16 bits, to nearest, ties to even, once; past the range to infinity.

        NaN becomes the positive quiet NaN with all fraction bits set, which is what the GPU's conversion gives.
        """
        values = np.asarray(values, np.float64)
        finite = np.isfinite(values)
        magnitude = np.abs(np.where(finite, values, 0.0))
        exponent = np.maximum(np.frexp(magnitude)[1] - 1, self.exponent_min)
        # Division by a power of two is exact in float64 here, and rint rounds ties to even.
        steps = np.rint(np.ldexp(magnitude, self.mantissa - exponent))
        rounded = np.ldexp(steps, exponent - self.mantissa)
        rounded = np.where(rounded > self.largest, np.inf, rounded)
        rounded = np.where(np.isinf(values), np.inf, rounded)
        bits = rounded.astype(self.numpy).view(np.uint16)
        bits = bits | np.where(np.signbit(values), np.uint16(0x8000), np.uint16(0))
        return np.where(np.isnan(values), np.uint16(0x7FFF), bits).astype(np.uint16)

    def is_nan(self, bits: np.ndarray) -> np.ndarray:
        return (np.asarray(bits, np.uint16) & 0x7FFF) > self.infinity


BF16 = Format('bf16', mantissa=7, exponent_min=-126, numpy=np.dtype(ml_dtypes.bfloat16))
FP16 = Format('fp16', mantissa=10, exponent_min=-14, numpy=np.dtype(np.float16))
FORMATS = {'bf16': BF16, 'fp16': FP16}


def steps_apart(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """How many representable values lie between two uint16 bit patterns; -0 and +0 are one value, NaN has no order."""

    def position(bits):
        bits = np.asarray(bits, np.uint16).astype(np.int32)
        return np.where(bits & 0x8000, -(bits & 0x7FFF), bits)

    return np.abs(position(left) - position(right))
