"""Who is on trial: what every subject must be able to say of itself, and the operators that it may offer."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import torch

OPERATORS = ('silu_and_mul', 'quant_fp8', 'silu_and_mul_quant', 'activate_and_quant', 'refusals', 'sorted_routes',
             'route_blocks', 'grouped_gemm', 'grouped_gemm_blocks', 'moe_reduce', 'fill_kv_cache_blocked_fp8',
             'fused_moe_blocked_fp8', 'moe_schedule', 'silu_and_mul_moe_ep', 'silu_and_mul_masked_post_quant_fwd',
             'v4_swiglu_and_quant_fp8', 'call_signatures')


class SubjectRefused(Exception):
    """The subject cannot be put on trial: it is absent, or its layout is not one that is known.

    The message names what was expected, what was found, and where.
    """


@dataclass(frozen=True)
class Provenance:
    """Which code was on trial.

    Attributes:
        subject: 'stock', 'candidate' or 'module'.
        path: the folder or file that was imported.
        version: the subject's own version, or 'unversioned'.
        sha256: hash over the names and bytes of the source files on trial.
    """

    subject: str
    path: str
    version: str
    sha256: str

    def as_dict(self) -> dict:
        return asdict(self)


class Subject(Protocol):
    """An implementation on trial. Calls an operator only if `offers()` names it.

    Shapes: M rows, N activated columns, G = N // group_size groups. x and gate_up are bf16 or fp16.
    """

    name: str
    provenance: Provenance

    def offers(self) -> frozenset[str]:
        """The operators (of `OPERATORS`) that this subject has."""

    def silu_and_mul(self, gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """gate_up [M, 2N] -> silu(gate) * up [M, N], same dtype, rounded after silu and after the product."""

    def quant_fp8(self, x: torch.Tensor, group_size: int, dtype: torch.dtype, trans_scale: bool,
                  scale_fmt: str | None) -> tuple[torch.Tensor, torch.Tensor]:
        """x [M, N] -> codes [M, N] of `dtype` and float32 scales [M, G].

        With F the largest value of `dtype` and amax = max(max |x| of the group, 1e-6) in float32: scale = amax *
        float32(1 / F), for 'ue8m0' rounded up to a power of two (infinity stays); r = F / amax, for 'ue8m0' 1 / scale;
        code = clamp(x * r, -F, F) converted once, saturating; NaN is ignored by the maximum and has code F.
        Codes have the strides of torch.empty_like(x). Scales are stored by row, or by column with the pitch padded to
        a multiple of 4 if `trans_scale`. harness/oracles/quantisation.py has every step.
        """

    def silu_and_mul_quant(self, gate_up: torch.Tensor, group_size: int, dtype: torch.dtype, trans_scale: bool,
                           scale_fmt: str | None, out: torch.Tensor | None = None,
                           scales: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """gate_up [M, 2N] -> the codes and scales of quant_fp8(silu_and_mul(gate_up))."""

    def activate_and_quant(self, gate_up: torch.Tensor, activation: Callable[[torch.Tensor], torch.Tensor] | None,
                           group_size: int, dtype: torch.dtype, trans_scale: bool,
                           scale_fmt: str | None) -> tuple[torch.Tensor, torch.Tensor]:
        """gate_up [M, 2N] -> codes and scales of quant_fp8(activation(gate_up)); None is SwiGLU, fused."""

    def refusals(self, gate_up: torch.Tensor, **arguments) -> object:
        """The fused operator, called with arguments that it must refuse (see harness/contracts/refusals.py)."""

    def sorted_routes(self, topk_ids: torch.Tensor, num_experts: int,
                      preparation: str | None = None) -> tuple[torch.Tensor, ...]:
        """topk_ids [M, top_k], int32 or int64 -> sorted_idx [M * top_k], exp_start [E] and exp_end [E], all int32.

        Expert e has the routes sorted_idx[exp_start[e]:exp_end[e]], in any order; route r is choice r % top_k of token
        r // top_k.

        Args:
            preparation: which of the subject's own ways to the same result, 'parallel' or 'single_cta'; None lets it
                choose by shape. A subject with one way takes the argument and may ignore it.
        """

    def route_blocks(self, topk_ids: torch.Tensor, num_experts: int, local_experts: int, expert_offset: int,
                     block_m: int, preparation: str | None = None) -> tuple[torch.Tensor, ...]:
        """sorted_routes of all experts, then block_end [local_experts], block_expert_ids and block_offsets
        [room for blocks], all int32: the routes of experts [expert_offset, expert_offset + local_experts) in blocks of
        block_m. A preparation of 'single_cta' is asked of all experts only."""

    def grouped_gemm(self, a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor,
                     out: torch.Tensor, sorted_idx: torch.Tensor, exp_start: torch.Tensor, exp_end: torch.Tensor,
                     bias: torch.Tensor | None, top_k: int, num_tokens: int, expert_offset: int, reindex_a: bool,
                     reindex_c: bool, block_m: int, block_n: int) -> None:
        """For every local expert e and position p of its range of sorted_idx: out[row] = a[source] @ b[e].T + bias[e].

        a [rows, K] and b [local experts, N, K] are FP8 codes of one dtype, a_scale [rows, G] and b_scale
        [local experts, N / group_n, G] float32; out [routes, N] is float32, bf16 or fp16, bias [local experts, N].
        Metadata is that of `sorted_routes`. source is sorted_idx[p] // top_k if reindex_a, else p; row is sorted_idx[p]
        if reindex_c, else p. Products are summed in float32 or what the matrix instruction has, rounded once to out.
        block_m and block_n are the tile that is asked for. Rows of other experts are left alone.
        """

    def grouped_gemm_blocks(self, a: torch.Tensor, a_scale: torch.Tensor, b: torch.Tensor, b_scale: torch.Tensor,
                            out: torch.Tensor, sorted_idx: torch.Tensor, exp_end: torch.Tensor,
                            block_end: torch.Tensor, block_expert_ids: torch.Tensor, block_offsets: torch.Tensor,
                            bias: torch.Tensor | None, top_k: int, expert_offset: int, reindex_a: bool,
                            reindex_c: bool, block_m: int, block_n: int, transpose_mma: bool) -> None:
        """`grouped_gemm` from the metadata of `route_blocks`, block_m being that of the blocks. transpose_mma asks for
        b times a, turned over at the end."""

    def moe_reduce(self, hidden_states: torch.Tensor, topk_weights: torch.Tensor, fp32_acc: bool) -> torch.Tensor:
        """hidden_states [M, K, N] (bf16, fp16 or float32) and weights [M, K] -> sum over K of state * weight, [M, N].

        Products and sums are float32 if `fp32_acc`, else of the states' dtype, to which the weights are rounded first.
        """

    def fill_kv_cache_blocked_fp8(self, k_states: torch.Tensor, v_states: torch.Tensor | None, k_caches: torch.Tensor,
                                  v_caches: torch.Tensor | None, ks_caches: torch.Tensor,
                                  vs_caches: torch.Tensor | None, cu_seqlen_q: torch.Tensor, kv_seqlens: torch.Tensor,
                                  max_q_seqlen: int, block_offsets: torch.Tensor, group_size: int, kv_layout: str,
                                  scale_fmt: str | None) -> None:
        """Quantise the states of new tokens into their slots of paged caches, in place.

        k_states [T, H, D] and v_states [T, H, DV] hold the tokens of all sequences one after the other; sequence b has
        rows cu_seqlen_q[b] to cu_seqlen_q[b + 1] and kv_seqlens[b] keys with them. Caches are [page, slot, head, D] for
        'bshd', [page, head, slot, D] for 'bhsd', FP8; their scales float32 with ceil(D / group_size) in place of D.
        block_offsets [B, P] holds the pages of every sequence in order. No sequence has more new tokens than
        max_q_seqlen; with max_q_seqlen 1 each has exactly one. Without values all three of theirs are None; where
        v_caches begins at k_caches' address and DV <= D, values are not written.
        """

    def silu_and_mul_moe_ep(self, gate_up: torch.Tensor, mask: torch.Tensor,
                            out: torch.Tensor | None = None) -> torch.Tensor:
        """gate_up [E, M, 2N] and mask [E], int -> silu_and_mul of the first mask[e] rows of every expert, [E, M, N].

        Rows that do not count are neither read nor written.
        """

    def silu_and_mul_masked_post_quant_fwd(self, gate_up: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor,
                                           group_size: int, mask: torch.Tensor) -> None:
        """quant_fp8(silu_and_mul(x)) of the rows that count, as above, into codes [E, M, N] and scales
        [E, M, N / group_size]. What becomes of other rows is not promised."""

    def v4_swiglu_and_quant_fp8(self, gate_up: torch.Tensor, swiglu_limit: float, group_size: int, dtype: torch.dtype,
                                scale_fmt: str | None) -> tuple[torch.Tensor, torch.Tensor]:
        """gate_up [..., 2N] -> codes [..., N] and scales [..., N / group_size] of silu(gate) * up, rounded once, to the
        input's dtype. A limit above 0 cuts gates above it and ups at both ends first."""

    def call_signatures(self) -> Path:
        """The folder that holds the package lmdeploy, whose source is judged without being imported."""

    def fused_moe_blocked_fp8(self, hidden: torch.Tensor, hidden_scale: torch.Tensor, w1: torch.Tensor,
                              w1_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor,
                              topk_weights: torch.Tensor, topk_ids: torch.Tensor, topk: int,
                              w1_bias: torch.Tensor | None, w2_bias: torch.Tensor | None, out_dtype: torch.dtype,
                              expert_offset: int, num_experts: int, renormalize: bool,
                              act_func: Callable[[torch.Tensor], torch.Tensor] | None) -> torch.Tensor:
        """The layer: hidden codes [M, H] with scales [M, H / group] -> [M, H] of `out_dtype`.

        w1 [local experts, 2I, H] and w2 [local experts, H, I] are codes of hidden's dtype, their scales
        [local experts, 2I / group_n, H / group] and [local experts, H / group_n, I / group]; biases
        [local experts, 2I] and [local experts, H]; topk_weights float32 and topk_ids [M, topk]. Local expert e is
        expert expert_offset + e of num_experts. A route's state is the down projection of the activated gate and up
        projection, quantised in between in hidden's groups; both projections are stored in out_dtype. A token's row is
        the weighted sum over its routes, an expert that is not here giving 0; `renormalize` divides a token's weights
        by their sum first. act_func takes the place of SwiGLU.
        """

    def moe_schedule(self, tokens: int, top_k: int, num_experts: int, local_experts: int, expert_offset: int,
                     hidden_size: int, intermediate: int, device: torch.device) -> dict[str, dict]:
        """How fused_moe_blocked_fp8 would launch its projections for e4m3fn codes and groups of 128, on a GPU.

        'gate_up' and 'down' each have 'operator' ('grouped_gemm' or 'grouped_gemm_blocks'), 'block_m', 'block_n',
        'transpose_mma', and how rows are found: 'top_k', 'reindex_a', 'reindex_c', as those operators take them.
        """
