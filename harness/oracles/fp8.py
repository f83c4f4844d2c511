"""The FP8 formats e4m3fn and e5m2: every code's value from the format's definition, and rounding by table.

Independent of ml_dtypes and of torch on purpose; the self-tests hold all three against each other.
"""
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Fp8:
    """An 8-bit format.

    Attributes:
        name: 'e4m3fn' or 'e5m2'.
        exponent_bits, mantissa_bits, bias: its layout behind the sign bit.
        last_finite: code of the largest finite value; codes above it are NaN (e4m3fn) or infinity and NaN (e5m2).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    last_finite: int

    @cached_property
    def values(self) -> np.ndarray:
        """float64 [last_finite + 1]: value of every non-negative finite code, ascending."""
        codes = np.arange(self.last_finite + 1)
        exponent = codes >> self.mantissa_bits
        fraction = (codes & ((1 << self.mantissa_bits) - 1)) / (1 << self.mantissa_bits)
        normal = np.ldexp(1 + fraction, exponent - self.bias)
        subnormal = np.ldexp(fraction, 1 - self.bias)
        return np.where(exponent == 0, subnormal, normal)

    @property
    def maximum(self) -> float:
        return float(self.values[-1])

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """uint8 codes -> float64 values. Codes above `last_finite` give NaN."""
        magnitude = np.asarray(codes, np.uint8) & 0x7F
        known = np.append(self.values, np.full(128 - len(self.values), np.nan))[magnitude]
        return np.where(np.asarray(codes, np.uint8) & 0x80, -known, known)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """float64 values without NaN -> uint8 codes: to nearest, ties to the even code, saturating, -0 kept."""
        values = np.asarray(values, np.float64)
        magnitude = np.minimum(np.abs(values), self.maximum)
        above = np.searchsorted(self.values, magnitude, side='left')
        below = np.maximum(above - 1, 0)
        to_above, to_below = self.values[above] - magnitude, magnitude - self.values[below]
        take_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
        codes = np.where(take_above, above, below).astype(np.uint8)
        return codes | np.where(np.signbit(values), np.uint8(0x80), np.uint8(0))


E4M3FN = Fp8('e4m3fn', exponent_bits=4, mantissa_bits=3, bias=7, last_finite=0x7E)
E5M2 = Fp8('e5m2', exponent_bits=5, mantissa_bits=2, bias=15, last_finite=0x7B)
FP8_FORMATS = {'e4m3fn': E4M3FN, 'e5m2': E5M2}
