"""The calls that operators must refuse, operator by operator: wrong dtype, device, shape, stride, group and option.

What stock refuses while a kernel is compiled is tried on the cpu lane alone, whose words are known.
"""
from __future__ import annotations

import torch

from harness.contracts.bad_input import BadCall
from harness.contracts.case import CPU_ONLY, SM90_ONLY

BF16, FP32, E4M3, E5M2 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
OTHER_DEVICE = 'a tensor of the host among those of the GPU'


def _ones(device, *shape, dtype=BF16) -> torch.Tensor:
    return torch.ones(shape, device=device).to(dtype)


def _silu(device, x=None, **changed) -> dict:
    return {'gate_up': _ones(device, 4, 512) if x is None else x, 'out': None, **changed}


SILU_AND_MUL = [
    BadCall('float32', 'only 16-bit inputs have the promised rounding', 'gate_up',
            lambda d: _silu(d, _ones(d, 4, 512, dtype=FP32))),
    BadCall('integers', 'integers are no activations', 'gate_up',
            lambda d: _silu(d, _ones(d, 4, 512, dtype=torch.int32))),
    BadCall('odd_width', 'gate and up have one width', 'gate_up', lambda d: _silu(d, _ones(d, 4, 511))),
    BadCall('three_dimensions', 'rows and columns', 'gate_up', lambda d: _silu(d, _ones(d, 2, 2, 512))),
    BadCall('out_narrow', 'an output with room for half of every row', 'out',
            lambda d: _silu(d, out=torch.empty(4, 128, dtype=BF16, device=d)), ('out', )),
    BadCall('out_few_rows', 'an output with room for half of the rows', 'out',
            lambda d: _silu(d, out=torch.empty(2, 256, dtype=BF16, device=d)), ('out', )),
    BadCall('out_dtype', 'an output of another dtype', 'out',
            lambda d: _silu(d, out=torch.empty(4, 256, dtype=torch.float16, device=d)), ('out', )),
    BadCall('out_overlap', 'all rows of the output at one address', 'out',
            lambda d: _silu(d, out=torch.empty(1, 256, dtype=BF16, device=d).expand(4, 256)), ('out', )),
    BadCall('out_on_host', OTHER_DEVICE, 'out',
            lambda d: _silu(d, out=torch.empty(4, 256, dtype=BF16)), lanes=SM90_ONLY),
]


def _quant(device, x=None, **changed) -> dict:
    return {'x': _ones(device, 4, 256) if x is None else x, 'group_size': 128, 'dtype': E4M3, 'trans_scale': False,
            'scale_fmt': None, **changed}


QUANT_FP8 = [
    BadCall('float32', 'only 16-bit inputs have the promised rounding', 'x',
            lambda d: _quant(d, _ones(d, 4, 256, dtype=FP32))),
    BadCall('one_dimension', 'rows and columns', 'x', lambda d: _quant(d, _ones(d, 256))),
    BadCall('partial_group', 'N must be a multiple of the group', 'x', lambda d: _quant(d, _ones(d, 4, 192))),
    BadCall('group_96', 'a group that is no power of two', 'group_size',
            lambda d: _quant(d, _ones(d, 4, 192), group_size=96), lanes=CPU_ONLY),
    BadCall('group_0', 'a group has elements', 'group_size', lambda d: _quant(d, group_size=0)),
    BadCall('group_negative', 'a group has elements', 'group_size', lambda d: _quant(d, group_size=-128)),
    BadCall('group_512', 'a group larger than what a warp reads at once', 'group_size',
            lambda d: _quant(d, _ones(d, 4, 512), group_size=512)),
    BadCall('codes_float16', 'codes are FP8', 'dtype', lambda d: _quant(d, dtype=torch.float16)),
    BadCall('codes_uint8', 'bytes are no codes', 'dtype', lambda d: _quant(d, dtype=torch.uint8)),
    BadCall('scale_fmt', 'None and ue8m0', 'scale_fmt', lambda d: _quant(d, scale_fmt='e8m0')),
    BadCall('scale_fmt_case', 'names are exact', 'scale_fmt', lambda d: _quant(d, scale_fmt='UE8M0')),
]


