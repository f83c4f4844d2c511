"""Plain `pytest` in a small project: it fails closed, with the same judge."""
from __future__ import annotations

from pathlib import Path

import pytest
from small_project import CANDIDATE_CASES, SELFTEST, STOCK_CASES, SmallProject, case_id

from ci import plugin
from ci.events import Collected, Finished, Started
from ci.processes import usable_cores
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane

ONE = case_id('alpha', 'stock', 'one')


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject.create(tmp_path)


def reasons(session) -> set[Reason | None]:
    return {event.reason for event in session.log.of(Finished)}


def test_all_green_serial(project: SmallProject):
    session = project.pytest()
    assert session.status == 0
    assert 'PASS[cpu]: source semantics judged, nothing proven on sm90 (6 cases, stock and candidate)' in session.output
    assert {event.nodeid for event in session.log.of(Finished)} == {*STOCK_CASES, *CANDIDATE_CASES}
    assert session.output.strip().splitlines()[-1].startswith('==')


def test_all_green_with_workers(project: SmallProject):
    session = project.pytest('-n', '2')
    assert session.status == 0, session.output
    assert {event.worker for event in session.log.of(Started)} <= {'gw0', 'gw1'}
    assert len(session.log.of(Collected)) == 2


def test_what_is_not_offered_is_no_test(project: SmallProject):
    session = project.pytest('--subject', 'candidate', 'suites/alpha')
    assert session.status == 3
    assert 'NOTHING_SELECTED' in session.output


def test_a_renamed_required_test(project: SmallProject):
    project.suite('alpha', test_contract='test_agreement')
    session = project.pytest()
    assert session.status == 3
    assert f'UNJUDGED/MISSING {ONE}' in session.output


@pytest.mark.parametrize('arguments', [(), ('-n', '2')])
def test_a_skip_is_no_pass(project: SmallProject, arguments):
    project.suite('alpha', 'import pytest\npytest.skip("not on this machine")')
    session = project.pytest(*arguments)
    assert session.status == 3, session.output
    assert reasons(session) == {None, Reason.SKIPPED}
    assert 'not on this machine' in session.output


def test_a_skip_mark_is_no_pass(project: SmallProject):
    project.suite('alpha', OPERATOR='import pytest\npytestmark = pytest.mark.skip(reason="later")\nOPERATOR')
    session = project.pytest()
    assert (session.status, reasons(session)) == (3, {None, Reason.SKIPPED})


def test_a_file_that_skips_itself(project: SmallProject):
    project.suite('alpha', OPERATOR='import pytest\npytest.importorskip("no_such_module")\nOPERATOR')
    session = project.pytest('-n', '2')
    assert session.status == 3
    assert 'skips itself' in session.output


@pytest.mark.parametrize(('body', 'status', 'reason'), [
    ('import pytest\npytest.xfail("known")', 3, Reason.SKIPPED),
    ('evidence.records.clear()', 3, Reason.NO_EVIDENCE),
    ('raise ContractBroken(Reason.BYTES, "first differing element 7")', 1, Reason.BYTES),
    ('raise ContractBroken(Reason.LATENT, "moved")', 1, Reason.LATENT),
    ('raise RuntimeError("illegal memory access")', 1, Reason.CRASH),
    ('raise SystemExit(0)', 1, Reason.CRASH),
    ('raise MemoryError', 1, Reason.OOM),
    ('raise RuntimeError("CUDA out of memory. Tried to allocate")', 1, Reason.OOM),
])
def test_every_way_to_fail(project: SmallProject, body: str, status: int, reason: Reason):
    project.suite('alpha', body)
    session = project.pytest()
    assert (session.status, reasons(session)) == (status, {None, reason}), session.output
    assert f'{reason.outcome.value}[cpu]: {reason.value} 2' in session.output


def test_a_broken_contract_that_the_test_swallows(project: SmallProject):
    project.suite('alpha', 'evidence.add(Record("bytes", "codes", compared=4, differing=1))\ntry:\n'
                  '    raise ContractBroken(Reason.BYTES, "told")\nexcept AssertionError:\n    pass')
    session = project.pytest()
    assert (session.status, reasons(session)) == (1, {None, Reason.BYTES})
    assert '1 of 4 differ (bytes: codes)' in session.output


def test_an_expected_failure_that_passes(project: SmallProject):
    project.suite('alpha', OPERATOR='import pytest\npytestmark = pytest.mark.xfail\nOPERATOR')
    session = project.pytest()
    assert (session.status, reasons(session)) == (1, {None, Reason.CRASH})


def test_a_set_up_that_fails_judges_nothing(project: SmallProject):
    fixture = 'import pytest\n@pytest.fixture(autouse=True)\ndef broken():\n    raise OSError("no disk")\nOPERATOR'
    project.suite('alpha', OPERATOR=fixture)
    session = project.pytest()
    assert (session.status, reasons(session)) == (3, {None, Reason.INFRA})


def test_a_time_limit_is_a_hang(project: SmallProject):
    project.suite('alpha', 'import time\ntime.sleep(30)')
    session = project.pytest('--timeout=0.5', '--timeout-method=signal', '-k', 'alpha and one')
    assert (session.status, reasons(session)) == (1, {Reason.HANG})


