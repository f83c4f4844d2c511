"""Small kernels for repairs that the semantics table does not reach. Import after the cpu lane is active."""
from __future__ import annotations

import triton
import triton.language as tl

alias_of_exp = tl.math.exp


@triton.jit
def times_argument(x_ptr, out_ptr, width_ptr, factor, N: tl.constexpr):
    product = tl.load(x_ptr + tl.arange(0, N)) * factor
    tl.store(width_ptr, product.dtype.primitive_bitwidth)
    tl.store(out_ptr + tl.arange(0, N), product)


@triton.jit
def plus_constant(x_ptr, out_ptr, width_ptr, N: tl.constexpr):
    total = tl.load(x_ptr + tl.arange(0, N)) + 1.5
    tl.store(width_ptr, total.dtype.primitive_bitwidth)
    tl.store(out_ptr + tl.arange(0, N), total)


@triton.jit
def convert(x_ptr, out_ptr, N: tl.constexpr, ROUNDING: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr + tl.arange(0, N), x.to(out_ptr.dtype.element_ty, fp_downcast_rounding=ROUNDING))


@triton.jit
def product(a_ptr, b_ptr, out_ptr, N: tl.constexpr):
    offsets = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    tl.store(out_ptr + offsets, tl.dot(tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)))


@triton.jit
def clamp_to_arguments(x_ptr, out_ptr, low, high, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), tl.clamp(tl.load(x_ptr + tl.arange(0, N)), low, high))


@triton.jit
def accumulate(x_ptr, out_ptr, N: tl.constexpr):
    tl.atomic_add(out_ptr + tl.arange(0, N), tl.load(x_ptr + tl.arange(0, N)))


@triton.jit
def through_alias(x_ptr, out_ptr, N: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, N), alias_of_exp(tl.load(x_ptr + tl.arange(0, N))))
