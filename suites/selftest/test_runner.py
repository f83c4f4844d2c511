"""The real runner with real pytest and workers, on a small project: red means red, and artifacts are always there."""
from __future__ import annotations

import json
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml
from small_project import CANDIDATE_CASES, STOCK_CASES, SmallProject, case_id

from ci.judge import Verdict
from ci.manifest import render
from ci.outdir import claimed
from ci.settings import UsageFault
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane, LaneRequest

ONE, TWO = case_id('alpha', 'stock', 'one'), case_id('alpha', 'stock', 'two')
KILL = 'import os, signal\nif case.id == "one":\n    os.kill({}, signal.SIGKILL)\n'
RERUN = '''
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    if item.name == 'test_contract[stock-one]':
        runtestprotocol(item, nextitem=nextitem, log=False)
'''


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject.create(tmp_path)


def by_reason(verdict: Verdict, reason: Reason) -> set[str]:
    return {row.nodeid for row in verdict.rows if row.reason is reason}


def written(project: SmallProject) -> dict:
    return json.loads((project.root / 'out' / 'verdict.json').read_text())


def assert_artifacts(project: SmallProject, verdict: Verdict) -> None:
    """Every artifact is there, and says what the verdict says."""
    out = project.root / 'out'
    content = written(project)
    assert (content['outcome'], content['lane']) == (verdict.outcome.value, verdict.lane)
    assert content['counts']['cases'] == len(verdict.rows)
    assert {'reasons', 'environment', 'subjects', 'not_offered'} <= set(content)
    assert verdict.outcome.value in (out / 'summary.md').read_text().splitlines()[0]
    assert (out / 'plan.json').exists()
    cases = [case for suite in JUnitXml.fromfile(str(out / 'junit.xml')) for case in suite]
    planned = [case for case in cases if case.classname != 'bitgate.session']
    assert len(planned) == len(verdict.rows)
    assert bool(cases) or verdict.outcome is Outcome.PASS
    expected = {Outcome.PASS: None, Outcome.UNJUDGED: Error, Outcome.BROKEN: Failure, Outcome.MOVED: Failure}
    for case, row in zip(planned, verdict.rows, strict=True):
        assert [type(result) for result in case.result] == ([expected[row.outcome]] if expected[row.outcome] else [])


def test_a_green_run(project: SmallProject):
    told: list[str] = []
    verdict = project.run(told=told, workers=2)
    assert (verdict.outcome, verdict.exit_code, verdict.problems) == (Outcome.PASS, 0, ())
    assert {row.nodeid for row in verdict.rows} == {*STOCK_CASES, *CANDIDATE_CASES}
    assert verdict.not_offered == (('candidate', 'alpha'),)
    assert told[-1] == ('PASS[cpu]: source semantics judged, nothing proven on sm90 '
                        '(6 cases, stock and candidate)')
    assert_artifacts(project, verdict)
    assert [subject['name'] for subject in written(project)['subjects']] == ['stock', 'candidate']


def test_a_renamed_required_test(project: SmallProject):
    project.suite('alpha', test_contract='test_agreement')
    verdict = project.run()
    assert verdict.outcome is Outcome.UNJUDGED
    assert by_reason(verdict, Reason.MISSING) == {ONE, TWO}
    assert_artifacts(project, verdict)


def test_one_required_test_skipped(project: SmallProject):
    project.suite('alpha', 'import pytest\nif case.id == "one":\n    pytest.skip("no GPU")')
    verdict = project.run()
    assert (verdict.outcome, verdict.exit_code) == (Outcome.UNJUDGED, 3)
    assert by_reason(verdict, Reason.SKIPPED) == {ONE}
    assert_artifacts(project, verdict)


def test_everything_skipped(project: SmallProject):
    for operator in ('alpha', 'beta'):
        project.suite(operator, 'import pytest\npytest.skip("no GPU")')
    verdict = project.run()
    assert verdict.outcome is Outcome.UNJUDGED
    assert by_reason(verdict, Reason.SKIPPED) == {*STOCK_CASES, *CANDIDATE_CASES}