def _reduce(device, hidden=None, weights=None, **changed) -> dict:
    return {'hidden_states': _ones(device, 4, 3, 64) if hidden is None else hidden,
            'topk_weights': _ones(device, 4, 3, dtype=FP32) if weights is None else weights, 'fp32_acc': False,
            **changed}


MOE_REDUCE = [
    BadCall('two_dimensions', 'tokens, experts and columns', 'hidden_states', lambda d: _reduce(d, _ones(d, 4, 64))),
    BadCall('integers', 'integers are no states', 'hidden_states',
            lambda d: _reduce(d, _ones(d, 4, 3, 64, dtype=torch.int32))),
    BadCall('weights_flat', 'weights by token and expert', 'topk_weights',
            lambda d: _reduce(d, weights=_ones(d, 12, dtype=FP32))),
    BadCall('weights_of_fewer_experts', 'a weight for every state', 'topk_weights',
            lambda d: _reduce(d, weights=_ones(d, 4, 2, dtype=FP32))),
    BadCall('weights_of_more_tokens', 'a weight for every state', 'topk_weights',
            lambda d: _reduce(d, weights=_ones(d, 5, 3, dtype=FP32))),
    BadCall('weights_int64', 'ids in place of weights', 'topk_weights',
            lambda d: _reduce(d, weights=_ones(d, 4, 3, dtype=torch.int64))),
    BadCall('weights_on_host', OTHER_DEVICE, 'topk_weights',
            lambda d: _reduce(d, weights=torch.ones(4, 3)), lanes=SM90_ONLY),
]


