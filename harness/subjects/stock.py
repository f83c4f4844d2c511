"""Stock: lmdeploy as installed, or a checkout of it, probed by capability."""
from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import torch

from harness.lanes import cpu_device, interpreter
from harness.lanes.activation import active_lane
from harness.lanes.lane import Lane
from harness.subjects import taps
from harness.subjects.protocol import Provenance, SubjectRefused
from harness.subjects.provenance import source_sha256

KERNELS = 'lmdeploy.pytorch.kernels.cuda'
_ROUTES = ('topk_ids', 'num_experts')
_SLICE = ('local_num_experts', 'expert_offset')
_GEMM = ('A', 'A_scale', 'B', 'B_scale', 'C', 'sorted_idx')
_GEMM_OPTIONS = ('bias', 'top_k', 'expert_offset', 'reindex_a', 'reindex_c', 'block_m', 'block_n')
_LAYER = ('input', 'input_scale', 'w1', 'w1_scale', 'w2', 'w2_scale', 'topk_weights', 'topk_ids', 'topk', 'w1_bias',
          'w2_bias', 'out_dtype', 'expert_offset', 'num_experts', 'renormalize', 'act_func')
# Operator -> (module below KERNELS, function, parameters that this adapter passes).
_OFFERED = {
    'silu_and_mul': ('activation', 'silu_and_mul', ('gate_up', 'out')),
    'quant_fp8': ('blocked_gemm_fp8', 'quant_fp8', ('A', 'group_size', 'dtype', 'trans_scale', 'scale_fmt')),
    'silu_and_mul_moe_ep': ('activation', 'silu_and_mul_moe_ep', ('gate_up', 'mask_m', 'out')),
    'silu_and_mul_masked_post_quant_fwd': ('activation', 'silu_and_mul_masked_post_quant_fwd',
                                           ('input', 'output', 'output_scale', 'quant_group_size', 'masked_m')),
    'v4_swiglu_and_quant_fp8': ('moe.v4_swiglu_quant', 'v4_swiglu_and_quant_fp8',
                                ('gate_up', 'swiglu_limit', 'group_size', 'dtype', 'scale_fmt')),
    'sorted_routes': ('moe.fused_moe', '_get_sorted_idx', _ROUTES),
    'route_blocks': ('moe.fused_moe', '_get_sorted_idx_blocks', (*_ROUTES, *_SLICE, 'block_m')),
    'grouped_gemm': ('moe.blocked_fp8', 'fused_moe_blocked_fp8_kernel_launcher',
                     (*_GEMM, 'exp_start', 'exp_end', *_GEMM_OPTIONS, 'num_tokens')),
    'grouped_gemm_blocks': ('moe.blocked_fp8', 'fused_moe_blocked_fp8_compact_kernel_launcher',
                            (*_GEMM, 'exp_end', 'block_end', 'block_expert_ids', 'block_offsets', *_GEMM_OPTIONS,
                             'transpose_mma')),
    'moe_reduce': ('moe.fused_moe', 'moe_reduce', ('hidden_states', 'topk_weights', 'fp32_acc')),
    'fill_kv_cache_blocked_fp8': ('fill_kv_cache', 'fill_kv_cache_blocked_fp8',
                                  ('k_states', 'v_states', 'k_caches', 'v_caches', 'ks_caches', 'vs_caches',
                                   'cu_seqlen_q', 'kv_seqlens', 'max_q_seqlen', 'block_offsets', 'group_size',
                                   'kv_layout', 'scale_fmt')),
    'fused_moe_blocked_fp8': ('moe.blocked_fp8', 'fused_moe_blocked_fp8', _LAYER),
    'moe_schedule': ('moe.blocked_fp8', 'fused_moe_blocked_fp8', _LAYER),
}
# (operator, preparation) -> what the operator of that name chooses from by shape.
_PREPARATIONS = {
    ('sorted_routes', 'parallel'): ('moe.fused_moe', '_get_sorted_idx_triton', _ROUTES),
    ('sorted_routes', 'single_cta'): ('moe.fused_moe', '_get_sorted_idx_single_cta', _ROUTES),
    ('route_blocks', 'parallel'): ('moe.fused_moe', '_get_sorted_idx_blocks_parallel', (*_ROUTES, *_SLICE, 'block_m')),
    ('route_blocks', 'single_cta'): ('moe.fused_moe', '_get_sorted_idx_blocks_single_cta', (*_ROUTES, 'block_m')),
}
_MODULES = ('utils', 'activation', 'blocked_gemm_fp8', 'moe.fused_moe', 'moe.blocked_fp8', 'moe.v4_swiglu_quant',
            'fill_kv_cache')


