"""Filling a paged FP8 KV cache, token by token.

Token t of sequence b (its q_b tokens follow h_b that are in the cache already) goes to

    position = h_b + t      page = block_offsets[b][position // block]      slot = position % block

and each head of it is quantised in groups of the head dimension:

    amax  = max(max |x| over the group, 1e-6)
    scale = amax * float32(1 / F), to the next power of two for ue8m0       F: the format's largest value
    code  = round(clamp(x / scale, -F, F))

in float32, one IEEE operation each. The division is by the scale, where quant_fp8 multiplies with a reciprocal of amax:
the two can differ by a code. On the GPU it is `div.full.f32`, whose error the PTX manual bounds by 2 ulp; by a power of
two it is exact. A NaN loses in the maximum and becomes F as a code, whatever its sign: division makes it canonical.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.oracles.fp8 import FP8_FORMATS
from harness.oracles.quantisation import AMAX_FLOOR, power_of_two_at_least

DIVISION_ULPS = 2


@dataclass(frozen=True)
class Quantisation:
    """How heads are quantised.

    Attributes:
        codes: 'e4m3fn' or 'e5m2'. scale_fmt: None or 'ue8m0'. group: elements per scale.
        wraps: what the last group of a head dimension off the group is filled up with: nothing, or (as lmdeploy 0.18.0
            does) the head's own first elements, which then take part in the maximum.
    """

    codes: str
    scale_fmt: str | None
    group: int
    wraps: bool = False

    @property
    def largest(self) -> np.float32:
        return np.float32(FP8_FORMATS[self.codes].maximum)


def scales(x: np.ndarray, how: Quantisation) -> np.ndarray:
    """x float32 [..., D] -> float32 [..., ceil(D / group)]."""
    dim = x.shape[-1]
    groups = -(-dim // how.group)
    lanes = np.arange(groups * how.group)
    filled = np.abs(x[..., lanes % dim])
    # Not fmax, which loses the maximum so far where it meets a signalling NaN.
    counts = ~np.isnan(filled) & (how.wraps | (lanes < dim))
    amax = np.where(counts, filled, np.float32(0)).reshape(*x.shape[:-1], groups, how.group).max(axis=-1)
    with np.errstate(over='ignore'):
        plain = np.maximum(amax, AMAX_FLOOR) * np.float32(1 / FP8_FORMATS[how.codes].maximum)
    return power_of_two_at_least(plain) if how.scale_fmt == 'ue8m0' else plain


def codes(x: np.ndarray, how: Quantisation, division_ulps: int = 0) -> np.ndarray:
    """x float32 [..., D] -> uint8 codes, with every quotient moved away from zero by so many float32 neighbours."""
    by = np.repeat(scales(x, how), how.group, axis=-1)[..., :x.shape[-1]]
    with np.errstate(over='ignore', under='ignore', invalid='ignore'):
        quotient = x / by
    moves = np.isfinite(quotient) & (quotient != 0)
    moved = (quotient.view(np.int32) + np.where(moves, np.int32(division_ulps), np.int32(0))).view(np.float32)
    moved = np.where(np.isnan(moved), how.largest, moved)
    return FP8_FORMATS[how.codes].encode(np.clip(moved, -how.largest, how.largest))


def explained(observed: np.ndarray, x: np.ndarray, how: Quantisation, allowed_ulps: int) -> np.ndarray:
    """bool like x: codes that follow from a quotient at most `allowed_ulps` from the correctly rounded one."""
    offsets = range(-allowed_ulps, allowed_ulps + 1)
    return np.logical_or.reduce([codes(x, how, offset) == observed for offset in offsets])


@dataclass(frozen=True)
class Slots:
    """Where tokens go: int arrays of one length, the token's row in the states, its page, and its slot in the page."""

    token: np.ndarray
    page: np.ndarray
    slot: np.ndarray


def owned_slots(cu_seqlen_q: np.ndarray, kv_seqlens: np.ndarray, block_offsets: np.ndarray, block: int) -> Slots:
    """Which slot belongs to which token; a sequence without keys (padding of a batch) owns none."""
    found = []
    for sequence, kv_length in enumerate(kv_seqlens):
        if kv_length <= 0:
            continue
        first, end = int(cu_seqlen_q[sequence]), int(cu_seqlen_q[sequence + 1])
        history = int(kv_length) - (end - first)
        for token in range(first, end):
            position = history + token - first
            found.append((token, int(block_offsets[sequence, position // block]), position % block))
    return Slots(*np.array(found, np.int64).reshape(-1, 3).T)