def test_an_empty_selection(project: SmallProject):
    project.write('suites/gamma/readme.txt', 'no test here')
    verdict = project.run(suites=('gamma',))
    assert verdict.outcome is Outcome.UNJUDGED
    assert Reason.NOTHING_SELECTED in verdict.reasons
    assert_artifacts(project, verdict)


def test_a_worker_killed_in_the_middle(project: SmallProject):
    project.suite('alpha', KILL.format('os.getpid()'))
    verdict = project.run(workers=2)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.BROKEN, 1)
    assert by_reason(verdict, Reason.CRASH) == {ONE}
    assert sum(row.outcome is Outcome.PASS for row in verdict.rows) == 5
    assert_artifacts(project, verdict)


def test_a_worker_that_dies_after_its_last_test(project: SmallProject):
    project.suite('alpha', 'import atexit, os\natexit.register(os.abort)')
    verdict = project.run()
    assert verdict.outcome is Outcome.BROKEN
    assert verdict.counts['PASS'] == 6
    assert any('gw0 ended with exit code -6' in problem.message for problem in verdict.problems)


def test_the_controller_killed(project: SmallProject):
    project.suite('alpha', KILL.format('os.getppid()') + '    import time\n    time.sleep(20)\n')
    verdict = project.run()
    assert verdict.outcome is Outcome.UNJUDGED
    assert ONE in by_reason(verdict, Reason.INFRA)
    assert any('SIGKILL' in problem.message for problem in verdict.problems)
    assert_artifacts(project, verdict)


def test_the_wrong_device(project: SmallProject):
    project.write('ci/required/sm90-stock.txt', render(Lane.SM90, 'stock', [ONE]))
    verdict = project.run('stock', lane=None, asked=LaneRequest.SM90)
    assert (verdict.outcome, verdict.lane, verdict.exit_code) == (Outcome.UNJUDGED, 'sm90', 3)
    assert by_reason(verdict, Reason.WRONG_DEVICE) == {ONE}
    assert_artifacts(project, verdict)


def test_no_lane_at_all(project: SmallProject):
    verdict = project.run(lane=None, asked=LaneRequest.AUTO)
    assert (verdict.outcome, verdict.lane, list(verdict.reasons)) == (Outcome.UNJUDGED, 'auto', [Reason.WRONG_DEVICE])
    assert_artifacts(project, verdict)


def test_a_test_without_evidence(project: SmallProject):
    project.suite('beta', 'evidence.records.clear()')
    verdict = project.run()
    assert verdict.outcome is Outcome.UNJUDGED
    assert by_reason(verdict, Reason.NO_EVIDENCE) == {row.nodeid for row in verdict.rows if '/beta/' in row.nodeid}


def test_an_import_error_in_one_file(project: SmallProject):
    project.suite('alpha', OPERATOR='import no_such_module\nOPERATOR')
    verdict = project.run(workers=2)
    assert verdict.outcome is Outcome.UNJUDGED
    assert by_reason(verdict, Reason.MISSING) == {ONE, TWO}
    assert Reason.INFRA in verdict.reasons
    assert_artifacts(project, verdict)


def test_a_broken_contract_is_explained(project: SmallProject):
    project.suite('alpha', 'if case.id == "two":\n    raise ContractBroken(Reason.BYTES, "first differing element 7")')
    told: list[str] = []
    verdict = project.run(told=told)
    assert (verdict.outcome, verdict.exit_code) == (Outcome.BROKEN, 1)
    text = '\n'.join(told)
    assert 'first differing element 7' in text
    assert f"python -m pytest --lane cpu '{TWO}'" in text
    assert told[-1] == 'BROKEN[cpu]: BYTES 1 (6 cases, stock and candidate)'
    assert_artifacts(project, verdict)


def test_a_test_that_hangs(project: SmallProject):
    project.suite('alpha', 'import time\nif case.id == "one":\n    time.sleep(60)')
    verdict = project.run(test_limit_s=1.0)
    assert verdict.outcome is Outcome.BROKEN
    assert by_reason(verdict, Reason.HANG) == {ONE}