class Stock:
    """lmdeploy's own operators. Has no fused activation: `silu_and_mul_quant` is not offered."""

    name = 'stock'

    def __init__(self, provenance: Provenance, functions: dict, preparations: dict, modules: dict[str, ModuleType]):
        self.provenance = provenance
        self._modules = modules
        self._bindings = self._callables()
        self._functions = functions
        self._preparations = preparations

    def offers(self) -> frozenset[str]:
        return frozenset({*self._functions, 'call_signatures'})

    def _callables(self) -> dict[tuple[str, str], object]:
        return {(module.__name__, name): value for module in self._modules.values()
                for name, value in vars(module).items() if callable(value)}

    def require_pristine(self) -> None:
        """Raise SubjectRefused if a function or kernel of lmdeploy was replaced since stock was loaded.

        A plug-in does that to lmdeploy for a living, and would become the reference that it is compared with.
        """
        now = self._callables()
        replaced = [f'{module}.{name}' for (module, name), value in self._bindings.items()
                    if now.get((module, name)) is not value]
        if replaced:
            names = ', '.join(sorted(replaced)[:4])
            raise SubjectRefused(f'stock: expected lmdeploy as it was imported, found {names} replaced; a subject must '
                                 'leave the reference alone')

    def silu_and_mul(self, gate_up, out=None):
        return self._functions['silu_and_mul'](gate_up, out)

    def quant_fp8(self, x, group_size, dtype, trans_scale, scale_fmt):
        return self._functions['quant_fp8'](x, group_size, dtype=dtype, trans_scale=trans_scale, scale_fmt=scale_fmt)

    def sorted_routes(self, topk_ids, num_experts, preparation=None):
        return self._prepared('sorted_routes', preparation)(topk_ids, num_experts)

    def route_blocks(self, topk_ids, num_experts, local_experts, expert_offset, block_m, preparation=None):
        part = () if preparation == 'single_cta' else (local_experts, expert_offset)
        return self._prepared('route_blocks', preparation)(topk_ids, num_experts, *part, block_m)

    def _prepared(self, operator: str, preparation: str | None):
        return self._functions[operator] if preparation is None else self._preparations[operator, preparation]

    def silu_and_mul_moe_ep(self, gate_up, mask, out=None):
        return self._functions['silu_and_mul_moe_ep'](gate_up, mask, out)

    def silu_and_mul_masked_post_quant_fwd(self, gate_up, codes, scales, group_size, mask):
        self._functions['silu_and_mul_masked_post_quant_fwd'](gate_up, codes, scales, group_size, mask)

    def v4_swiglu_and_quant_fp8(self, gate_up, swiglu_limit, group_size, dtype, scale_fmt):
        return self._functions['v4_swiglu_and_quant_fp8'](gate_up, swiglu_limit, group_size, dtype, scale_fmt)

    def grouped_gemm(self, *tensors, **options):
        self._functions['grouped_gemm'](*tensors, **options)

    def grouped_gemm_blocks(self, *tensors, **options):
        self._functions['grouped_gemm_blocks'](*tensors, **options)

    def moe_reduce(self, hidden_states, topk_weights, fp32_acc):
        return self._functions['moe_reduce'](hidden_states, topk_weights, fp32_acc=fp32_acc)

    def fill_kv_cache_blocked_fp8(self, *states_caches_and_lengths):
        parameters = _OFFERED['fill_kv_cache_blocked_fp8'][2]
        self._functions['fill_kv_cache_blocked_fp8'](**dict(zip(parameters, states_caches_and_lengths, strict=True)))

    def call_signatures(self):
        return Path(self.provenance.path).parent

    def fused_moe_blocked_fp8(self, *tensors, **options):
        return self._functions['fused_moe_blocked_fp8'](*tensors, **options)

    def moe_schedule(self, tokens, top_k, num_experts, local_experts, expert_offset, hidden_size, intermediate, device):
        layer = self._functions['moe_schedule']
        tensors = _of_shapes(tokens, top_k, local_experts, hidden_size, intermediate, device)
        on_gpu = cpu_device.tensors_report_cuda() if active_lane() is Lane.CPU else contextlib.nullcontext()
        with taps.undone(self._modules['moe.blocked_fp8']) as calls, on_gpu:
            layer(*tensors, topk=top_k, out_dtype=torch.bfloat16, expert_offset=expert_offset, num_experts=num_experts)
        return taps.schedule(calls)

    def tapped(self):
        """Context: collects what passes between the stages of fused_moe_blocked_fp8 (see harness/subjects/taps.py)."""
        return taps.tapped(self._modules['moe.blocked_fp8'])


