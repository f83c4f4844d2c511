"""Counting differing groups where the bytes are: two quantised matrices on one device, no copy, no host in between.

`compare_bytes` explains one case; this kernel serves proofs over terabytes, where every pass over memory counts.
"""
from __future__ import annotations

import torch
import triton
import triton.language as tl

GROUP_BYTES = 128
NOTHING_DIFFERS = 2**63 - 1


class ComparatorBlind(Exception):
    """A bit that was flipped on purpose went unnoticed: what the comparison says of anything else is worth nothing."""


@triton.jit
def _differing_groups_kernel(
    left_codes_ptr,  # [groups, 16] int64: 128 codes each
    right_codes_ptr,
    left_scales_ptr,  # [groups] int32: bits of a float32
    right_scales_ptr,
    keys_ptr,  # [groups] int64
    key_base_ptr,  # [1] int64
    tally_ptr,  # [2] int64: how many groups differ, smallest key among them
    groups,
    BLOCK: tl.constexpr,
):
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    in_range = group < groups
    words = group.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]  # [BLOCK, 16]
    left = tl.load(left_codes_ptr + words, mask=in_range[:, None], other=0)
    right = tl.load(right_codes_ptr + words, mask=in_range[:, None], other=0)
    left_scale = tl.load(left_scales_ptr + group, mask=in_range, other=0)
    right_scale = tl.load(right_scales_ptr + group, mask=in_range, other=0)
    codes_differ = tl.max((left != right).to(tl.int32), axis=1)
    differs = codes_differ | (left_scale != right_scale).to(tl.int32)  # [BLOCK]
    count = tl.sum(differs, axis=0)
    if count > 0:
        keys = tl.load(keys_ptr + group, mask=in_range, other=0) + tl.load(key_base_ptr)
        first = tl.min(tl.where(differs != 0, keys, 0x7FFFFFFFFFFFFFFF), axis=0)
        tl.atomic_add(tally_ptr, count.to(tl.int64))
        tl.atomic_min(tally_ptr + 1, first)


def new_tally(device: torch.device) -> torch.Tensor:
    """int64 [2] on `device`: no group differs yet."""
    return torch.tensor([0, NOTHING_DIFFERS], dtype=torch.int64, device=device)


def tally_differing_groups(left: tuple[torch.Tensor, torch.Tensor], right: tuple[torch.Tensor, torch.Tensor],
                           keys: torch.Tensor, key_base: torch.Tensor, tally: torch.Tensor,
                           only: int | None = None) -> None:
    """Add to `tally` how many groups differ in any byte, and keep the smallest key among them. Never waits.

    Args:
        left, right: (codes [M, N] FP8, scales [M, N // 128] float32), contiguous.
        keys: int64 [M * N // 128], a number for every group; `key_base` int64 [1] is added to it.
        tally: as made by `new_tally`.
        only: compare so many groups from the first on; all if None.

    Raises:
        ValueError: shapes or layouts that cannot be compared group by group.
    """
    groups = keys.numel()
    for name, (codes, scales) in (('left', left), ('right', right)):
        if not (codes.is_contiguous() and scales.is_contiguous()):
            raise ValueError(f'tally_differing_groups: {name}: expected contiguous codes and scales, found strides '
                             f'{codes.stride()} and {scales.stride()}')
        if codes.element_size() != 1 or codes.numel() != groups * GROUP_BYTES or scales.numel() != groups \
                or scales.dtype != torch.float32:
            raise ValueError(f'tally_differing_groups: {name}: expected {groups} groups of {GROUP_BYTES} one-byte '
                             f'codes and float32 scales, found {tuple(codes.shape)} of {codes.dtype} and '
                             f'{tuple(scales.shape)} of {scales.dtype}')
    compared = groups if only is None else min(only, groups)
    # The interpreter pays by the program, not by the element.
    block = 64 if keys.is_cuda else 4096
    _differing_groups_kernel[(triton.cdiv(compared, block), )](
        left[0].view(torch.int64), right[0].view(torch.int64), left[1].view(torch.int32), right[1].view(torch.int32),
        keys, key_base, tally, compared, BLOCK=block, num_warps=4)


def require_sight(quantised: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Flip one bit of the last code, then of the first scale, and require exactly that group to be found.

    Args:
        quantised: (codes, scales) as for `tally_differing_groups`; left unchanged.

    Raises:
        ComparatorBlind: the tally is not (1 group, the group's key).
    """
    codes, scales = quantised
    keys = torch.arange(scales.numel(), device=scales.device)
    for name, element in (('code', -1), ('scale', 0)):
        changed = codes.clone(), scales.clone()
        bits = changed[0].view(torch.uint8) if name == 'code' else changed[1].view(torch.int32)
        bits.view(-1)[element] ^= 1
        tally = new_tally(scales.device)
        tally_differing_groups(changed, quantised, keys, torch.zeros_like(keys[:1]), tally)
        expected = [1, int(keys[element])]
        if tally.tolist() != expected:
            raise ComparatorBlind(f'one flipped bit of a {name}: expected (groups, key) {expected}, found '
                                  f'{tally.tolist()}')