def _fill(device, **changed) -> dict:
    def integers(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    cache, scale = torch.zeros(3, 16, 2, 128, device=device).to(E4M3), torch.zeros(3, 16, 2, 1, device=device)
    return {'k_states': _ones(device, 5, 2, 128), 'v_states': _ones(device, 5, 2, 128), 'k_caches': cache,
            'v_caches': cache.clone(), 'ks_caches': scale, 'vs_caches': scale.clone(), 'cu_seqlen_q': integers(0, 5),
            'kv_seqlens': integers(5), 'max_q_seqlen': 5, 'block_offsets': integers(1).view(1, 1), 'group_size': 128,
            'kv_layout': 'bshd', 'scale_fmt': None, **changed}


_CACHES = ('k_caches', 'v_caches', 'ks_caches', 'vs_caches')
FILL_KV_CACHE = [
    BadCall('layout', 'bshd and bhsd', 'kv_layout', lambda d: _fill(d, kv_layout='hbsd'), _CACHES),
    BadCall('scale_fmt', 'None and ue8m0', 'scale_fmt', lambda d: _fill(d, scale_fmt='e8m0'), _CACHES),
    BadCall('cache_dtype', 'a cache that holds no FP8', 'k_caches',
            lambda d: _fill(d, k_caches=torch.zeros(3, 16, 2, 128, dtype=BF16, device=d)), _CACHES),
    BadCall('cache_dtypes_differ', 'keys and values in two formats', 'v_caches',
            lambda d: _fill(d, v_caches=torch.zeros(3, 16, 2, 128, device=d).to(E5M2)), _CACHES),
    BadCall('scale_dtype', 'scales are float32', 'ks_caches',
            lambda d: _fill(d, ks_caches=torch.zeros(3, 16, 2, 1, dtype=BF16, device=d)), _CACHES),
    BadCall('too_few_scales', 'a scale for every group', 'ks_caches',
            lambda d: _fill(d, k_states=_ones(d, 5, 2, 256), k_caches=torch.zeros(3, 16, 2, 256, device=d).to(E4M3)),
            _CACHES),
    BadCall('fewer_heads', 'as many heads as the cache has', 'k_states',
            lambda d: _fill(d, k_states=_ones(d, 5, 1, 128)), _CACHES),
    BadCall('group_0', 'a group has elements', 'group_size', lambda d: _fill(d, group_size=0), _CACHES, CPU_ONLY),
    BadCall('lengths_float', 'lengths are integers', 'kv_seqlens',
            lambda d: _fill(d, kv_seqlens=torch.tensor([5.0], device=d)), _CACHES, CPU_ONLY),
]


def _gemm(device, **changed) -> dict:
    def integers(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    return {'a': _ones(device, 4, 256, dtype=E4M3), 'a_scale': _ones(device, 4, 2, dtype=FP32),
            'b': _ones(device, 2, 256, 256, dtype=E4M3), 'b_scale': _ones(device, 2, 2, 2, dtype=FP32),
            'out': torch.empty(4, 256, dtype=BF16, device=device), 'sorted_idx': integers(0, 2, 1, 3),
            'exp_start': integers(0, 2), 'exp_end': integers(2, 4), 'bias': None, 'top_k': 1, 'num_tokens': 4,
            'expert_offset': 0, 'reindex_a': True, 'reindex_c': False, 'block_m': 16, 'block_n': 128, **changed}


def _blocks(device, **changed) -> dict:
    def integers(*values):
        return torch.tensor(values, dtype=torch.int32, device=device)

    given = _gemm(device, **changed)
    tensors = {name: given[name] for name in ('a', 'a_scale', 'b', 'b_scale', 'out', 'sorted_idx', 'exp_end')}
    blocks = {'block_end': integers(1, 2), 'block_expert_ids': integers(0, 1), 'block_offsets': integers(0, 2)}
    options = ('bias', 'top_k', 'expert_offset', 'reindex_a', 'reindex_c', 'block_m', 'block_n')
    return tensors | blocks | {name: given[name] for name in options} | {'transpose_mma': False}


def _of_gemm(make) -> list[BadCall]:
    """The calls of one schedule, from its (device, changes) -> arguments."""
    return [
        BadCall('codes_bf16', 'operands are FP8 codes', 'a',
                lambda d: make(d, a=_ones(d, 4, 256)), ('out', ), CPU_ONLY),
        BadCall('codes_differ', 'both operands in one format', 'b',
                lambda d: make(d, b=_ones(d, 2, 256, 256, dtype=E5M2)), ('out', )),
        BadCall('k_differs', 'a row of a as long as a row of b', 'a',
                lambda d: make(d, a=_ones(d, 4, 384, dtype=E4M3)), ('out', )),
        BadCall('a_three_dimensions', 'a is a matrix', 'a',
                lambda d: make(d, a=_ones(d, 2, 2, 256, dtype=E4M3)), ('out', )),
        BadCall('finer_a_scales', 'scales of a for finer groups than those of b', 'a_scale',
                lambda d: make(d, a_scale=_ones(d, 4, 4, dtype=FP32)), ('out', )),
        BadCall('uneven_groups', 'groups that do not divide K', 'a_scale',
                lambda d: make(d, a_scale=_ones(d, 4, 3, dtype=FP32)), ('out', )),
        BadCall('block_wider_than_group', 'a tile whose columns have two scales', 'block_n',
                lambda d: make(d, b_scale=_ones(d, 2, 4, 2, dtype=FP32)), ('out', )),
        BadCall('block_across_groups', 'a tile that begins in one group of columns and ends in the next', 'block_n',
                lambda d: make(d, b=_ones(d, 2, 384, 256, dtype=E4M3), b_scale=_ones(d, 2, 2, 2, dtype=FP32),
                               out=torch.empty(4, 384, dtype=BF16, device=d)), ('out', )),
        BadCall('scales_bf16', 'scales are float32', 'a_scale', lambda d: make(d, a_scale=_ones(d, 4, 2)), ('out', )),
        BadCall('out_narrow', 'an output with room for half of every row', 'out',
                lambda d: make(d, out=torch.empty(4, 128, dtype=BF16, device=d)), ('out', )),
        BadCall('out_few_rows', 'an output with room for half of the rows', 'out',
                lambda d: make(d, out=torch.empty(2, 256, dtype=BF16, device=d)), ('out', )),
        BadCall('ids_int64', 'metadata is int32', 'sorted_idx',
                lambda d: make(d, sorted_idx=torch.tensor([0, 2, 1, 3], device=d)), ('out', )),
        BadCall('out_on_host', OTHER_DEVICE, 'out',
                lambda d: make(d, out=torch.empty(4, 256, dtype=BF16)), (), SM90_ONLY),
    ]


GROUPED_GEMM = _of_gemm(_gemm)
GROUPED_GEMM_BLOCKS = _of_gemm(_blocks)
