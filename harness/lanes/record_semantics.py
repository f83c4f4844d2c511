"""The semantics table: what the device does to special values, one row per operation and input.

`python -m harness.lanes.record_semantics OUT.json` records it on an sm90 GPU. The cpu lane runs the same kernels in the
interpreter, and a test compares its rows with the recorded ones: `compare_rows`.
"""
from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import triton

from harness.lanes import semantics_inputs as inputs
from harness.lanes import semantics_kernels as kernels
from harness.lanes.lane import WrongDevice
from harness.lanes.semantics_inputs import BF16, E4M3, E5M2, FORMATS, FP16, FP32, Format

BLOCK = 256
WIDTH = 128
CONVERSIONS = ((FP32, BF16), (FP32, FP16), (FP32, E4M3), (FP32, E5M2), (BF16, E4M3), (BF16, E5M2), (FP16, E4M3),
               (FP16, E5M2), (BF16, FP32), (FP16, FP32), (BF16, FP16), (FP16, BF16), (E4M3, FP32), (E4M3, FP16),
               (E4M3, BF16), (E5M2, FP32), (E5M2, FP16), (E5M2, BF16))
UNARY = ('abs', 'neg', 'maximum_floor', 'clamp_symmetric', 'clamp_asymmetric')
BINARY = ('add', 'sub', 'mul', 'div', 'maximum', 'minimum', 'where_gt', 'compare')
REDUCTIONS = ('max', 'min', 'amax', 'amax_floor', 'sum')
# ex2.approx and div.full: the interpreter uses numpy's, so only the class of the result can be compared
APPROXIMATE = frozenset({'div', 'exp_neg', 'silu'})
TORCH = {'fp32': torch.float32, 'fp16': torch.float16, 'bf16': torch.bfloat16, 'fp8e4nv': torch.float8_e4m3fn,
         'fp8e5': torch.float8_e5m2}

INTEGERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32}


@dataclass(frozen=True)
class Launch:
    """One launch of one kernel.

    Attributes:
        kernel: name of a kernel of `semantics_kernels`.
        op: which operation the kernel performs (its constexpr OP).
        source: format of every operand.
        target: format of the output buffer; operations other than 'cast' may return another one, see `run`.
        operands: bits, [elements][operands]; for reductions [rows][WIDTH].
    """

    kernel: str
    op: str
    source: Format
    target: Format
    operands: list


def launches() -> Iterator[Launch]:
    """Every launch of the table, in the order of its rows."""
    for source, target in CONVERSIONS:
        yield Launch('unary', 'cast', source, target, [(a,) for a in inputs.conversion_inputs(source, target)])
    for fmt in (FP32, BF16, FP16):
        for op in UNARY:
            yield Launch('unary', op, fmt, fmt, [(a,) for a in inputs.unary_inputs(fmt)])
        pairs = [(a, b) for a in inputs.operands(fmt) for b in inputs.operands(fmt)]
        for op in BINARY:
            yield Launch('binary', op, fmt, fmt, pairs)
        yield Launch('ternary', 'fma', fmt, fmt, inputs.triples(fmt))
        yield Launch('ternary', 'clamp', fmt, fmt, inputs.clamp_triples(fmt))
        for op in REDUCTIONS:
            yield Launch('row_reduction', op, fmt, fmt, inputs.reduction_rows(fmt, WIDTH))
    for op in ('exp_neg', 'silu'):
        yield Launch('unary', op, FP32, FP32, [(a,) for a in inputs.exponential_inputs()])


def _to_tensor(bits: list[int], fmt: Format, device: torch.device) -> torch.Tensor:
    signed = np.array(bits, dtype=fmt.storage).view(f'int{fmt.bits}' if fmt.bits > 8 else 'uint8')
    return torch.from_numpy(signed).to(device).view(TORCH[fmt.name])


def _to_bits(values: torch.Tensor, fmt: Format) -> list[int]:
    return values.cpu().view(INTEGERS[fmt.bits]).numpy().view(fmt.storage).tolist()


def run(launch: Launch, device: torch.device) -> tuple[Format, list[int]]:
    """The format in which the operation answered, and the bits of the answers.

    The front end promotes some operands (bf16 maximum answers in fp32); the launch is repeated with an output buffer
    of that format, so that no conversion of the store hides what the operation gave.
    """
    kernel = getattr(kernels, launch.kernel)
    count, target = len(launch.operands), launch.target
    for _ in range(2):
        out = torch.zeros(count, dtype=INTEGERS[target.bits], device=device).view(TORCH[target.name])
        answer_format = torch.zeros(1, dtype=torch.int32, device=device)
        if launch.kernel == 'row_reduction':
            flat = [bits for row in launch.operands for bits in row]
            kernel[(count,)](_to_tensor(flat, launch.source, device), out, answer_format, OP=launch.op, WIDTH=WIDTH)
        else:
            columns = [_to_tensor(list(column), launch.source, device) for column in zip(*launch.operands, strict=True)]
            kernel[(triton.cdiv(count, BLOCK),)](*columns, out, answer_format, count, OP=launch.op, BLOCK=BLOCK)
        code = int(answer_format.item())
        answered = next(f for f in FORMATS.values() if f.bits * 100 + f.mantissa == code)
        if answered == target:
            return target, _to_bits(out, target)
        target = answered
    raise RuntimeError(f'{launch.op} on {launch.source.name}: the format of its answer did not settle')