def _of_shapes(tokens, top_k, experts, hidden_size, intermediate, device) -> tuple[torch.Tensor, ...]:
    """A layer's tensors without numbers: one element, whatever the shape, for all of it."""

    def tensor(dtype, *shape):
        return torch.ones(1, device=device).to(dtype).expand(*shape)

    codes, scale, group = torch.float8_e4m3fn, torch.float32, 128
    h, i = hidden_size // group, intermediate // group
    return (tensor(codes, tokens, hidden_size), tensor(scale, tokens, h),
            tensor(codes, experts, 2 * intermediate, hidden_size), tensor(scale, experts, 2 * i, h),
            tensor(codes, experts, hidden_size, intermediate), tensor(scale, experts, h, i),
            tensor(scale, tokens, top_k), tensor(torch.int64, tokens, top_k))


def load_stock(lmdeploy_src: Path | None = None) -> Stock:
    """Import lmdeploy's kernels. Only what the kernels need has to be installed; the engine's packages do not.

    Raises:
        SubjectRefused: lmdeploy cannot be imported, is not the one asked for, or has another layout.
    """
    return _load(_source_tree(Path(lmdeploy_src)) if lmdeploy_src is not None else None)


@lru_cache(maxsize=1)
def _load(source: Path | None) -> Stock:
    modules = {name: _import(f'{KERNELS}.{name}', source) for name in _MODULES}
    root = Path(modules['activation'].__file__).parents[4]
    if source is not None and root != source:
        raise SubjectRefused(f'--lmdeploy-src: expected lmdeploy to be imported from {source}, found {root}')
    _fit_to_lane(modules)
    files = (root / 'lmdeploy/pytorch/kernels').rglob('*.py')
    provenance = Provenance('stock', str(root / 'lmdeploy'), _version(root), source_sha256(root, files))
    functions, preparations = ({key: _probe(modules, *wanted) for key, wanted in table.items()}
                               for table in (_OFFERED, _PREPARATIONS))
    return Stock(provenance, functions, preparations, modules)


def _source_tree(path: Path) -> Path:
    path = path.resolve()
    wanted = [path / 'lmdeploy/pytorch/kernels/cuda' / f'{name.replace(".", "/")}.py' for name in _MODULES]
    missing = [str(file.relative_to(path)) for file in wanted if not file.is_file()]
    if missing:
        found = sorted(entry.name for entry in path.iterdir())[:12] if path.is_dir() else 'no such folder'
        raise SubjectRefused(f'--lmdeploy-src: expected a checkout of lmdeploy with {", ".join(missing)} below {path}, '
                             f'found {found}')
    return path


def _import(name: str, source: Path | None) -> ModuleType:
    if source is not None and str(source) not in sys.path:
        loaded = sys.modules.get('lmdeploy')
        if loaded is not None:
            raise SubjectRefused(f'--lmdeploy-src: expected to be the first to import lmdeploy, found it imported from '
                                 f'{loaded.__file__}')
        sys.path.insert(0, str(source))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ''
        if missing.split('.')[0] == 'lmdeploy':
            raise SubjectRefused(f'stock: expected the module {name}, found none ({error}); is lmdeploy installed, and '
                                 'a release whose layout is in ci/supported.toml?') from error
        raise SubjectRefused(f'stock: {name} needs the package {missing!r}, which is not installed') from error
    except (Exception, SystemExit) as error:  # an import of somebody else's package can end in any way
        raise SubjectRefused(f'stock: {name} does not import: {type(error).__name__}: {error}') from error


def _fit_to_lane(modules: dict[str, ModuleType]) -> None:
    """On the cpu lane, reach what lmdeploy binds or caches at import."""
    if active_lane() is Lane.CPU:
        interpreter.rebind_builtin_aliases(KERNELS)
        cpu_device.when_sm_count_changes(modules['utils'].get_device_props.cache_clear)


def _probe(modules: dict[str, ModuleType], module: str, name: str, parameters: tuple[str, ...]):
    function = getattr(modules[module], name, None)
    if function is None:
        raise SubjectRefused(f'stock: expected {KERNELS}.{module}.{name}, found no such function')
    found = list(inspect.signature(function).parameters)
    missing = [parameter for parameter in parameters if parameter not in found]
    if missing:
        raise SubjectRefused(f'stock: expected {name}({", ".join(parameters)}), found {name}({", ".join(found)})')
    return function


def _version(root: Path) -> str:
    version = importlib.import_module('lmdeploy.version')
    return str(version.__version__)

