"""Fused against separate SwiGLU and FP8 quantisation on an sm90 GPU: `python -m harness.bench.activation`.

Each side is a CUDA graph of many copies of the operation, so that one node's time is seen without launch gaps of the
host. The sides are replayed in turn and the ratio is taken within each round: a ratio in one run says more than two
absolute times. A third graph of nodes that only load and store the same bytes gives the floor.
"""
from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

COPIES = 200
ROUNDS = 60
TOP_K = 8
INTERMEDIATE = 256
TOKENS = (1, 4, 16, 32)


@triton.jit
def _load_store_kernel(gate_up_ptr, codes_ptr, scales_ptr, GROUPS_PER_ROW: tl.constexpr, GROUP: tl.constexpr):
    """The memory traffic of the fused kernel and none of its arithmetic."""
    row = tl.program_id(0) // GROUPS_PER_ROW
    group = tl.program_id(0) % GROUPS_PER_ROW
    column = group * GROUP + tl.arange(0, GROUP)
    gate_ptrs = gate_up_ptr + row * 2 * GROUPS_PER_ROW * GROUP + column
    gate = tl.load(gate_ptrs)
    up = tl.load(gate_ptrs + GROUPS_PER_ROW * GROUP)
    both = (gate.to(tl.uint16, bitcast=True) ^ up.to(tl.uint16, bitcast=True)).to(tl.uint8)
    tl.store(codes_ptr + row * GROUPS_PER_ROW * GROUP + column, both)
    tl.store(scales_ptr + tl.program_id(0), 1.0)


def _load_store(gate_up: torch.Tensor) -> None:
    rows, width = gate_up.size(0), gate_up.size(1) // 2
    codes = gate_up.new_empty(rows, width, dtype=torch.uint8)
    scales = gate_up.new_empty(rows, width // 128, dtype=torch.float32)
    _load_store_kernel[(rows * (width // 128), )](gate_up, codes, scales, width // 128, 128, num_warps=1)


def _graph(operation, gate_up) -> torch.cuda.CUDAGraph:
    operation(gate_up)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(COPIES):
            operation(gate_up)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def _microseconds(graph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / COPIES


def paired(operations: dict, gate_up: torch.Tensor) -> dict[str, list[float]]:
    """Name -> microseconds per node, one figure a round, the operations replayed in turn within each round."""
    graphs = {name: _graph(operation, gate_up) for name, operation in operations.items()}
    times = {name: [] for name in graphs}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            times[name].append(_microseconds(graph))
    return times


def measure(stock, candidate, tokens: int) -> dict:
    """One row of the table: median microseconds of both sides and the floor, and the median ratio within a round."""
    generator = torch.Generator('cuda').manual_seed(tokens)
    gate_up = torch.randn(tokens * TOP_K, 2 * INTERMEDIATE, generator=generator, device='cuda').to(torch.bfloat16)
    settings = {'dtype': torch.float8_e4m3fn, 'trans_scale': False, 'scale_fmt': None}
    times = paired({
        'separate': lambda x: stock.quant_fp8(stock.silu_and_mul(x), 128, **settings),
        'fused': lambda x: candidate.silu_and_mul_quant(x, 128, **settings),
        'load_store': _load_store,
    }, gate_up)
    ratios = [f / s for f, s in zip(times['fused'], times['separate'], strict=True)]
    row = {name: statistics.median(values) for name, values in times.items()}
    return {'tokens': tokens, 'rows': tokens * TOP_K, **row, 'less': 1 - statistics.median(ratios),
            'less_worst_round': 1 - max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--json', type=Path, help='write the table there, too')
    arguments = parser.parse_args()
    from harness.lanes.activation import activate
    from harness.lanes.lane import Lane, WrongDevice
    from harness.subjects import load
    try:
        activate(Lane.SM90)
    except WrongDevice as wrong:
        sys.exit(f'harness.bench.activation: {wrong}')
    stock, candidate = load('stock'), load('candidate')
    table = [measure(stock, candidate, tokens) for tokens in TOKENS]
    print('tokens  rows  separate us  fused us  load+store us  less')
    for row in table:
        print(f'{row["tokens"]:6d} {row["rows"]:5d} {row["separate"]:12.3f} {row["fused"]:9.3f} '
              f'{row["load_store"]:14.3f} {row["less"]:6.1%}')
    if arguments.json:
        arguments.json.write_text(json.dumps({'device': torch.cuda.get_device_name(), 'torch': torch.__version__,
                                              'triton': triton.__version__, 'rows': table}, indent=1))


if __name__ == '__main__':
    main()