def _is_ordinary(bits: int, fmt: Format) -> bool:
    magnitude = bits & ~fmt.sign
    return 0 < magnitude < fmt.infinity


def _hex_runs(operands: Iterable[int], digits: int) -> list[str]:
    runs = [(bits, len(list(equal))) for bits, equal in groupby(operands)]
    if len(runs) > 3 or all(length < 4 for _, length in runs):
        return [f'{bits:0{digits}x}' for bits, length in runs for _ in range(length)]
    return [f'{bits:0{digits}x}' + (f'*{length}' if length > 1 else '') for bits, length in runs]


def rows(device: torch.device) -> list[dict]:
    """Runs every launch on `device` and returns the table's rows.

    A row is {op, dtype_in, dtype_out, inputs: [hex, ...], output: hex, exact}; hex is the bit pattern, most
    significant digit first, and 'hex*n' stands for n equal neighbours. `exact` is false where the device's own
    approximation decides the bits (exp, division of ordinary values): such a row is compared by class only.
    """
    table = []
    for launch in launches():
        target, answers = run(launch, device)
        digits = target.bits // 4
        for operands, answer in zip(launch.operands, answers, strict=True):
            exact = launch.op not in APPROXIMATE or not all(_is_ordinary(bits, launch.source) for bits in operands)
            table.append({'op': launch.op if launch.kernel != 'row_reduction' else f'reduce_{launch.op}',
                          'dtype_in': launch.source.name, 'dtype_out': target.name,
                          'inputs': _hex_runs(operands, launch.source.bits // 4),
                          'output': f'{answer:0{digits}x}', 'exact': exact})
    return table


def value_class(output: str, fmt: Format) -> str:
    """'nan', or sign and kind: '+zero', '-finite', '+inf', ... of a bit pattern in hex."""
    bits = int(output, 16)
    magnitude = bits & ~fmt.sign
    if magnitude > fmt.infinity:
        return 'nan'
    kind = 'inf' if magnitude == fmt.infinity else 'finite' if magnitude else 'zero'
    return ('-' if bits & fmt.sign else '+') + kind


def compare_rows(recorded: list[dict], found: list[dict]) -> list[str]:
    """One line per difference; empty when every row agrees. Rows must be the same in number, operation and input."""
    if len(recorded) != len(found):
        return [f'expected {len(recorded)} rows, found {len(found)}']
    differences = []
    for want, have in zip(recorded, found, strict=True):
        asked = [(row['op'], row['dtype_in'], row['inputs']) for row in (want, have)]
        if asked[0] != asked[1]:
            differences.append(f'expected the row {asked[0]}, found {asked[1]}')
            continue
        same = want['dtype_out'] == have['dtype_out'] and want['output'] == have['output']
        if not want['exact'] and want['dtype_out'] == have['dtype_out']:
            fmt = FORMATS[want['dtype_out']]
            same = value_class(want['output'], fmt) == value_class(have['output'], fmt)
        if not same:
            shown = ' '.join(want['inputs'])
            differences.append(f"{want['op']} {want['dtype_in']} [{shown}]: recorded {want['dtype_out']} "
                               f"{want['output']}, found {have['dtype_out']} {have['output']}")
    return differences


def environment(device: torch.device) -> dict:
    """Where a table was recorded."""
    properties = torch.cuda.get_device_properties(device)
    return {'device': properties.name, 'capability': list(torch.cuda.get_device_capability(device)),
            'sm_count': properties.multi_processor_count, 'python': platform.python_version(),
            'torch': torch.__version__, 'triton': triton.__version__, 'numpy': np.__version__,
            'cuda': torch.version.cuda}


def dump(table: list[dict], where: dict, path: Path) -> None:
    """Writes the table as JSON, one row a line, so that two recordings can be compared line by line."""
    lines = ',\n'.join('  ' + json.dumps(row) for row in table)
    path.write_text(f'{{"environment": {json.dumps(where)},\n "rows": [\n{lines}\n]}}\n')


def main(arguments: list[str]) -> int:
    """Records the table on this machine's sm90 GPU; 2 on wrong usage."""
    if len(arguments) != 1:
        print('usage: python -m harness.lanes.record_semantics OUT.json', file=sys.stderr)
        return 2
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise WrongDevice('the semantics table is recorded on an sm90 GPU; none is usable here')
    device = torch.device('cuda', torch.cuda.current_device())
    table = rows(device)
    again = rows(device)
    differences = compare_rows(table, again)
    if differences:
        raise RuntimeError('two recordings differ: ' + '; '.join(differences[:5]))
    dump(table, environment(device), Path(arguments[0]))
    print(f'{len(table)} rows -> {arguments[0]}')
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
