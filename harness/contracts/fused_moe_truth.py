"""The layer's output as an interval, from its inputs alone: the oracle applied to every expert that has routes."""
from __future__ import annotations

import torch

from harness.contracts.expert_batches import batches
from harness.contracts.formats import TORCH_STORAGE, code_values
from harness.contracts.fused_moe_problem import ACTIVATIONS, Layer
from harness.contracts.setting import Setting
from harness.contracts.silu_and_mul import ALL_BITS, trusted_table
from harness.evidence.bits import from_numpy_bits
from harness.evidence.trial import Tensors
from harness.oracles import moe_layer as oracle
from harness.oracles.grouped_gemm import Instruction


def gate_table(layer: Layer, setting: Setting) -> torch.Tensor:
    """float64 [2^16]: what the activation makes of every gate; SwiGLU's is stock's of the same install, looked at."""
    dtype = TORCH_STORAGE[layer.out]
    if layer.activation == 'swiglu':
        bits = trusted_table(setting.stock, layer.out, setting.device)
        return from_numpy_bits(bits, dtype, setting.device).double()
    gates = from_numpy_bits(ALL_BITS, dtype, setting.device)
    return ACTIVATIONS[layer.activation](torch.stack([gates, torch.ones_like(gates)], 1))[:, 0].double()


def interval(layer: Layer, tensors: Tensors, setting: Setting, gate_up: Instruction,
             down: Instruction) -> tuple[torch.Tensor, torch.Tensor]:
    """(middle, how far from it any right output may lie), float64 [M, H]."""
    by = oracle.Arithmetic(layer.out, layer.codes, layer.group, gate_table(layer, setting), gate_up, down)
    ids = tensors['topk_ids'].long()
    states = oracle.Interval(*(torch.zeros(*ids.shape, layer.hidden_size, dtype=torch.float64, device=ids.device)
                               for _ in range(2)))
    found = [torch.nonzero(ids == layer.offset + int(local), as_tuple=True) for local in layer.active()]
    for batch, routes in batches([token * ids.size(1) + choice for token, choice in found],
                                 max(2 * layer.intermediate, layer.hidden_size)):
        token, choice = routes // ids.size(1), routes % ids.size(1)
        experts = torch.from_numpy(layer.active()[batch]).to(ids.device)
        expert = oracle.Expert(*(_of_experts(layer, tensors, f'w{projection}{part}', experts)
                                 for projection in (1, 2) for part in ('', '_scale', '_bias')))
        hidden = code_values(layer.codes, tensors['hidden'], token)
        own = oracle.expert_states(hidden, tensors['hidden_scale'][token].double(), expert, by)
        states.low[token, choice], states.high[token, choice] = own.low, own.high
    by_weight = oracle.weights(tensors['topk_weights'].double(), layer.renormalise, layer.out)
    return oracle.weighted_sum(states, by_weight, layer.out)


def _of_experts(layer: Layer, tensors: Tensors, name: str, experts: torch.Tensor) -> torch.Tensor | None:
    if name not in tensors:
        return None
    if name in ('w1', 'w2'):
        return code_values(layer.codes, tensors[name], experts)
    part = tensors[name][experts].double()
    return part[:, None] if name.endswith('bias') else part
