"""Machine code as text: the instructions of a cubin, normalised so that only what runs can change them.

A cubin carries line tables and names, so that a comment in the source changes its bytes; its instructions stay. Builds
with equal instructions do the same with the same arguments on the same device, whatever their sources look like.
"""
from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import triton
from triton.runtime.jit import JITFunction

_INSTRUCTION = re.compile(r'^\s*/\*[0-9a-f]{4,}\*/\s*(?P<text>[^;]+);')
_LABEL = re.compile(r'^\s*(?P<label>\.L_\w+):')
_LABEL_USE = re.compile(r'\.L_\w+')
_PREDICATE = re.compile(r'^@!?U?P[T\d]+\s+')


class DisassemblyFailed(Exception):
    """nvdisasm is absent, refused the cubin, or printed no instruction. The message carries what it said."""


def disassemble(cubin: bytes) -> tuple[str, ...]:
    """The instructions of every kernel of `cubin`, in order, without addresses, comments and kernel names.

    Labels are numbered in the order in which they appear, since their original numbers count across the whole file.

    Raises:
        DisassemblyFailed: nvdisasm of the installed Triton cannot read the cubin.
    """
    tool = triton.knobs.nvidia.nvdisasm.path
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'kernel.cubin'
        path.write_bytes(cubin)
        # Data flow analysis only decorates jumps, which sm_90 code does not need, and costs a third of the time.
        done = subprocess.run([tool, '-c', '-ndf', str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DisassemblyFailed(f'{tool} ended with {done.returncode}: {done.stderr.strip()[:400]}')
    lines = normalise(done.stdout)
    if not lines:
        raise DisassemblyFailed(f'{tool} printed no instruction for a cubin of {len(cubin)} bytes')
    return lines


def normalise(disassembly: str) -> tuple[str, ...]:
    """nvdisasm's text -> one line per instruction or label."""
    lines = []
    for line in disassembly.splitlines():
        if label := _LABEL.match(line):
            lines.append(label['label'] + ':')
        elif instruction := _INSTRUCTION.match(line):
            lines.append(' '.join(instruction['text'].split()))
    numbers: dict[str, str] = {}
    return tuple(_LABEL_USE.sub(lambda use: numbers.setdefault(use[0], f'.L{len(numbers)}'), line) for line in lines)


def instruction_hash(lines: tuple[str, ...]) -> str:
    """sha256 (hex) over the normalised instructions."""
    return hashlib.sha256('\n'.join(lines).encode()).hexdigest()


def opcodes(lines: tuple[str, ...]) -> dict[str, int]:
    """Full opcode ('MUFU.EX2', 'F2FP.BF16.F32.PACK_AB') -> how often it stands in the code, by name. No labels."""
    names = [_PREDICATE.sub('', line).split()[0] for line in lines if not line.endswith(':')]
    return dict(sorted(Counter(names).items()))


@lru_cache(maxsize=256)
def _hash_of_cubin(cubin: bytes) -> str:
    return instruction_hash(disassemble(cubin))


class CompiledKernels:
    """The Triton kernels that were launched while `collect_compiled` was active."""

    def __init__(self) -> None:
        self._kernels: dict[str, object] = {}

    def note(self, kernel) -> None:
        """Remember a triton CompiledKernel; None (nothing was compiled) is passed over."""
        if kernel is not None:
            self._kernels.setdefault(kernel.hash, kernel)

    def instruction_hashes(self, without: frozenset[str] = frozenset()) -> dict[str, tuple[str, ...]]:
        """Kernel name -> instruction hashes of its builds, sorted: one launcher may have launched several.

        Args:
            without: names of kernels to leave out.
        """
        found: dict[str, set[str]] = {}
        for kernel in self._kernels.values():
            if kernel.name not in without:
                found.setdefault(kernel.name, set()).add(_hash_of_cubin(kernel.asm['cubin']))
        return {name: tuple(sorted(hashes)) for name, hashes in sorted(found.items())}


@contextmanager
def collect_compiled() -> Iterator[CompiledKernels]:
    """Collect every Triton kernel that is launched inside, compiled now or long ago.

    Interpreted kernels have no machine code and leave nothing. Only launches through `kernel[grid](...)` are seen: the
    replay of a CUDA graph launches what its capture has launched.
    """
    compiled = CompiledKernels()
    original = JITFunction.run

    def run(self, *args, **kwargs):
        kernel = original(self, *args, **kwargs)
        compiled.note(kernel)
        return kernel

    JITFunction.run = run
    try:
        yield compiled
    finally:
        JITFunction.run = original
