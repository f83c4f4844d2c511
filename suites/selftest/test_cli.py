"""The `bitgate` command as a process: exit codes, artifacts, and what is left when it is stopped from outside."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_project import CHECKOUT, SmallProject, case_id

from ci.events import Started, read
from ci.manifest import render
from harness.lanes.lane import Lane

ONE = case_id('alpha', 'stock', 'one')


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject.create(tmp_path)


def start(project: SmallProject, *arguments: str, **variables: str) -> subprocess.Popen:
    environment = {key: value for key, value in os.environ.items() if key not in ('BITGATE_LANE', 'TRITON_INTERPRET')}
    return subprocess.Popen([sys.executable, '-m', 'ci', *arguments, '--root', str(project.root)], cwd=CHECKOUT,
                            env=environment | variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def bitgate(project: SmallProject, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of one command."""
    process = start(project, *arguments, **variables)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def run_arguments(project: SmallProject) -> list[str]:
    return ['run', '--out', str(project.root / 'out'), '-n', '1']


def verdict_of(project: SmallProject) -> dict:
    return json.loads((project.root / 'out' / 'verdict.json').read_text())


def test_a_green_run_on_the_cpu_lane(project: SmallProject):
    code, output, _ = bitgate(project, *run_arguments(project), BITGATE_LANE='cpu')
    assert code == 0, output
    assert output.splitlines()[-1].startswith('PASS[cpu]: ')
    assert verdict_of(project)['environment']['lane'] == 'cpu'


def test_a_hidden_gpu_is_unjudged_not_cpu(project: SmallProject):
    project.write('ci/required/sm90-stock.txt', render(Lane.SM90, 'stock', [ONE]))
    code, output, _ = bitgate(project, *run_arguments(project), '--lane', 'sm90', '--subject', 'stock',
                              CUDA_VISIBLE_DEVICES='')
    assert code == 3
    assert output.splitlines()[-1] == 'UNJUDGED[sm90]: WRONG_DEVICE 2 (1 case, stock)'
    content = verdict_of(project)
    assert (content['outcome'], content['lane'], content['environment']['lane']) == ('UNJUDGED', 'sm90', None)
    assert [case['reason'] for case in content['cases']] == ['WRONG_DEVICE']


@pytest.mark.parametrize('arguments', [
    ('run', '--lane', 'gpu'), ('run', '--subject', 'nobody'), ('run', '-n', 'many'), ('run', '--suites', 'nowhere'),
    ('run', '--deadline', '0'), ('plan', '--check', '--write'), ('judge',),
])
def test_usage_errors(project: SmallProject, arguments: tuple[str, ...]):
    code, _, errors = bitgate(project, *arguments)
    assert code == 2
    assert errors.strip()
    assert not (project.root / 'out').exists()


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_a_runner_that_is_stopped_leaves_a_verdict_and_no_process(project: SmallProject, number: signal.Signals):
    project.suite('alpha', 'import time\ntime.sleep(60)')
    process = start(project, *run_arguments(project), '--lane', 'cpu')
    begun = _first_started(project)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == (3 if number == signal.SIGTERM else -number)
    content = verdict_of(project)
    assert content['outcome'] == 'UNJUDGED'
    assert 'INFRA' in content['reasons']
    assert (project.root / 'out' / 'junit.xml').exists()
    assert _ends_within(begun.pid, seconds=10)


def test_doctor_on_this_machine(project: SmallProject, lane: Lane):
    code, output, _ = bitgate(project, 'doctor', '--json', '--lane', lane.value, '--subject', 'stock',
                              '--subject', 'module:no_such_module.py')
    report = json.loads(output)
    assert (code, report['lane'], report['obstacle']) == (3, lane.value, None)
    stock, module = report['subjects']
    assert stock['operators']['silu_and_mul']['runs']
    assert not stock['operators']['silu_and_mul_quant']['runs']
    assert 'no_such_module.py' in module['refused']
    assert not any(operator['runs'] for operator in module['operators'].values())


def test_doctor_without_a_lane(project: SmallProject):
    code, output, _ = bitgate(project, 'doctor', '--lane', 'sm90', CUDA_VISIBLE_DEVICES='')
    assert code == 3
    assert 'lane: none (asked for: sm90)' in output
    assert 'subjects: not looked at' in output


def _first_started(project: SmallProject) -> Started:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        started = read(project.root / 'out' / 'results.jsonl').of(Started)
        if started:
            return started[0]
        time.sleep(0.05)
    raise AssertionError('no test began within 120 s')


def _ends_within(pid: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
        except FileNotFoundError:
            return True
        if state == 'Z':
            return True
        time.sleep(0.05)
    return False
