"""`--upstream`: upstream's own tests in one verdict with ours. The real runner on a made-up lmdeploy and checkout."""
from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_project import CONFTEST, SmallProject, case_id
from typer.testing import CliRunner

from ci.cli import app
from ci.events import Finished, read
from ci.judge import Verdict
from ci.manifest import ManifestInvalid, load_upstream, render, render_upstream
from ci.settings import Settings, UsageFault, settings_from
from ci.upstream import FILES, expand, stable_id
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane, LaneRequest

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = '''        if request is LaneRequest.SM90:
            raise WrongDevice('expected an sm90 device, found none')
        return Lane.CPU
'''
ON_EITHER = '        return Lane.SM90 if request is LaneRequest.SM90 else Lane.CPU\n'
LOAD_STOCK = "            return Subject('stock', ['alpha', 'beta'])\n"
LOAD_INSTALLED = '''            import pathlib, sys
            sys.path.insert(0, str(pathlib.Path(__file__).parent / 'installed'))
            import lmdeploy
            stock = Subject('stock', ['alpha', 'beta'])
            facts = {'path': str(pathlib.Path(lmdeploy.__file__).parent), 'version': '0.18.0', 'sha256': '0' * 64}
            stock.provenance = Provenance()
            stock.provenance.as_dict = lambda: facts
            stock.require_pristine = lambda: None
            return stock
'''
TESTS = '''
import pytest
import lmdeploy
from .helper import expected

@pytest.mark.kernels
@pytest.mark.parametrize('n', [1, 2])
def test_kernel(n, upstreams_own):
    import random
    print(random.random())
    assert lmdeploy.double(n) == expected(n)

class TestClass:
    def test_inside(self, subject, case):
        assert lmdeploy.double(subject) == case

@pytest.fixture
def subject():
    return 3

@pytest.fixture
def case():
    return 6
'''
FILE = f'upstream/{FILES[0]}'
ONE, TWO, INSIDE = f'{FILE}::test_kernel[1]', f'{FILE}::test_kernel[2]', f'{FILE}::TestClass::test_inside'


@dataclass(frozen=True)
class Place:
    """A small project on a device that serves both lanes, and a checkout beside it."""

    project: SmallProject
    checkout: Path

    def tests(self, old: str = '', new: str = '') -> None:
        """Write the checkout's tests, with `old` replaced by `new`."""
        assert old in TESTS
        (self.checkout / FILES[0]).write_text(TESTS.replace(old, new) if old else TESTS)

    def run(self, *suites: str, told: list[str] | None = None, workers: int = 1) -> Verdict:
        project = SmallProjectWithUpstream(self.project.root, self.checkout)
        return project.run('stock', told=told, lane=Lane.SM90, asked=LaneRequest.SM90, workers=workers, suites=suites)

    def finished(self) -> dict[str, Finished]:
        log = read(self.project.root / 'out/results.jsonl')
        return {event.nodeid: event for event in log.of(Finished)}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    project = SmallProject.create(tmp_path / 'bitgate')
    project.write('conftest.py', CONFTEST.replace(ON_CPU, ON_EITHER).replace(LOAD_STOCK, LOAD_INSTALLED))
    cases = [case_id(file, 'stock', case) for file in ('alpha', 'beta') for case in ('one', 'two', 'large')]
    project.write('ci/required/sm90-stock.txt', render(Lane.SM90, 'stock', cases))
    project.write('ci/required/upstream-0.18.0.txt', render_upstream([ONE, TWO, INSIDE]))
    project.write('installed/lmdeploy/__init__.py', 'def double(n):\n    return 2 * n\n')
    checkout = SmallProject(tmp_path / 'checkout')
    for name in ('tests/pytorch/kernel/__init__.py', 'tests/pytorch/kernel/test_unrelated.py'):
        checkout.write(name, '')
    checkout.write('lmdeploy/__init__.py', 'def double(n):\n    return 3 * n\n')
    checkout.write('tests/pytorch/kernel/helper.py', 'def expected(n):\n    return n + n\n')
    checkout.write('tests/pytorch/kernel/conftest.py',
                   'import pytest\n\n@pytest.fixture\ndef upstreams_own():\n    pass\n')
    there = Place(project, checkout.root)
    there.tests()
    return there


class SmallProjectWithUpstream(SmallProject):
    """Asks for the checkout too."""

    def __init__(self, root: Path, checkout: Path) -> None:
        super().__init__(root)
        object.__setattr__(self, 'checkout', checkout)

    def settings(self, asked, specs) -> Settings:
        return Settings(asked, specs, upstream=self.checkout)


def by_reason(verdict: Verdict, reason: Reason) -> set[str]:
    return {row.nodeid for row in verdict.rows if row.reason is reason}


