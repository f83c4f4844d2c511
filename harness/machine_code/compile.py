"""Compiling a recorded specialisation for sm_90 on any machine: Triton's wheel carries everything but the GPU."""
from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton
from triton.compiler import ASTSource

from harness.machine_code.instructions import disassemble, instruction_hash, opcodes
from harness.machine_code.launches import SM90, Specialization

_RESOURCES = re.compile(r'REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)')
_NARROWING = re.compile(r'^\s*cvt\.rn\.(?:bf16|f16)(x2)?\.f32\s', re.MULTILINE)
_PRODUCT = re.compile(r'^\s*(?:mul|fma)(?:\.rn)?(?:\.ftz)?\.(?:bf16|f16)(x2)?\s', re.MULTILINE)


class CompilationFailed(Exception):
    """The kernel cannot be compiled for sm_90. The message names the specialisation and what the compiler said."""


@dataclass(frozen=True)
class MachineCode:
    """One build for sm_90.

    Attributes:
        name: the specialisation, in words.
        kernel: 'module:attribute'.
        registers: per thread.
        spills: bytes of local memory per thread (Triton inlines everything, so that a stack frame is spilt registers).
        shared: bytes of shared memory per program, as the launch asks for it.
        instructions: how many, padding included.
        sha256: hash of the normalised instructions.
        opcodes: full opcode -> occurrences.
        narrowings: float32 values per thread that are rounded to a 16-bit float (read from the PTX).
        products: 16-bit products per thread, each rounded once (read from the PTX).
        triton, ptxas: versions.
    """

    name: str
    kernel: str
    registers: int
    spills: int
    shared: int
    instructions: int
    sha256: str
    opcodes: dict[str, int]
    narrowings: int
    products: int
    triton: str
    ptxas: str

    def as_dict(self) -> dict:
        return asdict(self)


def compile_for_sm90(specialization: Specialization) -> MachineCode:
    """Compile through Triton's own pipeline and read the result.

    Raises:
        CompilationFailed: it does not compile, or its resources cannot be read.
    """
    source = ASTSource(specialization.function, dict(specialization.signature), dict(specialization.constexprs),
                       {path: [list(pair) for pair in found] for path, found in specialization.attrs})
    try:
        built = triton.compile(source, target=SM90, options=dict(specialization.options))
    except Exception as error:
        raise CompilationFailed(f'{specialization.name}: {error}') from error
    lines = disassemble(built.asm['cubin'])
    registers, stack, local = resource_usage(built.asm['cubin'])
    return MachineCode(
        name=specialization.name,
        kernel=specialization.kernel,
        registers=registers,
        spills=stack + local,
        shared=built.metadata.shared,
        instructions=sum(not line.endswith(':') for line in lines),
        sha256=instruction_hash(lines),
        opcodes=opcodes(lines),
        narrowings=_count(_NARROWING, built.asm['ptx']),
        products=_count(_PRODUCT, built.asm['ptx']),
        triton=triton.__version__,
        ptxas=triton.knobs.nvidia.ptxas.version,
    )


def _count(pattern: re.Pattern, ptx: str) -> int:
    return sum(2 if packed else 1 for packed in pattern.findall(ptx))


def resource_usage(cubin: bytes) -> tuple[int, int, int]:
    """(registers, bytes of stack, bytes of local memory), per thread, of a cubin with one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.cubin'
        path.write_bytes(cubin)
        done = subprocess.run([triton.knobs.nvidia.cuobjdump.path, '--dump-resource-usage', str(path)],
                              capture_output=True, text=True, check=False)
    found = _RESOURCES.findall(done.stdout)
    if len(found) != 1:
        raise CompilationFailed(f'cuobjdump --dump-resource-usage: expected one kernel, found {len(found)}: '
                                f'{(done.stdout + done.stderr).strip()[:400]}')
    registers, stack, _, local = map(int, found[0])
    return registers, stack, local
