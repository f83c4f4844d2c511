"""The MoE layer in plain torch, as a subject: right by construction, and wrong where a test says so."""
from __future__ import annotations

import torch

from harness.contracts.silu_and_mul import trusted_table
from harness.evidence.bits import from_numpy_bits, storage_numpy
from harness.oracles import grouped_gemm as gemm
from harness.oracles import quantisation
from harness.subjects.protocol import Provenance


class RightLayer:
    """One float64 GEMM an expert, rounded once; stock's silu by table; the quantiser's oracle; a sum in storage.

    Methods are single steps, for a test to replace.
    """

    name = 'right'
    provenance = Provenance('right', '', '', '')

    def __init__(self, stock):
        self.stock = stock

    def fused_moe_blocked_fp8(self, hidden, hidden_scale, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, topk,
                              w1_bias, w2_bias, out_dtype, expert_offset, num_experts, renormalize, act_func):
        states = torch.zeros(*topk_ids.shape, w2.size(1), dtype=out_dtype)
        group = hidden.size(1) // hidden_scale.size(1)
        for local in range(len(w1)):
            token, choice = torch.nonzero(topk_ids == expert_offset + local, as_tuple=True)
            if not len(token):
                continue
            gate_up = self.project(hidden[token], hidden_scale[token], w1[local], w1_scale[local],
                                   None if w1_bias is None else w1_bias[local], out_dtype)
            activated = self.activate(gate_up, act_func)
            codes, scales = self.quantise(activated, group, hidden.dtype)
            states[token, choice] = self.project(codes, scales, w2[local], w2_scale[local],
                                                 None if w2_bias is None else w2_bias[local], out_dtype)
        return self.reduce(states, self.weigh(topk_weights, topk_ids, renormalize, w1_scale).to(out_dtype))

    def weigh(self, weights, ids, renormalize, w1_scale):
        return weights / weights.sum(-1, keepdim=True) if renormalize else weights

    def project(self, a, a_scale, b, b_scale, bias, dtype):
        groups = max(a_scale.size(1), b_scale.size(1))
        a_scale, b_scale = (s.double().repeat_interleave(groups // s.size(1), 1) for s in (a_scale, b_scale))
        total = gemm.exact(a.double(), a_scale, b.double(), b_scale, None if bias is None else bias.double())
        return total.float().to(dtype)

    def activate(self, gate_up, act_func):
        if act_func:
            return act_func(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        storage = 'bf16' if gate_up.dtype == torch.bfloat16 else 'fp16'
        table = from_numpy_bits(trusted_table(self.stock, storage, gate.device), gate.dtype, gate.device)
        return table[gate.view(torch.int16).long() & 0xFFFF] * up

    def quantise(self, x, group, dtype, scale_fmt=None):
        name = 'e5m2' if dtype == torch.float8_e5m2 else 'e4m3fn'
        found = quantisation.quantise(storage_numpy(x), group, name, scale_fmt)
        return torch.from_numpy(found.codes).view(dtype), torch.from_numpy(found.scales)

    def reduce(self, states, weights):
        total = torch.zeros(states.size(0), states.size(2), dtype=states.dtype)
        for choice in range(states.size(1)):
            total += states[:, choice] * weights[:, choice, None]
        return total