def test_one_run_one_log_one_verdict(place: Place):
    told: list[str] = []
    verdict = place.run(told=told, workers=2)
    assert (verdict.outcome, verdict.problems, verdict.partial) == (Outcome.PASS, (), None), told
    assert told[-1] == 'PASS[sm90]: judged on this GPU (9 cases, stock and upstream)'
    assert {row.nodeid for row in verdict.rows if row.subject == 'upstream'} == {ONE, TWO, INSIDE}
    plan = json.loads((place.project.root / 'out/plan.json').read_text())
    assert (set(plan['required']) >= {ONE, TWO, INSIDE}, plan['upstream']) == (True, str(place.checkout))
    assert verdict.environment['upstream_tests'] == str(place.checkout)


def test_a_pass_says_which_lmdeploy_was_tried_by_which_file(place: Place):
    place.run('upstream')
    record, = place.finished()[ONE].evidence
    assert (record['kind'], record['compared']) == ('upstream', 1)
    assert record['detail']['lmdeploy'] == str(place.project.root / 'installed/lmdeploy')
    assert record['detail']['test_file'] == str(place.checkout / FILES[0])


def test_upstream_alone_is_partial_and_a_named_suite_does_not_leave_it_out(place: Place):
    alone, beside = place.run('upstream'), place.run('beta')
    assert (alone.outcome, alone.partial, len(alone.rows)) == (Outcome.PASS, 'suites upstream only', 3)
    assert (beside.outcome, beside.partial, len(beside.rows)) == (Outcome.PASS, 'suites beta, upstream only', 6)


def test_a_failure_is_broken_and_comes_with_its_command(place: Place):
    place.tests('def test_kernel(n, upstreams_own):', 'def test_kernel(n, upstreams_own):\n    assert n == 1')
    told: list[str] = []
    verdict = place.run('upstream', told=told)
    assert (verdict.outcome, by_reason(verdict, Reason.CRASH)) == (Outcome.BROKEN, {TWO})
    assert f"--upstream={place.checkout} '{TWO}'" in '\n'.join(told)
    again = place.project.pytest('--lane', 'sm90', f'--upstream={place.checkout}', TWO)
    assert (again.status, [event.nodeid for event in again.log.of(Finished)]) == (1, [TWO])


@pytest.mark.parametrize('skip', ["@pytest.mark.skipif(True, reason='needs cc >= 9.0')\n@pytest.mark.kernels",
                                  "@pytest.mark.xfail(reason='needs cc >= 9.0')\n@pytest.mark.kernels"])
def test_a_skip_for_want_of_capability_is_red(place: Place, skip: str):
    place.tests('@pytest.mark.kernels', skip)
    verdict = place.run('upstream')
    reason, outcome = (Reason.SKIPPED, Outcome.UNJUDGED) if 'skipif' in skip else (Reason.CRASH, Outcome.BROKEN)
    assert (verdict.outcome, by_reason(verdict, reason)) == (outcome, {ONE, TWO})


def test_a_test_that_vanished_is_missing(place: Place):
    place.tests('[1, 2]', '[1]')
    verdict = place.run()
    assert (verdict.outcome, by_reason(verdict, Reason.MISSING)) == (Outcome.UNJUDGED, {TWO})


def test_a_test_that_nobody_knows_is_judged_all_the_same(place: Place):
    place.tests('[1, 2]', '[1, 2, 3]')
    (place.project.root / 'installed/lmdeploy/__init__.py').write_text('def double(n):\n    return n + min(n, 2)\n')
    (place.checkout / FILES[1]).write_text('def test_more():\n    assert True\n')
    verdict = place.run('upstream')
    outcomes = {row.nodeid: row.outcome for row in verdict.rows}
    assert outcomes[f'{FILE}::test_kernel[3]'] is Outcome.BROKEN
    assert outcomes[f'upstream/{FILES[1]}::test_more'] is Outcome.PASS


@pytest.mark.parametrize('line', ['import no_such_module', "pytest.importorskip('no_such_module')"])
def test_a_file_that_does_not_import_is_red_by_name(place: Place, line: str):
    place.tests('import lmdeploy', line)
    verdict = place.run('upstream')
    assert verdict.outcome is Outcome.UNJUDGED
    assert by_reason(verdict, Reason.MISSING) == {ONE, TWO, INSIDE}
    assert all('no_such_module' in row.message for row in verdict.rows)


def test_a_file_that_vanished_is_missing_too(place: Place):
    (place.checkout / FILES[0]).rename(place.checkout / FILES[1])
    verdict = place.run('upstream')
    assert by_reason(verdict, Reason.MISSING) == {ONE, TWO, INSIDE}


def test_a_test_that_takes_its_process_down_is_a_crash(place: Place):
    place.tests('    import random', '    import os; n == 2 and os.abort()\n    import random')
    verdict = place.run('upstream')
    assert (verdict.outcome, by_reason(verdict, Reason.CRASH)) == (Outcome.BROKEN, {TWO})