def test_a_deadline_ends_the_session(project: SmallProject):
    project.suite('alpha', 'import time\ntime.sleep(60)')
    verdict = project.run(deadline_s=3.0)
    assert verdict.outcome is Outcome.UNJUDGED
    assert any('deadline' in problem.message for problem in verdict.problems)
    assert_artifacts(project, verdict)


def test_a_test_that_passes_only_the_second_time(project: SmallProject):
    conftest = project.root / 'conftest.py'
    conftest.write_text(conftest.read_text() + RERUN)
    seen = 'import pathlib\nseen = pathlib.Path(__file__).with_name(case.id)\nfirst = not seen.exists()\nseen.touch()\n'
    project.suite('alpha', seen + 'assert not first or case.id == "two"')
    verdict = project.run()
    assert verdict.outcome is Outcome.BROKEN
    assert by_reason(verdict, Reason.NONDETERMINISTIC) == {ONE}


def test_a_filtered_run_says_that_it_is_partial(project: SmallProject):
    verdict = project.run(suites=('beta',))
    assert verdict.outcome is Outcome.PASS
    assert verdict.partial == 'suites beta only'
    assert written(project)['partial'] == 'suites beta only'


def test_a_module_is_judged_on_what_it_offers(project: SmallProject):
    module = project.write('mine.txt', 'beta')
    verdict = project.run(f'module:{module}')
    assert verdict.outcome is Outcome.PASS
    assert {row.nodeid for row in verdict.rows} == {case_id('beta', 'module', case) for case in ('one', 'two')}
    assert verdict.not_offered == (('module', 'alpha'),)


def test_a_module_that_offers_nothing_is_unjudged(project: SmallProject):
    verdict = project.run(f'module:{project.write("mine.txt", "")}')
    assert verdict.outcome is Outcome.UNJUDGED


def test_an_earlier_run_never_speaks_for_this_one(project: SmallProject):
    assert project.run().outcome is Outcome.PASS
    keep = project.write('out/keep.txt', 'mine')
    project.suite('alpha', test_contract='test_agreement')
    assert project.run().outcome is Outcome.UNJUDGED
    assert keep.exists()


def test_a_folder_of_other_files_is_left_alone(project: SmallProject):
    plan = project.write('out/plan.json', '{"tool": "another"}')
    with pytest.raises(UsageFault, match='--out: expected an empty folder'):
        project.run()
    assert plan.read_text() == '{"tool": "another"}'


def test_a_folder_that_cannot_be_made_is_a_usage_error():
    with pytest.raises(UsageFault, match='--out: expected a folder that can be made'), claimed(Path('/dev/null/out')):
        pass


def test_two_runs_never_share_a_folder(project: SmallProject):
    with claimed(project.root / 'out'), pytest.raises(UsageFault, match='no other run is using'):
        project.run()


@pytest.mark.parametrize(('request_', 'told'), [
    ({'suites': ('delta',)}, '--suites: expected one of alpha, beta'),
    ({'workers': 0}, '-n: expected at least 1 worker'),
])
def test_requests_of_no_sense(project: SmallProject, request_, told: str):
    with pytest.raises(UsageFault, match=told):
        project.run(**request_)
    assert not (project.root / 'out').exists()


def test_options_from_outside_do_not_narrow_the_session(project: SmallProject, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv('PYTEST_ADDOPTS', '-k one')
    verdict = project.run()
    assert verdict.outcome is Outcome.PASS
    assert len(verdict.rows) == 6


def test_a_worker_that_dies_before_its_first_test_and_is_replaced(project: SmallProject):
    dying = 'import os\nif os.environ.get("PYTEST_XDIST_WORKER") == "gw0": os.abort()\nOPERATOR'
    project.suite('alpha', OPERATOR=dying)
    verdict = project.run(workers=2)
    assert verdict.outcome is not Outcome.PASS
    assert any('gw0' in problem.message for problem in verdict.problems)


@pytest.mark.parametrize('suite', ['.', '..', '', 'selftest'])
def test_a_suite_that_owes_nothing_is_a_usage_error(project: SmallProject, suite: str):
    (project.root / 'suites/selftest').mkdir(exist_ok=True)
    with pytest.raises(UsageFault, match='--suites: expected one of alpha, beta'):
        project.run(suites=(suite,))
