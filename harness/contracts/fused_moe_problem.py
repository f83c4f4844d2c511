"""One problem for the whole layer: hidden codes, two projections, a router's weights and ids.

What a right layer must not use is NaN: weights, scales and biases of experts without routes, and the hidden rows of
tokens none of whose experts is here. The numbers are those of ordinary layers: gates and ups of a few units.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from harness.contracts.activate_and_quant import relu_and_mul
from harness.contracts.formats import TORCH_CODES, TORCH_STORAGE
from harness.contracts.values import raw
from harness.evidence.trial import Tensors
from harness.oracles.fp8 import FP8_FORMATS
from harness.subjects.protocol import Subject

NAN_CODE = 0x7F
# Standard deviation of the codes, far from the largest and from the subnormals of both formats.
SPREAD = 24.0
ACTIVATIONS = {'swiglu': None, 'relu_and_mul': relu_and_mul}
IDS = {'int32': torch.int32, 'int64': torch.int64}


@dataclass(frozen=True)
class Layer:
    """What the operator is asked, without the numbers.

    Attributes:
        ids: () -> int64 [M, top_k], experts of the whole layer.
        experts, local, offset: experts of the layer, and the slice [offset, offset + local) that is here.
        hidden_size, intermediate: H and I; group, group_w, group_n: elements per scale of hidden, of a weight along its
            inner dimension, and across it.
        out: 'bf16' or 'fp16'. codes: 'e4m3fn' or 'e5m2'. ids_dtype: a key of IDS.
        renormalise, bias: as the operator takes them. activation: a key of ACTIVATIONS.
        weight_of: the router's weights: 'ordinary', or 'powers', powers of two.
        pitched: rows of hidden and weights further apart than they are long.
        seed: distinguishes problems that are otherwise equal.
    """

    ids: Callable[[], np.ndarray]
    experts: int
    local: int | None = None
    offset: int = 0
    hidden_size: int = 256
    intermediate: int = 256
    group: int = 128
    group_w: int = 128
    group_n: int = 128
    out: str = 'bf16'
    codes: str = 'e4m3fn'
    ids_dtype: str = 'int64'
    renormalise: bool = False
    bias: bool = False
    activation: str = 'swiglu'
    weight_of: str = 'ordinary'
    pitched: bool = False
    seed: str = ''

    @property
    def local_experts(self) -> int:
        return self.experts if self.local is None else self.local

    def active(self) -> np.ndarray:
        """Local experts with routes, int64, ascending."""
        local = np.unique(self.ids()) - self.offset
        return local[(local >= 0) & (local < self.local_experts)]

    def build(self, device: torch.device) -> Tensors:
        """hidden, hidden_scale, w1, w1_scale, w2, w2_scale, topk_weights, topk_ids, and w1_bias and w2_bias if any."""
        ids = self.ids()
        h, i, active = self.hidden_size, self.intermediate, self.active()
        local = ids - self.offset
        used = ((local >= 0) & (local < self.local_experts)).any(1)
        hidden, hidden_scale = (made[0] for made in self._operand('hidden', [''], len(ids), h, 1, self.group, 2.0**-6))
        hidden[~used], hidden_scale[~used] = NAN_CODE, np.nan
        # Experts are made one by one, each from its own seed: the same numbers whoever is beside it.
        seeds = [f'{self.offset + e}' for e in active]
        w1, w1_scale = self._operand('w1', seeds, 2 * i, h, self.group_n, self.group_w, _gain(h))
        w2, w2_scale = self._operand('w2', seeds, h, i, self.group_n, self.group_w, _gain(i))
        stacks = {'w1': w1, 'w1_scale': w1_scale, 'w2': w2, 'w2_scale': w2_scale}
        if self.bias:
            stacks |= {f'{name}_bias': np.stack([_normal(f'layer/{name}b{seed}', (rows, )) for seed in seeds])
                       for name, rows in (('w1', 2 * i), ('w2', h))}
        tensors = {name: _among_nan(stack, active, self.local_experts, device) for name, stack in stacks.items()}
        tensors |= {'hidden': torch.from_numpy(hidden).to(device),
                    'hidden_scale': torch.from_numpy(hidden_scale).to(device)}
        for name in ('hidden', 'w1', 'w2'):
            tensors[name] = tensors[name].view(TORCH_CODES[self.codes])
        for name in ('w1_bias', 'w2_bias') if self.bias else ():
            tensors[name] = tensors[name].to(TORCH_STORAGE[self.out])
        tensors['topk_weights'] = torch.from_numpy(self._router(ids.shape)).to(device)
        tensors['topk_ids'] = torch.from_numpy(ids).to(device, IDS[self.ids_dtype])
        return tensors | {name: _wider(tensors[name]) for name in (('hidden', 'w1', 'w2') if self.pitched else ())}

    def _operand(self, name: str, seeds: list[str], rows: int, columns: int, row_group: int, group: int,
                 gain: float) -> tuple[np.ndarray, np.ndarray]:
        """uint8 codes [experts, rows, columns] and float32 scales [experts, rows / row_group, columns / group]."""
        table = _code_table(self.codes)
        names = [f'layer/{self.seed}{name}/{seed}' for seed in seeds]
        codes = [table[raw(seed, rows * columns)].reshape(rows, columns) for seed in names]
        shape = (rows // row_group, columns // group)
        scales = [gain * (1 + raw(f'{seed}/scale', shape[0] * shape[1]).reshape(shape) / 65536) for seed in names]
        if not seeds:  # a rank without work
            return np.zeros((0, rows, columns), np.uint8), np.zeros((0, *shape), np.float32)
        return np.stack(codes), np.stack(scales).astype(np.float32)

    def _router(self, shape: tuple[int, int]) -> np.ndarray:
        bits = raw(f'layer/{self.seed}router', shape[0] * shape[1]).reshape(shape)
        if self.weight_of == 'powers':
            return np.ldexp(1.0, -(bits % 4).astype(np.int64)).astype(np.float32)
        return ((bits + 3000) / 69001).astype(np.float32)

    def rerouted(self) -> Layer:
        """The same shapes with other numbers, and other experts active: many where there were few, one where many."""
        first, active = self.ids(), len(self.active())
        # Twice as many and a few: every further expert of a large layer takes its time to make.
        many = min(self.local_experts, 2 * active + first.shape[1])
        spread = active < min(first.size, many)

        def ids() -> np.ndarray:
            if spread and first.shape[1] <= many:
                return self.offset + (np.arange(first.size) % many).reshape(first.shape)
            return self.offset + np.broadcast_to(np.arange(first.shape[1]) % self.local_experts, first.shape).copy()

        return replace(self, ids=ids, seed=f'{self.seed}rerouted/')


def call(subject: Subject, layer: Layer, tensors: Tensors, activation=None) -> torch.Tensor:
    """One call of the operator as the layer asks for it; `activation` in place of the layer's own."""
    return subject.fused_moe_blocked_fp8(
        *(tensors[name] for name in ('hidden', 'hidden_scale', 'w1', 'w1_scale', 'w2', 'w2_scale', 'topk_weights',
                                     'topk_ids')),
        topk=tensors['topk_ids'].size(1), w1_bias=tensors.get('w1_bias'), w2_bias=tensors.get('w2_bias'),
        out_dtype=TORCH_STORAGE[layer.out], expert_offset=layer.offset, num_experts=layer.experts,
        renormalize=layer.renormalise, act_func=activation or ACTIVATIONS[layer.activation])