@pytest.mark.parametrize('where', ['import pytest', 'def test_kernel(n, upstreams_own):'])
def test_the_checkouts_own_package_is_never_judged_silently(place: Place, where: str):
    """At import, and in the middle of a test: the checkout's lmdeploy takes the place of the one on trial."""
    indent = '    ' if where.startswith('def') else ''
    lines = (f'import sys; sys.path.insert(0, {str(place.checkout)!r}); sys.modules.pop("lmdeploy")', 'import lmdeploy',
             'lmdeploy.double = lambda n: 2 * n')
    place.tests(where, where + ''.join(f'\n{indent}{line}' for line in lines))
    verdict = place.run('upstream')
    assert verdict.outcome is Outcome.UNJUDGED
    rows = [row for row in verdict.rows if row.reason is Reason.INFRA]
    assert rows, verdict.rows
    assert str(place.checkout / 'lmdeploy') in rows[0].message


def test_random_inputs_begin_from_the_tests_own_name(place: Place):
    place.tests('    print(random.random())', f'    open({str(place.project.root)!r} + f"/{{n}}", "a").write('
                'f"{random.random()} ")')
    place.run('upstream')
    place.run('upstream', workers=2)
    first, second = ((place.project.root / str(n)).read_text().split() for n in (1, 2))
    assert (len(first), len(set(first)), len(set(second)), len({*first, *second})) == (2, 1, 1, 2)


def test_plain_pytest_runs_them_with_the_suites_and_by_name(place: Place):
    ours = ('--lane', 'sm90', '--subject', 'stock', f'--upstream={place.checkout}')
    whole, named = place.project.pytest(*ours, '-n', '1'), place.project.pytest(*ours, FILE)
    assert (whole.status, '(9 cases, stock and upstream)' in whole.output) == (0, True), whole.output
    assert (named.status, '(3 cases, upstream; partial' in named.output) == (0, True), named.output


def test_the_cpu_lane_refuses_them(place: Place):
    project = SmallProjectWithUpstream(place.project.root, place.checkout)
    with pytest.raises(UsageFault, match='--upstream: expected lane sm90, found lane cpu'):
        project.run('stock')
    assert not (project.root / 'out').exists()
    assert place.project.pytest('--lane', 'cpu', f'--upstream={place.checkout}').status == 4


@pytest.mark.parametrize(('folder', 'told'), [
    ('absent', 'found no such folder'), ('empty', 'found an empty folder'),
    ('other', 'tests like tests/pytorch/kernel/test_activation.py.*setup.py')])
def test_what_is_no_checkout_is_a_usage_error(tmp_path: Path, folder: str, told: str):
    (tmp_path / 'empty').mkdir()
    SmallProject(tmp_path / 'other').write('setup.py', '')
    with pytest.raises(UsageFault, match=f'^--upstream: expected a checkout of lmdeploy.*{told}'):
        settings_from(None, None, None, {}, str(tmp_path / folder))


def test_an_absent_manifest_is_red(place: Place):
    (place.project.root / 'ci/required/upstream-0.18.0.txt').unlink()
    verdict = place.run('upstream')
    assert verdict.outcome is Outcome.UNJUDGED
    assert any('bitgate plan --upstream CHECKOUT --write' in problem.message for problem in verdict.problems)


def test_the_reviewed_manifest_holds_the_known_tests():
    known = load_upstream(ROOT)
    assert len(known) == 140
    assert {nodeid.split('::')[0] for nodeid in known} == {f'upstream/{name}' for name in FILES}
    check_list = ('/test_activation.py', '/test_fused_moe.py')
    assert sum(nodeid.split('::')[0].endswith(check_list) for nodeid in known) == 97


def test_the_manifest_is_written_from_a_checkout_without_a_gpu(place: Place):
    path = place.project.root / 'ci/required/upstream-0.18.0.txt'
    reviewed = path.read_text()
    place.tests('[1, 2]', '[1]')
    plan = ['plan', '--root', str(place.project.root), '--upstream', str(place.checkout)]
    assert CliRunner().invoke(app, [*plan, '--write']).exit_code == 0
    assert load_upstream(place.project.root) == (INSIDE, ONE)
    place.tests()
    shown = CliRunner().invoke(app, [*plan, '--check'])
    assert (shown.exit_code, f'+{TWO}' in shown.output) == (1, True)
    assert CliRunner().invoke(app, [*plan, '--write']).exit_code == 0
    assert path.read_text() == reviewed


def test_a_manifest_of_another_kind_is_refused(place: Place):
    place.project.write('ci/required/upstream-0.18.0.txt', render(Lane.CPU, 'stock', [ONE]))
    with pytest.raises(ManifestInvalid, match='expected the first line'):
        load_upstream(place.project.root)


def test_names_in_a_checkout_and_places_of_names(tmp_path: Path):
    (tmp_path / FILES[0]).parent.mkdir(parents=True)
    (tmp_path / FILES[0]).touch()
    assert stable_id(tmp_path / FILES[0], tmp_path) == FILE
    assert stable_id(tmp_path.parent / 'test_other.py', tmp_path) is None
    assert expand(['suites/quant', 'upstream', ONE], tmp_path) == [
        'suites/quant', str(tmp_path / FILES[0]), f'{tmp_path / FILES[0]}::test_kernel[1]']
