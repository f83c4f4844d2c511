"""What passes between the stages of a layer: its module's stage functions replaced, for a while, by recording ones."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch

# Stage -> name under which fused_moe_blocked_fp8 looks it up. Stages are named like the operators, where there is one.
STAGES = {
    'renormalise': '_renormalize',
    'sorted_routes': '_get_sorted_idx',
    'route_blocks': '_get_sorted_idx_blocks',
    'grouped_gemm': 'fused_moe_blocked_fp8_kernel_launcher',
    'grouped_gemm_blocks': 'fused_moe_blocked_fp8_compact_kernel_launcher',
    'silu_and_mul': 'silu_and_mul',
    'quant_fp8': 'quant_fp8',
    'moe_reduce': 'moe_reduce',
}
GEMMS = ('grouped_gemm', 'grouped_gemm_blocks')
# Weights and what belongs to them are too large to copy, and no stage writes to them.
_BY_REFERENCE = frozenset({'B', 'B_scale', 'bias'})
_UNTAPPED = frozenset({'renormalise'})


@dataclass(frozen=True)
class StageCall:
    """One call of a stage.

    Attributes:
        stage: a key of STAGES.
        arguments: by parameter name, defaults included; tensors as they were before the call, copied unless they are
            weights.
        result: what it returned, or, of a GEMM, what its output held afterwards; copied.
        instructions: matrix instructions that ran, as ptx names them; empty on the cpu lane.
    """

    stage: str
    arguments: dict[str, object]
    result: object
    instructions: frozenset[str]


@contextmanager
def tapped(module: ModuleType) -> Iterator[list[StageCall]]:
    """While active, collects every call of a stage of `module`, in order. The stages run as ever."""
    from harness.machine_code.executed import matrix_instructions  # imports triton, for which the lane must be active
    calls: list[StageCall] = []

    def recording(stage: str, original: Callable):

        def call(*args, **kwargs):
            arguments = _bound(original, args, kwargs)
            before = {name: value if name in _BY_REFERENCE else _copy(value) for name, value in arguments.items()}
            with matrix_instructions() as used:
                result = original(*args, **kwargs)
            kept = _copy(arguments['C'] if stage in GEMMS else result)
            calls.append(StageCall(stage, before, kept, frozenset(used)))
            return result

        return call

    with _replaced(module, recording):
        yield calls


@contextmanager
def undone(module: ModuleType) -> Iterator[list[StageCall]]:
    """While active, collects every call of a stage of `module`, which does nothing but hand out memory of the shape
    that the next stage asks for. What is left of a layer is its decisions."""
    calls: list[StageCall] = []

    def standing_in(stage: str, original: Callable):

        def call(*args, **kwargs):
            arguments = _bound(original, args, kwargs)
            calls.append(StageCall(stage, arguments, None, frozenset()))
            return _STAND_INS[stage](arguments)

        return original if stage in _UNTAPPED else call

    with _replaced(module, standing_in):
        yield calls


def _hidden_of(arguments: dict) -> torch.Tensor:
    states = arguments['hidden_states']
    return states.new_empty(states.size(0), states.size(2))


def _activated(arguments: dict) -> torch.Tensor:
    gate_up = arguments['gate_up']
    return gate_up[:, :gate_up.size(1) // 2]


def _quantised(arguments: dict) -> tuple[torch.Tensor, torch.Tensor]:
    x = arguments['A']
    groups = x.size(1) // arguments['group_size']
    return x.new_empty(x.shape, dtype=arguments['dtype']), x.new_empty(x.size(0), groups, dtype=torch.float32)


def _metadata(count: int) -> Callable[[dict], tuple[torch.Tensor, ...]]:
    return lambda arguments: tuple(arguments['topk_ids'].new_empty(1, dtype=torch.int32) for _ in range(count))


_STAND_INS: dict[str, Callable] = {
    'sorted_routes': _metadata(3), 'route_blocks': _metadata(6), 'grouped_gemm': lambda arguments: None,
    'grouped_gemm_blocks': lambda arguments: None, 'silu_and_mul': _activated, 'quant_fp8': _quantised,
    'moe_reduce': _hidden_of,
}


@contextmanager
def _replaced(module: ModuleType, make: Callable[[str, Callable], Callable]) -> Iterator[None]:
    originals = {name: getattr(module, name) for name in STAGES.values()}
    for stage, name in STAGES.items():
        setattr(module, name, make(stage, originals[name]))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _bound(function: Callable, args: tuple, kwargs: dict) -> dict[str, object]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _copy(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return tuple(map(_copy, value)) if isinstance(value, tuple) else value


def schedule(calls: list[StageCall]) -> dict[str, dict]:
    """How the two projections were launched: 'gate_up' and 'down' -> stage and tile, as `Subject.moe_schedule` says."""
    launches = [call for call in calls if call.stage in GEMMS]
    return {projection: _launch(call) for projection, call in zip(('gate_up', 'down'), launches, strict=True)}


def _launch(call: StageCall) -> dict:
    told = call.arguments
    return {'operator': call.stage, 'block_m': told['block_m'], 'block_n': told['block_n'],
            'transpose_mma': told.get('transpose_mma', False), 'top_k': told['top_k'],
            'reindex_a': told['reindex_a'], 'reindex_c': told['reindex_c']}