def _gain(inner: int) -> float:
    """A scale under which sums of `inner` ordinary products come to a few units."""
    return 2.0**-round(np.log2(4 * SPREAD * np.sqrt(inner) / 16))


@cache
def _code_table(codes: str) -> np.ndarray:
    """Codes of bell-shaped values, uint8 [65536]: looked up by random bits, which is quicker than rounding."""
    return FP8_FORMATS[codes].encode(_normal('layer/codes', (65536, )) * SPREAD)


def _normal(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Bell-shaped values of standard deviation 1: the sum of four uniforms."""
    uniform = raw(seed, 4 * int(np.prod(shape))).astype(np.float64).reshape(4, *shape)
    return (uniform.sum(axis=0) - 2 * 65535) / 37837.0


def _among_nan(stack: np.ndarray, active: np.ndarray, experts: int, device: torch.device) -> torch.Tensor:
    nan = NAN_CODE if stack.dtype == np.uint8 else np.nan
    made = torch.from_numpy(stack)
    whole = torch.full((experts, *stack.shape[1:]), nan, dtype=made.dtype, device=device)
    whole[torch.from_numpy(active).to(device)] = made.to(device)
    return whole


def _wider(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.empty((*tensor.shape[:-1], tensor.size(-1) + 64), dtype=tensor.dtype, device=tensor.device)
    return wide[..., :tensor.size(-1)].copy_(tensor)
