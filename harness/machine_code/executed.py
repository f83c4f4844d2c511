"""Which matrix instruction a call ran: read from the machine code of the kernels that it launched."""
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from triton.runtime.jit import JITFunction

# As ptx names them, from 'wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3' and 'mma.sync.aligned.m16n8k16...'.
_MATRIX_INSTRUCTION = re.compile(r'\b(wgmma\.mma_async|mma\.sync)\S*')


# Megabytes of text, looked through once for every build.
_found: WeakKeyDictionary[object, frozenset[str]] = WeakKeyDictionary()


def _of_build(compiled) -> frozenset[str]:
    if compiled not in _found:
        matches = _MATRIX_INSTRUCTION.finditer(compiled.asm['ptx'])
        _found[compiled] = frozenset(match.group(0).rstrip(';') for match in matches)
    return _found[compiled]


@contextmanager
def matrix_instructions() -> Iterator[set[str]]:
    """While active, collects the matrix instructions, as ptx writes them, of every Triton kernel that is launched.

    Launches run as ever. On the cpu lane kernels are interpreted, and the set stays empty.
    """
    found: set[str] = set()
    original = JITFunction.run

    def run(self, *args, **kwargs):
        compiled = original(self, *args, **kwargs)
        if hasattr(compiled, 'asm'):
            found.update(_of_build(compiled))
        return compiled

    JITFunction.run = run
    try:
        yield found
    finally:
        JITFunction.run = original
