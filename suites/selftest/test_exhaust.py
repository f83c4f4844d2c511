"""`bitgate exhaust` finds one step in one pair's activation, names the pair, and passes the file without the fault."""
from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import harness.kernels.silu_and_mul_quant as candidate
from ci.exhaust import exhaust

GATE, UP = 0x3FC0, 0x3F80  # bf16 1.5 and 1.0
FAULT = f'''    activated = silu * up
    planted = (gate.to(tl.int16, bitcast=True) == {GATE}) & (up.to(tl.int16, bitcast=True) == {UP})
    one_more = (activated.to(tl.int16, bitcast=True) + 1).to(gate.dtype, bitcast=True)
    activated = tl.where(planted, one_more, activated)
'''
ONE_FORMAT = ('--dtype', 'bf16', '--codes', 'e4m3fn', '--scale-fmt', 'none')


@pytest.fixture
def command(lane, tmp_path):
    """Runs the command on the session's lane: (options) -> (exit code, text, result)."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(exhaust)

    def run(*options: str, lane_option: str = lane.value):
        out = tmp_path / 'exhaust.json'
        done = CliRunner().invoke(app, ['--lane', lane_option, '--json', str(out), *options], catch_exceptions=False)
        return done.exit_code, done.output, json.loads(out.read_text()) if out.exists() else None

    return run


def write_module(path: Path, planted: bool) -> str:
    """The candidate's file under another name, with or without the fault; as a subject."""
    source = Path(candidate.__file__).read_text()
    line = '    activated = silu * up\n'
    assert source.count(line) == 1, f'the kernel no longer contains {line!r} once: adapt the planted fault'
    path.write_text(source.replace(line, FAULT) if planted else source)
    return f'module:{path}'


def test_one_step_in_one_pair_is_found_and_named(command, tmp_path):
    subject = write_module(tmp_path / 'planted.py', planted=True)
    code, text, result = command('--subject', subject, '--part', 'b', *ONE_FORMAT, '--gates', f'{GATE - 1}:{GATE + 1}',
                                 '--sample', '128')

    assert code == 1
    assert (result['outcome'], result['reasons']) == ('BROKEN', {'BYTES': 1})
    part, = result['parts']
    assert part['differing_groups'] == 1
    named = part['mismatch']
    assert (named['gate'], named['up']) == (GATE, UP)
    assert named['explained_by'] == [named['activated'] + 1]
    assert named['scales'][0] != named['scales'][1]
    assert re.search(rf'gate 0x{GATE:04x} \(1\.5\), up 0x{UP:04x} \(1\.0\)', text)
    assert '1 step(s) away' in text

    command_line = re.search(r'reproduce: bitgate exhaust (.*)', text)[1]
    options = shlex.split(command_line)
    assert options[:2] == ['--lane', result['lane']]
    code, text, again = command(*options[2:])
    assert code == 1
    assert [(part['visited'], part['mismatch']['up']) for part in again['parts']] == [(1, UP)]


def test_the_same_file_without_the_fault_passes(command, tmp_path, lane):
    subject = write_module(tmp_path / 'unchanged.py', planted=False)
    code, text, result = command('--subject', subject, '--part', 'b', *ONE_FORMAT, '--gates', f'{GATE - 1}:{GATE + 1}',
                                 '--sample', '128')

    assert code == 0, text
    assert (result['outcome'], result['scope'], result['lane']) == ('PASS', 'sampled', lane.value)
    part, = result['parts']
    assert (part['visited'], part['differing_groups'], part['exhaustive']) == (256, 0, False)


def test_every_sampled_part_passes_for_the_candidate(command):
    code, text, result = command('--part', 'b', '--part', 'floor', '--part', 'c', '--part', 'packed', '--dtype', 'fp16',
                                 '--codes', 'e5m2', '--scale-fmt', 'ue8m0', '--sample', '128')

    assert code == 0, text
    assert [part['part'] for part in result['parts']] == ['b', 'floor', 'c', 'packed']
    assert all(part['visited'] < part['possible'] for part in result['parts'])
    assert 'sampled' in text.splitlines()[-1]


@pytest.mark.parametrize(('options', 'named'), [
    (('--gates', '0x10'), '--gates'),
    (('--gates', '5:5'), '--gates'),
    (('--gates', '0:65537'), '--gates'),
    (('--pair', '0x10000:1'), '--pair'),
    (('--pair', '1:2', '--part', 'a'), '--pair'),
    (('--json', '/no/such/folder/x.json'), '--json'),
    (('--subject', 'stock'), '--subject'),
    (('--subject', 'nobody'), '--subject'),
    (('--part', 'z'), '--part'),
    (('--sample', '1'), '--sample'),
])
def test_bad_options_are_usage_errors_that_name_the_option(command, options, named):
    code, text, result = command(*options)
    assert code == 2
    assert named in text
    assert result is None


@pytest.mark.parametrize(('text', 'code', 'reason'), [
    ('import sys\nsys.exit(0)\n', 3, 'MISSING'),
    ('import sys\ndef silu_and_mul_quant(*a, **k):\n    sys.exit(0)\n', 1, 'CRASH'),
    ('def silu_and_mul_quant(*a, **k):\n    raise RuntimeError("boom")\n', 1, 'CRASH'),
], ids=['exit-at-import', 'exit-in-the-call', 'raise-in-the-call'])
def test_a_subject_that_ends_the_process_or_raises_is_never_green(command, tmp_path, text, code, reason):
    path = tmp_path / 'subject.py'
    path.write_text(text)
    found, text, result = command('--subject', f'module:{path}', '--part', 'c', *ONE_FORMAT, '--sample', '128')
    assert found == code, text
    assert result['reasons'] == {reason: 1}
    assert text.splitlines()[-1].startswith(('UNJUDGED', 'BROKEN'))


def test_a_module_without_the_operator_is_unjudged(command, tmp_path):
    path = tmp_path / 'other.py'
    path.write_text('def silu_and_mul(gate_up, out=None):\n    return gate_up\n')
    code, text, result = command('--subject', f'module:{path}', '--part', 'b', *ONE_FORMAT)
    assert code == 3
    assert result['reasons'] == {'NOTHING_SELECTED': 1}
    assert 'does not offer silu_and_mul_quant' in text


@pytest.mark.lane('cpu')
def test_a_hidden_gpu_is_unjudged(command):
    code, text, result = command('--part', 'b', *ONE_FORMAT, lane_option='sm90')
    assert code == 3
    assert result['reasons'] == {'WRONG_DEVICE': 1}
    assert text.startswith('UNJUDGED[sm90]: WRONG_DEVICE')
