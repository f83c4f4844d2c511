"""The candidate's fused kernel, compiled for sm_90 in every configuration of the catalogue, on any machine.

Compilation needs processes without TRITON_INTERPRET, which the cpu lane sets in this one.
"""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness.kernels.silu_and_mul_quant as candidate

ROOT = Path(candidate.__file__).parents[2]
# 65536 registers of an SM / (40 * 128 threads) = 12 programs of 4 warps, three quarters of the warps that an SM can
# hold; beyond that, too few loads are in flight to keep HBM busy.
MOST_REGISTERS = 40
WARP = 32

# Row- and column-major scales, and a format that differs in everything.
REBUILT_CASES = ('bf16-e4m3fn-none-row-shape_33x2', 'bf16-e4m3fn-none-col-shape_5x3', 'fp16-e5m2-ue8m0-row-shape_33x2')

COMMENT_AND_RENAME = (('    # Activate: silu', '    # Another comment.\n    # Activate: silu'),
                      ('gate_fp32', 'wide_gate'))
ONE_ROUNDING = (('silu = (gate_fp32 / (1 + tl.exp(-gate_fp32))).to(gate.dtype)',
                 'silu = gate_fp32 / (1 + tl.exp(-gate_fp32))'),
                ('activated = silu * up', 'activated = (silu * up.to(tl.float32)).to(gate.dtype)'))


def compile_modules(out: Path, modules: list[str], cases: tuple[str, ...] = ()) -> list[dict]:
    """One row per build, from one process that compiles."""
    command = [sys.executable, '-m', 'harness.machine_code', '--json', '--out', str(out)]
    command += [word for module in modules for word in ('--module', module)]
    command += [word for case in cases for word in ('--case', case)]
    environment = {name: value for name, value in os.environ.items() if name != 'TRITON_INTERPRET'}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f'{" ".join(command[:4])} ended with {done.returncode}:\n{done.stderr[-4000:]}'
    return json.loads(out.read_text())


def rewritten(path: Path, changes: tuple[tuple[str, str], ...]) -> str:
    """The candidate's file with `changes` made, written to `path`; every text that is replaced must be there."""
    source = Path(candidate.__file__).read_text()
    for old, new in changes:
        assert old in source, f'the kernel no longer contains {old!r}: adapt the change that this test makes'
        source = source.replace(old, new)
    path.write_text(source)
    return str(path)


def elements_per_thread(row: dict) -> int:
    return row['constants']['BLOCK_GROUPS'] * row['constants']['GROUP'] // (WARP * row['options']['num_warps'])


@pytest.mark.timeout(300)
def test_every_configuration_of_the_catalogue(tmp_path, record_property):
    rows = compile_modules(tmp_path / 'machine_code.json', [])

    for row in rows:
        assert row['spills'] == 0, f'{row["spills"]} bytes of registers spilt per thread: {row["name"]}'
        assert row['registers'] <= MOST_REGISTERS, f'{row["registers"]} registers per thread: {row["name"]}'
        elements = elements_per_thread(row)
        assert row['narrowings'] == elements, f'silu is rounded once per element: {row["name"]}'
        assert row['products'] == elements, f'the product is rounded once per element: {row["name"]}'
    record_property('machine_code', json.dumps([{key: row[key] for key in ('name', 'registers', 'spills', 'sha256')}
                                                for row in rows]))


@pytest.mark.timeout(300)
def test_hash_follows_instructions_and_nothing_else(tmp_path):
    copies = {'same': rewritten(tmp_path / 'same.py', ()),
              'commented': rewritten(tmp_path / 'commented.py', COMMENT_AND_RENAME),
              'one_rounding': rewritten(tmp_path / 'one_rounding.py', ONE_ROUNDING)}
    rows = compile_modules(tmp_path / 'copies.json', list(copies.values()), REBUILT_CASES)

    by_copy = {name: {case: row for row in rows if row['module'] == path for case in row['cases']}
               for name, path in copies.items()}
    for case in REBUILT_CASES:
        same, commented, dropped = (by_copy[name][case] for name in copies)
        assert commented['sha256'] == same['sha256'], f'a comment and a renamed local changed the hash: {case}'
        assert dropped['sha256'] != same['sha256'], f'a dropped rounding left the hash unchanged: {case}'
        assert dropped['products'] == 0, f'a dropped rounding is still counted: {case}'


@pytest.mark.timeout(300)
def test_two_compilations_give_one_hash(tmp_path):
    first, second = ({row['name']: row['sha256'] for row in compile_modules(tmp_path / name, [], REBUILT_CASES)}
                     for name in ('first.json', 'second.json'))
    assert first == second


def test_a_process_that_interprets_is_refused(tmp_path):
    done = subprocess.run([sys.executable, '-m', 'harness.machine_code', '--case', REBUILT_CASES[0]], cwd=ROOT,
                          env={**os.environ, 'TRITON_INTERPRET': '1'}, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'TRITON_INTERPRET' in done.stderr
