"""The whole MoE layer of one expert and its weighted sum, as intervals: what any right sequence of roundings can give.

    gate_up = hidden @ w1.T + b1          exact +- its error bound, rounded to storage
    act     = T(gate) * up                T: the activation's table over all 2^16 gates; rounded to storage
    codes   = act in FP8 groups           a code may be that of any value between the ends
    down    = codes @ w2.T + b2           over all codes and scales between the ends, +- its error bound; rounded
    out     = sum over k of weight_k * down_k

An interval is a pair of float64 tensors. Rounding to nearest is monotone: the ends of a rounded interval are the
rounded ends, so that where both ends round alike nothing is left of an earlier error. A value that lies near a rounding
edge has two neighbours as its ends; that alone is what moves on to the next stage.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.oracles import moe_reduce
from harness.oracles.fp8 import FP8_FORMATS
from harness.oracles.grouped_gemm import UNIT, Instruction, error_bound, exact, scale_products
from harness.oracles.quantisation import AMAX_FLOOR
from harness.oracles.tensor_core import NO_EXPONENT, code_exponents, exponent_of, power_of_two

DTYPES = {'bf16': torch.bfloat16, 'fp16': torch.float16}
# An activation between two gates: its table may be off by a step at either, and by one in between.
STEPS_BETWEEN = 3
# 448 / amax is off by up to 2 ulp on the GPU, its product with a value rounds once more.
RECIPROCAL_SLACK = 2.0**-21


@dataclass(frozen=True)
class Interval:
    """Every value from low to high, float64 tensors of one shape."""

    low: torch.Tensor
    high: torch.Tensor

    @property
    def middle(self) -> torch.Tensor:
        return (self.low + self.high) / 2

    @property
    def radius(self) -> torch.Tensor:
        return (self.high - self.low) / 2

    def at(self, index) -> Interval:
        return Interval(self.low[index], self.high[index])


@dataclass(frozen=True)
class Expert:
    """float64: w1 [2I, H] and w2 [H, I] are values of codes, scales [rows / group_n, K / group]; biases or None.

    All with leading dimensions where there are several experts, biases then [..., 1, rows].
    """

    w1: torch.Tensor
    w1_scale: torch.Tensor
    b1: torch.Tensor | None
    w2: torch.Tensor
    w2_scale: torch.Tensor
    b2: torch.Tensor | None


@dataclass(frozen=True)
class Arithmetic:
    """What computes.

    Attributes:
        storage: 'bf16' or 'fp16', of everything between the stages. codes: 'e4m3fn' or 'e5m2'.
        group: elements per scale of the activation.
        gates: float64 [2^16], the activation of the gate with these storage bits; NaN where that is not finite.
        gate_up, down: the instructions that add.
    """

    storage: str
    codes: str
    group: int
    gates: torch.Tensor
    gate_up: Instruction
    down: Instruction

    @property
    def smallest(self) -> int:
        return 1 - FP8_FORMATS[self.codes].bias


def rounded(ends: Interval, storage: str) -> Interval:
    """Storage values nearest to the ends; float64 to float32 goes outward first, so that no end moves in."""
    low, high = (torch.nextafter(end.float(), torch.full_like(end, towards).float())
                 for end, towards in ((ends.low, -torch.inf), (ends.high, torch.inf)))
    return Interval(*(end.to(DTYPES[storage]).double() for end in (low, high)))


def expert_states(hidden: torch.Tensor, hidden_scale: torch.Tensor, expert: Expert, by: Arithmetic) -> Interval:
    """hidden float64 [m, H] values of codes and their scales [m, H / group] -> the expert's states [m, H], stored.

    All with the leading dimensions of `expert`."""
    w1_scale, hidden_scale = _common_groups(expert.w1_scale, hidden_scale)
    operands = (hidden, hidden_scale, expert.w1, w1_scale)
    total = exact(*operands, expert.b1)
    error = error_bound(*operands, by.gate_up, 'fp32', by.smallest, expert.b1)
    activated = _activated(rounded(Interval(total - error, total + error), by.storage), by)
    codes, scales = _quantised(activated, by)
    return rounded(_down(codes, scales, expert, by), by.storage)


def _common_groups(w_scale: torch.Tensor, a_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of both operands at the finer of their groups along K."""
    groups = max(w_scale.size(-1), a_scale.size(-1))
    return tuple(scale.repeat_interleave(groups // scale.size(-1), -1) for scale in (w_scale, a_scale))


def _activated(gate_up: Interval, by: Arithmetic) -> Interval:
    columns = gate_up.low.size(-1) // 2
    gate, up = gate_up.at(np.s_[..., :columns]), gate_up.at(np.s_[..., columns:])
    acted = _looked_up(gate, by)
    corners = torch.stack([a * u for a in (acted.low, acted.high) for u in (up.low, up.high)])
    # Products of storage values are exact in float32, which the kernel rounds once.
    return Interval(*(end.float().to(DTYPES[by.storage]).double() for end in (corners.amin(0), corners.amax(0))))


def _looked_up(gate: Interval, by: Arithmetic) -> Interval:
    """The activation of every gate between the ends: monotone up to a few steps, but for the one valley of silu."""
    at = [by.gates[end.to(DTYPES[by.storage]).view(torch.int16).long() & 0xFFFF] for end in (gate.low, gate.high)]
    low, high = torch.minimum(*at), torch.maximum(*at)
    valley = by.gates.nan_to_num(nan=0.0).amin()
    inside = (gate.low < -1.27) & (gate.high > -1.29)
    low = torch.where(inside & (gate.low != gate.high), torch.minimum(low, valley), low)
    slack = STEPS_BETWEEN * (torch.finfo(DTYPES[by.storage]).eps * torch.maximum(low.abs(), high.abs()) + 2.0**-24)
    slack = torch.where(gate.low == gate.high, 0.0, slack)
    return Interval(low - slack, high + slack)


def _quantised(values: Interval, by: Arithmetic) -> tuple[Interval, Interval]:
    """Values [m, I] -> codes' values [m, I] and scales [m, I / group] between which those of a right quantiser lie."""
    fp8 = FP8_FORMATS[by.codes]
    groups = Interval(*(end.unflatten(-1, (-1, by.group)) for end in (values.low, values.high)))
    across = (groups.low <= 0) & (groups.high >= 0)
    magnitudes = torch.stack([groups.low.abs(), groups.high.abs()])
    amax = Interval(torch.where(across, 0.0, magnitudes.amin(0)).amax(-1), magnitudes.amax(0).amax(-1))
    amax = Interval(*(end.clamp(min=float(AMAX_FLOOR))[..., None] for end in (amax.low, amax.high)))
    reciprocal = (fp8.maximum / amax.high * (1 - RECIPROCAL_SLACK), fp8.maximum / amax.low * (1 + RECIPROCAL_SLACK))
    low = torch.minimum(*(groups.low * r for r in reciprocal))
    high = torch.maximum(*(groups.high * r for r in reciprocal))
    codes = Interval(*(_nearest_code(end.flatten(-2), fp8) for end in (low, high)))
    scales = Interval(amax.low[..., 0] / fp8.maximum * (1 - 4 * UNIT), amax.high[..., 0] / fp8.maximum * (1 + 4 * UNIT))
    return codes, scales


def _nearest_code(values: torch.Tensor, fp8) -> torch.Tensor:
    return torch.from_numpy(fp8.decode(fp8.encode(values.cpu().numpy()))).to(values.device)


def _down(codes: Interval, scales: Interval, expert: Expert, by: Arithmetic) -> Interval:
    """The down projection, unrounded, over all codes and scales between the ends."""
    by_column = Interval(*(s.repeat_interleave(by.group, -1) for s in (scales.low, scales.high)))
    corners = torch.stack([c * s for c in (codes.low, codes.high) for s in (by_column.low, by_column.high)])
    states = Interval(corners.amin(0), corners.amax(0))
    w_scale, a_scale = _common_groups(expert.w2_scale, torch.ones_like(scales.low))
    total = exact(states.middle, a_scale, expert.w2, w_scale, expert.b2)
    spread = exact(states.radius, a_scale, expert.w2.abs(), w_scale.abs())
    error = spread + _down_error(codes, scales, states, expert, by)
    return Interval(total - error, total + error)


def _down_error(codes: Interval, scales: Interval, states: Interval, expert: Expert, by: Arithmetic) -> torch.Tensor:
    """`grouped_gemm.error_bound` for every choice of codes at once: the largest magnitudes anywhere between the ends,
    and every product taken to lose bits."""
    w2_scale, low = _common_groups(expert.w2_scale, scales.low)
    high = _common_groups(expert.w2_scale, scales.high)[1]
    largest, w2, middle, radius = (by.down.in_order(values) for values in (
        torch.maximum(codes.low.abs(), codes.high.abs()), expert.w2, states.middle, states.radius))
    exponents_a, exponents_b = code_exponents(largest, by.smallest), code_exponents(w2, by.smallest)
    group = codes.low.size(-1) // low.size(-1)
    step = by.down.step or group
    total, reach, error = (states.low.new_zeros(*largest.shape[:-1], w2.size(-2)) for _ in range(3))
    by_row = w2_scale.repeat_interleave(w2.size(-2) // w2_scale.size(-2), -2)
    weights = (w2 * by_row.repeat_interleave(group, -1)).mT
    for g in range(low.size(-1)):
        least, most = (scale_products(s[..., g:g + 1], w2_scale[..., g:g + 1].abs(), w2.size(-2))[..., 0]
                       for s in (low, high))
        partial, partial_reach = torch.zeros_like(total), torch.zeros_like(total)
        for first in range(g * group, (g + 1) * group, step):
            columns = slice(first, first + step)
            if by.down.alignment_bits is not None:
                reached = torch.maximum(total.abs() + reach, partial.abs() + partial_reach) + error
                live = (largest[..., :, None, columns] != 0) & (w2[..., None, :, columns] != 0)
                sums = exponents_a[..., :, None, columns] + exponents_b[..., None, :, columns]
                top = torch.maximum(torch.where(live, sums, NO_EXPONENT).amax(-1), exponent_of(reached / least))
                unit = power_of_two(top.clamp(-900, 900) - by.down.alignment_bits)
                error = error + most * unit * (1 + step)
            added = middle[..., columns] @ weights[..., columns, :]
            wide = radius[..., columns] @ weights[..., columns, :].abs()
            total, partial, reach, partial_reach = total + added, partial + added, reach + wide, partial_reach + wide
            reached = torch.maximum(total.abs() + reach, partial.abs() + partial_reach) + error
            error = error + 2.0**-by.down.output_bits * reached
        error = error + 3 * UNIT * (partial.abs() + partial_reach)
        error = error + by.down.scale_roundings * UNIT * (total.abs() + reach + error)
    bias = 0.0 if expert.b2 is None else expert.b2.abs()
    return error + UNIT * (total.abs() + reach + error + bias)


def weights(topk_weights: torch.Tensor, renormalise: bool, storage: str) -> Interval:
    """float64 [M, K] weights of a router -> what the reduce multiplies with: divided by their sum or not, stored."""
    if not renormalise:
        return Interval(*(topk_weights.to(DTYPES[storage]).double(), ) * 2)
    share = topk_weights / topk_weights.sum(-1, keepdim=True)
    slack = share * UNIT * (topk_weights.size(1) + 2)
    return rounded(Interval(share - slack, share + slack), storage)


def weighted_sum(states: Interval, by: Interval, storage: str) -> tuple[torch.Tensor, torch.Tensor]:
    """states [M, K, N] and weights [M, K] -> (middle, how far from it any right sum may lie), float64 [M, N]."""
    corners = torch.stack([s * w[..., None] for s in (states.low, states.high) for w in (by.low, by.high)])
    low, high, magnitude = corners.amin(0).sum(1), corners.amax(0).sum(1), corners.abs().amax(0).sum(1)
    largest = torch.maximum(low.abs(), high.abs())
    arithmetic = moe_reduce.error_bound(largest.cpu().numpy(), magnitude.cpu().numpy(), states.low.size(1), storage,
                                        fp32_acc=False)
    return (low + high) / 2, (high - low) / 2 + torch.from_numpy(arithmetic).to(low.device)