def test_an_import_error_in_one_file(project: SmallProject):
    project.suite('alpha', OPERATOR='import no_such_module\nOPERATOR')
    session = project.pytest()
    assert session.status == 3
    assert 'no_such_module' in session.output


def test_a_filtered_session_is_judged_on_what_was_selected(project: SmallProject):
    session = project.pytest(ONE)
    assert session.status == 0
    assert '(1 case, stock; partial: only what was selected)' in session.output
    assert project.pytest('-k', 'nothing_of_that_name').status == 3


@pytest.mark.parametrize('narrowing', [('--deselect', ONE), ('-k', 'beta'), ('--ignore', 'suites/alpha')])
def test_a_narrowed_session_says_that_it_is_partial(project: SmallProject, narrowing):
    session = project.pytest(*narrowing)
    assert session.status == 0
    assert 'partial' in session.output


def test_an_unknown_way_to_drop_tests_is_caught_by_the_manifest(project: SmallProject):
    conftest = project.root / 'conftest.py'
    conftest.write_text(conftest.read_text() + '\ndef pytest_collection_modifyitems(items):\n    del items[0]\n')
    session = project.pytest()
    assert (session.status, 'UNJUDGED/MISSING' in session.output) == (3, True)


def test_an_unsorted_manifest_is_refused(project: SmallProject):
    project.write('ci/required/cpu-stock.txt', '# Cases that lane cpu owes for subject stock: one node id a line, '
                  'sorted.\n' + '\n'.join(reversed(STOCK_CASES)))
    session = project.pytest()
    assert session.status == 3
    assert 'expected sorted lines' in session.output


def test_selftests_are_ordinary_tests_whose_skips_fail(project: SmallProject):
    project.write('suites/selftest/test_itself.py', SELFTEST)
    session = project.pytest('suites/selftest')
    assert (session.status, 'bitgate' in session.output.splitlines()[-2]) == (0, False)
    project.write('suites/selftest/test_itself.py', 'import pytest\n\ndef test_itself():\n    pytest.skip("no")\n')
    assert project.pytest('suites/selftest').status == 1


def test_an_ordinary_failure_beside_a_green_verdict_stays_red(project: SmallProject):
    project.write('suites/selftest/test_itself.py', 'def test_itself():\n    assert False\n')
    session = project.pytest('suites')
    assert 'PASS[cpu]' in session.output
    assert session.status == 1


@pytest.mark.parametrize('workers', [(), ('-n', '2'), ('-n', 'auto')])
def test_the_wrong_device(project: SmallProject, workers):
    session = project.pytest('--lane', 'sm90', *workers)
    assert session.status == 3
    assert 'UNJUDGED[sm90]: WRONG_DEVICE: expected an sm90 device' in session.output
    assert not session.log.events


@pytest.mark.parametrize(('arguments', 'told'), [
    (('--lane', 'gpu'), "expected auto, cpu or sm90, found 'gpu'"),
    (('--subject', 'module'), 'expected stock, candidate or module:PATH'),
    (('--subject', 'module:a.py', '--subject', 'module:b.py'), 'at most once'),
    (('--lmdeploy-src', 'no/such/folder'), 'expected a folder'),
    (('-n', '1', '--dist', 'loadgroup'), 'hangs the session'),
])
def test_usage_errors(project: SmallProject, arguments, told: str):
    session = project.pytest(*arguments)
    assert (session.status, told in session.output) == (4, True)


def test_the_log_of_an_earlier_session_never_speaks_for_this_one(project: SmallProject):
    session = project.pytest()
    second = project.pytest('--bitgate-out', str(project.write('earlier/results.jsonl', '').parent))
    assert (session.status, second.status) == (0, 4)


def test_a_suite_of_an_unknown_operator(project: SmallProject):
    project.suite('alpha', OPERATOR='OPERATOR = "gamma"\nFORMER')
    session = project.pytest()
    assert session.status == 3
    assert "OPERATOR: expected one of alpha, beta, found 'gamma'" in session.output


def test_a_subject_that_cannot_be_loaded(project: SmallProject):
    session = project.pytest('--subject', 'stock', '--subject', 'module:absent.py')
    assert session.status == 3
    assert 'module cannot be put on trial: FileNotFoundError' in session.output


def test_the_reproducing_command_names_exactly_one_case(project: SmallProject):
    project.suite('alpha', 'raise ContractBroken(Reason.BYTES, reproduce)', case='case, reproduce')
    session = project.pytest(ONE)
    finished, = session.log.of(Finished)
    assert finished.message.endswith(f"python -m pytest --lane cpu '{ONE}'")
    assert finished.outcome is Outcome.BROKEN


def test_auto_workers_follow_the_lane(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plugin, 'usable_cores', lambda: 64)
    assert (plugin.auto_workers(Lane.CPU), plugin.auto_workers(Lane.SM90)) == (64, 12)
    monkeypatch.setattr(plugin, 'usable_cores', lambda: 2)
    assert (plugin.auto_workers(Lane.CPU), plugin.auto_workers(Lane.SM90)) == (2, 2)


def test_auto_workers_are_asked_for_by_xdist(project: SmallProject):
    session = project.pytest('-n', 'auto')
    workers = usable_cores()
    assert f'{workers} worker{"s" if workers > 1 else ""} [6 items]' in session.output
