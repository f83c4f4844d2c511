"""The block-scaled FP8 GEMM of one expert: a [m, K] times b [N, K] transposed, a scale per row and K group of a and per
group of rows and K group of b. Every function takes leading dimensions, too: several experts with as many rows each.

    c[i, n] = sum over g of sigma_g * sum over k in group g of a[i, k] * b[n, k]
    sigma_g = a_scale[i, g] * b_scale[n // group_n, g]

All values are float64, in which `exact` errs by less than 2^-50 of the terms. The bound follows the machine, step by
step: see `error_bound`.
"""
from __future__ import annotations

import torch

from harness.oracles.tensor_core import (
    FLOAT32,
    MMA,
    NO_EXPONENT,
    WGMMA,
    Instruction,
    code_exponents,
    dot,
    exponent_of,
    power_of_two,
)

__all__ = ['FLOAT32', 'MMA', 'WGMMA', 'Instruction', 'emulate', 'error_bound', 'exact', 'scale_products']

UNIT = 2.0**-24
# What the kernels take instead of a smaller product of scales, in every K group but the first.
SCALE_FLOOR = 1e-12
# Output dtype -> (half a step relative to the value, half the smallest step).
OUTPUT_ROUNDING = {'fp32': (0.0, 0.0), 'bf16': (2.0**-8, 2.0**-134), 'fp16': (2.0**-11, 2.0**-25)}


def scale_products(a_scale: torch.Tensor, b_scale: torch.Tensor, columns: int) -> torch.Tensor:
    """a_scale [m, G] and b_scale [N / group_n, G], float64 -> sigma [m, N, G]."""
    by_column = b_scale.repeat_interleave(columns // b_scale.size(-2), -2)
    return a_scale[..., :, None, :] * by_column[..., None, :, :]


def exact(a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor,
          bias: torch.Tensor | None = None) -> torch.Tensor:
    """c float64 [m, N], with bias [N] ([..., 1, N] with leading dimensions) added where there is one.

    Args:
        a [m, K], b [N, K]: float64 values of the codes. a_scale [m, G], b_scale [N / group_n, G]: float64, G divides K.
    """
    sigma, group = scale_products(a_scale, b_scale, b.size(-2)), a.size(-1) // a_scale.size(-1)
    total = torch.zeros_like(sigma[..., 0])
    for g in range(a_scale.size(-1)):
        part = slice(g * group, (g + 1) * group)
        total += sigma[..., g] * (a[..., part] @ b[..., part].mT)
    return total if bias is None else total + bias


def error_bound(a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor,
                instruction: Instruction, out: str, smallest: int = -6,
                bias: torch.Tensor | None = None) -> torch.Tensor:
    """How far a right kernel's c may lie from `exact`, float64 [m, N]; the first four arguments as there.

    With C_t the exact sum of the first t steps of products and P_t that of its own group's, the error E grows by

        sigma_g 2^(e_t - F) (1 + n_t)   every term with bits under 2^(e_t - F) is cut, the accumulator among them;
                                        2^e_t <= max((max(|C|, sigma_g |P|) + E) / sigma_g, largest 2^(ea + eb))
        2^-Fo (max(|C|, sigma_g |P|) + E)               the step's result is cut
        3 * 2^-24 sigma_g |P|           once a group: the product of two scales, a partial sum scaled by itself
        r * 2^-24 (|C| + E)             once a group: the accumulator goes over to the next group's scale
        (max(sigma_g, 1e-12) - sigma_g) |P|             but for the first group: the kernels' floor

    (sigma_g elsewhere being what the kernel takes), and at the end by the addition of the bias (2^-24) and the output
    dtype's rounding. P beside C covers a kernel that gives each group an accumulator of its own as well as one that
    rescales a running one.

    Args:
        instruction: what adds the products. out: 'bf16', 'fp16' or 'fp32'.
        smallest: exponent of the smallest normal code, -14 for e5m2; -6, of e4m3fn, holds for both.
    """
    group = a.size(-1) // a_scale.size(-1)
    step = instruction.step or group
    a, b = instruction.in_order(a), instruction.in_order(b)
    sigma = scale_products(a_scale, b_scale, b.size(-2))
    total, error = (torch.zeros_like(sigma[..., 0]) for _ in range(2))
    for g in range(a_scale.size(-1)):
        signed, partial = sigma[..., g], torch.zeros_like(total)
        scale = signed.abs()
        unit = scale.clamp(min=SCALE_FLOOR) if g else scale
        for first in range(g * group, (g + 1) * group, step):
            columns = slice(first, first + step)
            if instruction.alignment_bits is not None:
                reached = torch.maximum(total.abs(), unit * partial.abs()) + error
                error = error + unit * _cut(a[..., columns], b[..., columns], reached / unit.clamp(min=2.0**-500),
                                            instruction.alignment_bits, smallest)
            products = a[..., columns] @ b[..., columns].mT
            partial, total = partial + products, total + signed * products
            reached = torch.maximum(total.abs(), unit * partial.abs()) + error
            error = error + 2.0**-instruction.output_bits * reached
        own = unit * partial.abs()
        error = error + 3 * UNIT * own + instruction.scale_roundings * UNIT * (total.abs() + error)
        error = error + (unit - scale) * partial.abs()
    if bias is not None:
        total = total + bias
        error = error + UNIT * (total.abs() + error)
    relative, half_smallest = OUTPUT_ROUNDING[out]
    return error + relative * (total.abs() + error) + half_smallest


def _cut(a: torch.Tensor, b: torch.Tensor, reached: torch.Tensor, alignment_bits: int, smallest: int) -> torch.Tensor:
    """What one step of products a [m, step], b [N, step] cuts off at most beside an accumulator `reached` [m, N]."""
    products = a[..., :, None, :] * b[..., None, :, :]
    exponents = code_exponents(a, smallest)[..., :, None, :] + code_exponents(b, smallest)[..., None, :, :]
    largest = torch.maximum(torch.where(products == 0, NO_EXPONENT, exponents).amax(-1), exponent_of(reached))
    exponent = largest.clamp(-900, 900) - alignment_bits
    in_units = products * power_of_two(-exponent)[..., None]
    return power_of_two(exponent) * (1 + (in_units != in_units.trunc()).sum(-1))


def emulate(a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor, instruction: Instruction,
            smallest: int) -> torch.Tensor:
    """c [m, N], float64, as a running accumulator gives it in float32 where every product of scales is a power of two
    (which a change of unit then leaves exact) and at least the floor. Arguments as in `error_bound`."""
    group = a.size(-1) // a_scale.size(-1)
    sigma = scale_products(a_scale, b_scale, b.size(-2))
    accumulator = torch.zeros_like(sigma[..., 0])
    for g in range(a_scale.size(-1)):
        columns = slice(g * group, (g + 1) * group)
        accumulator = accumulator / sigma[..., g]
        if instruction.step is None:
            accumulator = _float32(_float32(a[..., columns] @ b[..., columns].mT) + accumulator)
        else:
            accumulator = dot(a[..., columns], b[..., columns], accumulator, instruction, smallest)
        accumulator = accumulator * sigma[..., g]
    return accumulator


def _float32(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float32).to(torch.float64)
