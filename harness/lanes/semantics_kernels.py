"""Small kernels that show what one operation does to special values: one operation, one store, nothing around it.

The module is imported after the lane was activated, so that `triton.jit` gives compiled or interpreted kernels.
"""
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _store_format(format_ptr, value):
    # what the front end made of the operands (bf16 is often promoted): total bits * 100 + bits of the mantissa
    tl.store(format_ptr, value.dtype.primitive_bitwidth * 100 + value.dtype.fp_mantissa_width)


@triton.jit
def unary(a_ptr, out_ptr, format_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """a [n] -> out [n]; `format_ptr` [1] int32 receives the format of the result before the store converts it."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offsets, mask=offsets < n)
    if OP == 'cast':
        out = a.to(out_ptr.dtype.element_ty)
    elif OP == 'abs':
        out = tl.abs(a)
    elif OP == 'neg':
        out = -a
    elif OP == 'maximum_floor':
        out = tl.maximum(a, 1e-6)
    elif OP == 'clamp_symmetric':
        out = tl.clamp(a, -448.0, 448.0)
    elif OP == 'clamp_asymmetric':
        out = tl.clamp(a, -2.0, 448.0)
    elif OP == 'exp_neg':
        out = tl.exp(-a)
    elif OP == 'silu':
        out = a / (1 + tl.exp(-a))
    _store_format(format_ptr, out)
    tl.store(out_ptr + offsets, out, mask=offsets < n)


@triton.jit
def binary(a_ptr, b_ptr, out_ptr, format_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """a [n], b [n] -> out [n]. 'compare' packs six answers into one number: < 1, <= 2, > 4, >= 8, == 16, != 32."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offsets, mask=offsets < n)
    b = tl.load(b_ptr + offsets, mask=offsets < n)
    if OP == 'add':
        out = a + b
    elif OP == 'sub':
        out = a - b
    elif OP == 'mul':
        out = a * b
    elif OP == 'div':
        out = a / b
    elif OP == 'maximum':
        out = tl.maximum(a, b)
    elif OP == 'minimum':
        out = tl.minimum(a, b)
    elif OP == 'where_gt':
        out = tl.where(a > b, a, b)
    elif OP == 'compare':
        ordered = tl.where(a < b, 1.0, 0.0) + tl.where(a <= b, 2.0, 0.0) + tl.where(a > b, 4.0, 0.0)
        out = ordered + tl.where(a >= b, 8.0, 0.0) + tl.where(a == b, 16.0, 0.0) + tl.where(a != b, 32.0, 0.0)
    _store_format(format_ptr, out)
    tl.store(out_ptr + offsets, out, mask=offsets < n)


@triton.jit
def ternary(a_ptr, b_ptr, c_ptr, out_ptr, format_ptr, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    """a, b, c [n] -> out [n]: fma(a, b, c), or a clamped to [b, c] where the bounds are known at run time only."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + offsets, mask=offsets < n)
    b = tl.load(b_ptr + offsets, mask=offsets < n)
    c = tl.load(c_ptr + offsets, mask=offsets < n)
    if OP == 'fma':
        out = tl.fma(a, b, c)
    elif OP == 'clamp':
        out = tl.clamp(a, b, c)
    _store_format(format_ptr, out)
    tl.store(out_ptr + offsets, out, mask=offsets < n)


@triton.jit
def row_reduction(a_ptr, out_ptr, format_ptr, OP: tl.constexpr, WIDTH: tl.constexpr):
    """a [rows, WIDTH] -> out [rows], one program per row."""
    row = tl.program_id(0)
    a = tl.load(a_ptr + row * WIDTH + tl.arange(0, WIDTH))
    if OP == 'max':
        out = tl.max(a, axis=0)
    elif OP == 'min':
        out = tl.min(a, axis=0)
    elif OP == 'amax':
        out = tl.max(tl.abs(a), axis=0)
    elif OP == 'amax_floor':
        out = tl.maximum(tl.max(tl.abs(a), axis=0), 1e-6)
    elif OP == 'sum':
        out = tl.sum(a, axis=0)
    _store_format(format_ptr, out)
    tl.store(out_ptr + row, out)
