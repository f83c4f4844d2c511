"""How a tensor core adds products of FP8 codes, bit by bit.

One instruction adds `step` products to an accumulator C at once. With e_max the largest exponent among the products'
(that of a product is the sum of its factors' exponents, as stored, so that the product may reach 4 * 2^e_max) and C:

    total  = sum over the step of trunc_F(a_i * b_i) + trunc_F(C)     trunc_F: cut below 2^(e_max - F), toward zero
    C'     = total, cut to Fo fraction bits, toward zero

which is the public description of these units (MMA-Sim, 2025); `step`, F and Fo are the instruction's. Values travel
as float64, in which every step here is exact. Powers of two are made from bits: pow and exp2 are not exact on a GPU.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch

NO_EXPONENT = -2000


@dataclass(frozen=True)
class Instruction:
    """What adds the products.

    Attributes:
        name: as in the compiled code.
        step: products that are added at once; None: all of a scale group.
        alignment_bits: F; None: nothing is cut inside a step.
        output_bits: Fo. A step's result is off by less than 2^-Fo of itself.
        scale_roundings: roundings that changing to the next group's scale can take, in units of 2^-24: a multiplication
            1, a division 1 where it is correctly rounded and 4 for `div.full.f32`.
        order: in which order 32 neighbours along K meet the instruction; None: as they stand.
    """

    name: str
    step: int | None
    alignment_bits: int | None
    output_bits: int
    scale_roundings: int
    order: tuple[int, ...] | None = None

    def in_order(self, codes: torch.Tensor) -> torch.Tensor:
        """[..., K] with the columns in the order in which the instruction takes them."""
        if self.order is None:
            return codes
        return codes.unflatten(-1, (-1, len(self.order)))[..., list(self.order)].flatten(-2)


# Triton gives each of four threads four neighbouring bytes, of which one mma.sync takes the first two and the next one
# the others: of 32 neighbours along K, k % 4 in {0, 1} are added before k % 4 in {2, 3}.
_PAIRS = tuple(k for k in range(32) if k % 4 < 2) + tuple(k for k in range(32) if k % 4 >= 2)

# FP8 operands as they are; FP8 operands widened to fp16; the repaired interpreter, which rounds a dot once to float32
# and adds it to the accumulator.
WGMMA = Instruction('wgmma', 32, 13, 13, 5)
MMA = Instruction('mma.sync', 16, 25, 23, 5, _PAIRS)
FLOAT32 = Instruction('float32', None, None, 24, 2)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """int64 exponents from -1022 to 1023 -> 2^exponent, float64, exact on every device."""
    return ((exponent + 1023) << 52).view(torch.float64)


def exponent_of(values: torch.Tensor) -> torch.Tensor:
    """floor(log2 |values|) of finite float64 values, int64; of 0 and of subnormals a number below every other."""
    field = (values.view(torch.int64) >> 52) & 0x7FF
    return torch.where(field == 0, NO_EXPONENT, field - 1023)


def truncated(values: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """float64 values cut to multiples of 2^exponent, toward zero."""
    return torch.trunc(values * power_of_two(-exponent)) * power_of_two(exponent)


def add_products(products: torch.Tensor, exponents: torch.Tensor, accumulator: torch.Tensor,
                 instruction: Instruction) -> torch.Tensor:
    """One instruction: products float64 [..., step], their exponents int64 [..., step], accumulator float64 [...]."""
    live = torch.where(products == 0, NO_EXPONENT, exponents)
    largest = torch.maximum(live.amax(-1), exponent_of(accumulator))
    cut = largest.clamp(min=-900) - instruction.alignment_bits
    total = truncated(products, cut[..., None]).sum(-1) + truncated(accumulator, cut)
    return truncated(total, exponent_of(total).clamp(min=-900) - instruction.output_bits)


def code_exponents(values: torch.Tensor, smallest: int) -> torch.Tensor:
    """Exponents as the format stores them: float64 values of codes -> int64, subnormals at `smallest`."""
    return exponent_of(values).clamp(min=smallest)


def dot(a: torch.Tensor, b: torch.Tensor, accumulator: torch.Tensor, instruction: Instruction,
        smallest: int) -> torch.Tensor:
    """accumulator [..., m, N] + a [..., m, K] @ b [..., N, K]^T, instruction after instruction along K.

    Args:
        a, b: float64 values of FP8 codes; K a multiple of the step.
        smallest: exponent of the format's smallest normal number (-6 for e4m3fn, -14 for e5m2).
    """
    a, b = instruction.in_order(a), instruction.in_order(b)
    a_exponent, b_exponent = code_exponents(a, smallest), code_exponents(b, smallest)
    for first in range(0, a.size(-1), instruction.step):
        part = slice(first, first + instruction.step)
        products = a[..., :, None, part] * b[..., None, :, part]
        exponents = a_exponent[..., :, None, part] + b_exponent[..., None, :, part]
        accumulator = add_products(products, exponents, accumulator, instruction)
    return accumulator
