"""SwiGLU fused with FP8 group quantisation: one read of gate and up, one write of codes and scales.

The result is defined by composition: quant_fp8(silu_and_mul(gate_up)), two roundings included. The activation is
therefore rounded to the input's dtype after silu and again after the product, although both live in registers here:
a fused kernel that skips one of them is faster by nothing and different in one code of thirty.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl

SUPPORTED_GROUP_SIZES = (128, )
SUPPORTED_INPUTS = (torch.bfloat16, torch.float16)
SUPPORTED_CODES = (torch.float8_e4m3fn, torch.float8_e5m2)
SUPPORTED_SCALE_FMTS = (None, 'ue8m0')

# amax is floored here so that an all-zero group has a finite scale; the value is lmdeploy's.
AMAX_FLOOR = tl.constexpr(1e-6)
# Column-major scales are read by TMA, which wants a pitch of 16 bytes.
TMA_PITCH_BYTES = 16


# One tile for every size: at 8 groups to 4 warps, decode launches (16 to 512 groups) cost within 4 % of the best tile
# of their own, and large ones within 6 %, so that a second one would not pay for the choice.
GROUPS_PER_PROGRAM = 8
NUM_WARPS = 4


@triton.jit
def _next_power_of_two(x):
    """Smallest power of two >= x, for positive normal float32 x; infinity stays infinity. Integer arithmetic on bits,
    since exp2 and log2 are approximate on the GPU."""
    bits = x.to(tl.uint32, bitcast=True)
    has_fraction = (bits & 0x7FFFFF) != 0
    exponent = (bits >> 23) + has_fraction.to(tl.uint32)
    return (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=['total_groups'])
def silu_and_mul_quant_kernel(
    gate_up_ptr,  # [M, 2N], 16 bit, unit column stride
    codes_ptr,  # [M, N], FP8, unit column stride
    scales_ptr,  # [M, N // GROUP], float32
    total_groups,  # M * N // GROUP
    stride_gate_up_row,
    stride_codes_row,
    stride_scales_row,
    stride_scales_group,
    GROUPS_PER_ROW: tl.constexpr,
    GROUP: tl.constexpr,
    FP8_MAX: tl.constexpr,
    ROUND_SCALE: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
):
    # Which groups: [BLOCK_GROUPS] consecutive ones of the flat (row, group) order. Offsets are 64 bit from here on,
    # since row times stride passes 2^31 long before memory is full.
    flat = tl.program_id(0) * BLOCK_GROUPS + tl.arange(0, BLOCK_GROUPS)
    in_range = flat < total_groups
    row = (flat // GROUPS_PER_ROW).to(tl.int64)
    group = flat % GROUPS_PER_ROW
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]  # [BLOCK_GROUPS, GROUP]

    # Load gate and up.
    gate_ptrs = gate_up_ptr + row[:, None] * stride_gate_up_row + column
    gate = tl.load(gate_ptrs, mask=in_range[:, None], other=0.0)
    up = tl.load(gate_ptrs + GROUPS_PER_ROW * GROUP, mask=in_range[:, None], other=0.0)

    # Activate: silu in float32 rounded to the storage dtype, then the product in the storage dtype.
    gate_fp32 = gate.to(tl.float32)
    silu = (gate_fp32 / (1 + tl.exp(-gate_fp32))).to(gate.dtype)
    activated = silu * up

    # Quantise: scale from the group's maximum, codes through its reciprocal.
    amax = tl.maximum(tl.max(tl.abs(activated), axis=1), AMAX_FLOOR).to(tl.float32)
    if ROUND_SCALE:
        scale = _next_power_of_two(amax * (1 / FP8_MAX))
        reciprocal = 1 / scale
    else:
        scale = amax * (1 / FP8_MAX)
        reciprocal = FP8_MAX / amax
    scaled = tl.clamp(activated.to(tl.float32) * reciprocal[:, None], -FP8_MAX, FP8_MAX)

    # Store.
    codes_ptrs = codes_ptr + row[:, None] * stride_codes_row + column
    tl.store(codes_ptrs, scaled.to(codes_ptr.dtype.element_ty), mask=in_range[:, None])
    tl.store(scales_ptr + row * stride_scales_row + group * stride_scales_group, scale, mask=in_range)


def _refuse(argument: str, expected: str, found) -> None:
    raise ValueError(f'silu_and_mul_quant: {argument}: expected {expected}, found {found}')


def _validate_input(gate_up, group_size, dtype, scale_fmt) -> None:
    if not isinstance(gate_up, torch.Tensor) or gate_up.dim() != 2:
        found = f'{gate_up.dim()} dimensions' if isinstance(gate_up, torch.Tensor) else type(gate_up).__name__
        _refuse('gate_up', 'a tensor of 2 dimensions [M, 2N]', found)
    if gate_up.dtype not in SUPPORTED_INPUTS:
        _refuse('gate_up.dtype', f'one of {SUPPORTED_INPUTS}', gate_up.dtype)
    if group_size not in SUPPORTED_GROUP_SIZES:
        _refuse('group_size', f'one of {SUPPORTED_GROUP_SIZES}', group_size)
    if gate_up.size(1) == 0 or gate_up.size(1) % (2 * group_size):
        _refuse('gate_up.size(1)', f'2N with N a positive multiple of group_size {group_size}', gate_up.size(1))
    if gate_up.size(0) and gate_up.stride(1) != 1:
        _refuse('gate_up.stride(1)', '1 (rows may have any pitch, columns must be adjacent)', gate_up.stride(1))
    if dtype not in SUPPORTED_CODES:
        _refuse('dtype', f'one of {SUPPORTED_CODES}', dtype)
    if scale_fmt not in SUPPORTED_SCALE_FMTS:
        _refuse('scale_fmt', f'one of {SUPPORTED_SCALE_FMTS}', repr(scale_fmt))
    if gate_up.size(0) * (gate_up.size(1) // (2 * group_size)) >= 2**31:
        _refuse('gate_up', 'fewer than 2^31 groups', tuple(gate_up.shape))


def _validate_output(name: str, tensor: torch.Tensor, shape: tuple[int, int], dtype: torch.dtype, like) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != like.device:
        _refuse(name, f'{shape} of {dtype} on {like.device}',
                f'{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}')
    rows, columns = shape
    by_row, by_column = tensor.stride()
    # Two elements at one address would be written by two programs: whoever is last wins.
    row_major = by_column >= 1 and (rows <= 1 or by_row >= (columns - 1) * by_column + 1)
    column_major = by_row >= 1 and (columns <= 1 or by_column >= (rows - 1) * by_row + 1)
    if rows and not (row_major or column_major):
        _refuse(f'{name}.stride()', 'strides without overlap', tensor.stride())


def _empty_scales(gate_up: torch.Tensor, groups: int, trans_scale: bool) -> torch.Tensor:
    rows = gate_up.size(0)
    if not trans_scale:
        return gate_up.new_empty(rows, groups, dtype=torch.float32)
    align = TMA_PITCH_BYTES // torch.float32.itemsize
    pitch = triton.cdiv(rows, align) * align
    return torch.empty_strided((rows, groups), (1, pitch), dtype=torch.float32, device=gate_up.device)


def silu_and_mul_quant(gate_up: torch.Tensor,
                       group_size: int = 128,
                       dtype: torch.dtype = torch.float8_e4m3fn,
                       trans_scale: bool = False,
                       scale_fmt: str | None = None,
                       out: torch.Tensor | None = None,
                       scales: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Activate and quantise: the codes and scales of quant_fp8(silu_and_mul(gate_up)), bit for bit.

    Args:
        gate_up: [M, 2N] bf16 or fp16, gate in the first N columns, up in the last; any row pitch, unit column stride.
        group_size: elements that share a scale; 128. N must be a multiple.
        dtype: of the codes, float8_e4m3fn or float8_e5m2.
        trans_scale: column-major scales with the pitch padded to 16 bytes; only where `scales` is not given.
        scale_fmt: None (scale = amax / FP8 maximum) or 'ue8m0' (rounded up to a power of two).
        out: [M, N] of `dtype` to write the codes to; unit column stride; allocated if None.
        scales: [M, N // group_size] float32 to write the scales to, any strides without overlap; allocated if None.

    Returns:
        (codes [M, N], scales [M, N // group_size]).

    Raises:
        ValueError: an argument is not supported; names it, what is supported and what was found. Nothing was written.
    """
    _validate_input(gate_up, group_size, dtype, scale_fmt)
    rows, width = gate_up.size(0), gate_up.size(1) // 2
    groups = width // group_size
    if out is not None:
        _validate_output('out', out, (rows, width), dtype, gate_up)
        if rows and out.stride(1) != 1:
            _refuse('out.stride(1)', '1', out.stride(1))
    if scales is not None:
        _validate_output('scales', scales, (rows, groups), torch.float32, gate_up)

    out = gate_up.new_empty(rows, width, dtype=dtype) if out is None else out
    scales = _empty_scales(gate_up, groups, trans_scale) if scales is None else scales
    total_groups = rows * groups
    if total_groups == 0:
        return out, scales
    silu_and_mul_quant_kernel[(triton.cdiv(total_groups, GROUPS_PER_PROGRAM), )](
        gate_up,
        out,
        scales,
        total_groups,
        gate_up.stride(0),
        out.stride(0),
        scales.stride(0),
        scales.stride(1),
        GROUPS_PER_ROW=groups,
        GROUP=group_size,
        FP8_MAX=torch.finfo(dtype).max,
        ROUND_SCALE=scale_fmt == 'ue8m0',
        BLOCK_GROUPS=GROUPS_PER_PROGRAM,
        num_warps=NUM_WARPS,
        num_stages=1,
    )
    return out, scales
