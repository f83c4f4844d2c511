"""What must not change a layer's bytes, or must change them in one exact way, whoever computes it and however.

A relation: (layer, call, tensors) -> pairs of outputs [rows, H] that must be equal; call(layer, tensors) is one run.
All keep the numbers of routes and experts in the range of one schedule, so that a token meets the same instructions.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from harness.contracts.fused_moe_problem import Layer
from harness.evidence.trial import Tensors

Call = Callable[[Layer, Tensors], torch.Tensor]
Pair = tuple[str, torch.Tensor, torch.Tensor]
BY_TOKEN = ('hidden', 'hidden_scale', 'topk_weights', 'topk_ids')
BY_EXPERT = ('w1', 'w1_scale', 'w2', 'w2_scale')


def _of_tokens(tensors: Tensors, order: torch.Tensor) -> Tensors:
    return tensors | {name: _picked(tensors[name], order) for name in BY_TOKEN}


def _picked(tensor: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows in another order; through bytes, for not every device indexes FP8."""
    bits = tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor
    return bits[order].view(tensor.dtype)


def permuted_tokens(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    order = torch.arange(len(tensors['hidden']), device=tensors['hidden'].device).flip(0)
    yield ('tokens in another order', call(layer, _of_tokens(tensors, order)), call(layer, tensors)[order])


def relabelled_experts(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """Expert e becomes expert order[e], weights and routes alike."""
    experts = layer.experts
    order = (torch.arange(experts, device=tensors['hidden'].device) * 3 + 1) % experts
    back = torch.argsort(order)
    moved = {name: _picked(tensors[name], back) for name in BY_EXPERT}
    relabelled = tensors | moved | {'topk_ids': order[tensors['topk_ids'].long()].to(tensors['topk_ids'].dtype)}
    yield 'experts under other numbers', call(layer, relabelled), call(layer, tensors)


def scaled_weights(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """Powers of two go through every rounding: far from the ends of the range the output scales exactly."""
    whole = call(layer, tensors)
    for factor in (0.25, 8.0):
        scaled = call(layer, tensors | {'topk_weights': tensors['topk_weights'] * factor})
        yield f'router weights times {factor}', scaled, whole * factor


def duplicated_token(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """The last token is the first once more, beside others."""
    order = torch.arange(len(tensors['hidden']), device=tensors['hidden'].device)
    order[-1] = 0
    out = call(layer, _of_tokens(tensors, order))
    yield 'a token twice', out[-1:], out[:1]


def more_experts(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """Experts without routes behind the others, all NaN."""
    more = replace(layer, experts=layer.experts + 3)
    yield 'three idle experts more', call(more, more.build(tensors['hidden'].device)), call(layer, tensors)


def idle_weights(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """Idle experts of ordinary size in place of NaN: nothing was masked by NaN's own rules."""
    used = torch.zeros(layer.experts, dtype=torch.bool, device=tensors['hidden'].device)
    used[tensors['topk_ids'].long().unique()] = True
    first = int(used.nonzero()[0])
    order = torch.where(used, torch.arange(layer.experts, device=used.device), first)
    filled = tensors | {name: _picked(tensors[name], order) for name in BY_EXPERT}
    yield 'idle experts with ordinary weights', call(layer, filled), call(layer, tensors)


def zero_weight(layer: Layer, call: Call, tensors: Tensors) -> Iterator[Pair]:
    """A route of weight zero is worth as much as a route of another expert of weight zero."""
    weights, ids = tensors['topk_weights'].clone(), tensors['topk_ids'].clone()
    weights[:, 0] = 0
    other = tensors | {'topk_weights': weights}
    ids[:, 0] = ids[:, 1]
    moved = call(layer, other | {'topk_ids': ids})
    # Products with 0 are zeros of either sign: beside an ordinary sum neither shows.
    yield 'a route of weight zero on another expert', moved, call(layer, other)


# Name -> (why, relation).
RELATIONS: dict[str, tuple[str, Callable]] = {
    'permuted_tokens': ('where a token stands in the batch is nothing to its row', permuted_tokens),
    'relabelled_experts': ('an expert\'s number is nothing to its routes', relabelled_experts),
    'scaled_weights': ('a power of two in the router\'s weights comes out as it is', scaled_weights),
    'duplicated_token': ('the same token gives the same row', duplicated_token),
    'more_experts': ('experts that nobody asks for change nothing', more_experts),
    'idle_weights': ('what idle experts hold is nothing to anybody', idle_weights),
    'zero_weight': ('an expert of weight zero leaves no trace', zero_weight),
}
