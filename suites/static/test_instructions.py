"""Normalised instructions, and collecting the kernels of a live process: on text and stand-ins, without a compiler."""
from __future__ import annotations

from types import SimpleNamespace

import pytest
from triton.runtime.jit import JITFunction

from harness.machine_code import instructions
from harness.machine_code.instructions import (
    DisassemblyFailed,
    collect_compiled,
    disassemble,
    instruction_hash,
    normalise,
    opcodes,
)

LISTING = '''
\t.section\t.text.kernel,"ax",@progbits
kernel:
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;   // a comment
        /*0010*/              @!P0 LDG.E.64 R10, desc[UR4][R8.64+0x200] ;
        /*0020*/               @P1 BRA `(.L_x_7);
        /*0030*/             @!UP2 UMOV UR4, 0x1 ;
.L_x_7:
        /*0040*/                   EXIT ;
.L_x_8:
'''
LINES = ('LDC R1, c[0x0][0x28]', '@!P0 LDG.E.64 R10, desc[UR4][R8.64+0x200]', '@P1 BRA `(.L0)', '@!UP2 UMOV UR4, 0x1',
         '.L0:', 'EXIT', '.L1:')


def test_normalised_lines_hold_instructions_and_labels_alone():
    assert normalise(LISTING) == LINES


@pytest.mark.parametrize(('old', 'new'), [('kernel', 'renamed'), ('// a comment', ''), ('.L_x_7', '.L_x_70'),
                                          ('/*0040*/', '/*00a0*/')])
def test_names_comments_and_addresses_do_not_count(old, new):
    assert old in LISTING
    assert normalise(LISTING.replace(old, new)) == LINES


@pytest.mark.parametrize(('old', 'new'), [('LDG.E.64', 'LDG.E.32'), ('@!P0', '@P0'), ('0x200', '0x208'),
                                          ('`(.L_x_7)', '`(.L_x_8)')])
def test_whatever_can_change_a_result_changes_the_hash(old, new):
    assert old in LISTING
    assert instruction_hash(normalise(LISTING.replace(old, new))) != instruction_hash(LINES)


def test_opcodes_are_counted_without_predicates_and_labels():
    assert opcodes(LINES) == {'BRA': 1, 'EXIT': 1, 'LDC': 1, 'LDG.E.64': 1, 'UMOV': 1}


def test_what_is_no_cubin_is_refused():
    with pytest.raises(DisassemblyFailed):
        disassemble(b'no cubin')


def test_every_kernel_that_is_launched_is_collected_once(monkeypatch):
    builds = {name: SimpleNamespace(name=name, hash=f'key {name} {cubin}', asm={'cubin': cubin})
              for name, cubin in (('silu', b'1'), ('quant', b'2'), ('tally', b'3'))}
    second = SimpleNamespace(name='quant', hash='another key', asm={'cubin': b'4'})
    monkeypatch.setattr(JITFunction, 'run', lambda self, kernel: kernel)
    monkeypatch.setattr(instructions, 'disassemble', lambda cubin: (f'INSTRUCTION {cubin!r}', ))
    instructions._hash_of_cubin.cache_clear()
    before = JITFunction.run

    with collect_compiled() as compiled:
        for kernel in (builds['silu'], builds['quant'], builds['silu'], second, builds['tally'], None):
            assert JITFunction.run(None, kernel) is kernel
    JITFunction.run(None, SimpleNamespace(name='later', hash='x', asm={'cubin': b'5'}))
    instructions_of = {cubin: instruction_hash((f'INSTRUCTION {cubin!r}', )) for cubin in (b'1', b'2', b'4')}

    assert JITFunction.run is before
    assert compiled.instruction_hashes(without=frozenset({'tally'})) == {
        'quant': tuple(sorted((instructions_of[b'2'], instructions_of[b'4']))), 'silu': (instructions_of[b'1'], )}
    instructions._hash_of_cubin.cache_clear()
