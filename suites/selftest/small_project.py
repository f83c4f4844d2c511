"""A small project with suites, manifests and a court of its own, on which the real plugin, runner and judge are tried.

Its kernels are a few lines of Python, so that a session takes a second and imports neither torch nor lmdeploy.
"""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ci.events import RunLog, read
from ci.judge import Verdict
from ci.manifest import render
from ci.preflight import Preflight
from ci.runner import RunRequest, run
from ci.settings import Settings, SubjectSpec
from harness.lanes.lane import Lane, LaneRequest

CHECKOUT = Path(__file__).resolve().parents[2]

CONFTEST = '''
import pytest
from harness.contracts.case import Case
from harness.lanes.lane import Lane, LaneRequest, WrongDevice

pytest_plugins = ('ci.plugin',)


class Provenance:
    def as_dict(self):
        return {'path': 'small', 'version': '1', 'sha256': '0' * 64}


class Subject:
    provenance = Provenance()

    def __init__(self, name, offered):
        self.name, self.offered = name, frozenset(offered)

    def offers(self):
        return self.offered


class Court:
    def operators(self):
        return ('alpha', 'beta')

    def choose(self, request):
        if request is LaneRequest.SM90:
            raise WrongDevice('expected an sm90 device, found none')
        return Lane.CPU

    def activate(self, lane):
        return 'the small device'

    def load(self, spec, lmdeploy_src):
        if spec.name == 'stock':
            return Subject('stock', ['alpha', 'beta'])
        if spec.name == 'candidate':
            return Subject('candidate', ['beta'])
        offered = spec.path.read_text().split()
        return Subject('module', offered)

    def catalogue(self, operator):
        both, sm90 = frozenset({'cpu', 'sm90'}), frozenset({'sm90'})
        return tuple(Case(operator, name, 'to be tried', build=lambda device: None, lanes=lanes)
                     for name, lanes in (('one', both), ('two', both), ('large', sm90)))


def pytest_bitgate_court(config):
    return Court()
'''

SUITE = '''
from harness.evidence.log import ContractBroken, Record
from harness.evidence.verdicts import Reason

OPERATOR = {operator!r}


def test_contract(subject, case, evidence):
    evidence.add(Record('bytes', 'itself with itself', compared=4))
{body}
'''

SELFTEST = 'def test_itself():\n    assert sum([1, 1]) == 2\n'


def case_id(file: str, subject: str, case: str) -> str:
    """The node id of a case of this project: `file` is 'alpha' or 'beta'."""
    return f'suites/{file}/test_{file}.py::test_contract[{subject}-{case}]'


STOCK_CASES = tuple(case_id(file, 'stock', case) for file in ('alpha', 'beta') for case in ('one', 'two'))
CANDIDATE_CASES = tuple(case_id('beta', 'candidate', case) for case in ('one', 'two'))


@dataclass(frozen=True)
class Session:
    """A pytest session that came to its end: exit status, what it printed, and its result log."""

    status: int
    output: str
    log: RunLog


@dataclass(frozen=True)
class SmallProject:
    """The project under `root`, where every case of both subjects passes until a test writes something else."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> SmallProject:
        project = cls(root)
        project.write('conftest.py', CONFTEST)
        project.write('pytest.ini', '[pytest]\ntestpaths = suites/alpha suites/beta\naddopts = --strict-markers\n')
        for operator in ('alpha', 'beta'):
            project.suite(operator)
        for subject, cases in (('stock', STOCK_CASES), ('candidate', CANDIDATE_CASES), ('module', module_cases())):
            project.write(f'ci/required/cpu-{subject}.txt', render(Lane.CPU, subject, cases))
        return project

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def suite(self, operator: str, body: str = '', **names: str) -> Path:
        """Write the suite of one operator, with further lines in its test (four spaces of indent are added)."""
        lines = '\n'.join(f'    {line}' for line in body.splitlines())
        text = SUITE.format(operator=operator, body=lines)
        for old, new in names.items():
            text = text.replace(old, new)
        return self.write(f'suites/{operator}/test_{operator}.py', text)

    def pytest(self, *arguments: str) -> Session:
        """Plain `pytest` in this project."""
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith('PYTEST_') and key != 'BITGATE_LANE'}
        environment['PYTHONPATH'] = str(CHECKOUT)
        out = self.root / 'session'
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', f'--bitgate-out={out}', *arguments]
        done = subprocess.run(command, cwd=self.root, env=environment, stdin=subprocess.DEVNULL, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False)
        return Session(done.returncode, done.stdout, read(out / 'results.jsonl'))

    def settings(self, asked: LaneRequest, specs: tuple[SubjectSpec, ...]) -> Settings:
        return Settings(asked, specs)

    def run(self, *subjects: str, told: list[str] | None = None, lane: Lane | None = Lane.CPU, **request) -> Verdict:
        """The real runner in this project, with a preflight that needs no torch; lines for people go to `told`."""
        specs = tuple(SubjectSpec.parse(subject) for subject in subjects or ('stock', 'candidate'))
        found = Preflight(lane, None if lane else 'expected an sm90 device, found none', {'python': '3'})
        asked = request.pop('asked', LaneRequest.CPU)
        usual = {'out': self.root / 'out', 'root': self.root, 'workers': 1}
        full = RunRequest(self.settings(asked, specs), **usual | request)
        return run(full, (told if told is not None else []).append, look=lambda lane: found)


def module_cases() -> tuple[str, ...]:
    return tuple(case_id(file, 'module', case) for file in ('alpha', 'beta') for case in ('one', 'two'))
