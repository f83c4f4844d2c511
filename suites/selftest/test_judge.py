"""The judge over every way in which a run can fail to be green. Pure: events in, verdict out."""
from __future__ import annotations

import pytest

from ci.events import Closed, Collected, CollectFailed, Finished, RunLog, Started, SubjectFacts, WorkerLost
from ci.judge import Owed, Problem, Verdict, judge
from harness.evidence.verdicts import Outcome, Reason

FILE = 'suites/alpha/test_alpha.py'
ONE, TWO = f'{FILE}::test_contract[stock-one]', f'{FILE}::test_contract[stock-two]'
MODULE_ONE = f'{FILE}::test_contract[module-one]'
RECORD = {'kind': 'bytes', 'what': 'a with b', 'compared': 8}
STAMP = {'worker': 'gw0', 'pid': 7, 'time': 100.0}
STOCK = SubjectFacts(name='stock', spec='stock', offers=('alpha',), provenance={})


def collected(*nodeids: str, subjects=(STOCK,), lane='cpu', **stamp) -> Collected:
    return Collected(lane=lane, subjects=subjects, operators={FILE: 'alpha'}, ordinary=(),
                     judged={nodeid: nodeid.split('[')[1].split('-')[0] for nodeid in nodeids}, **STAMP | stamp)


def started(nodeid: str, **fields) -> Started:
    return Started(nodeid=nodeid, **STAMP | fields)


def finished(nodeid: str, reason: Reason | None = None, evidence=(RECORD,), message='told') -> Finished:
    return Finished(nodeid=nodeid, outcome=reason.outcome if reason else Outcome.PASS, reason=reason, duration=0.5,
                    message=message if reason else '', evidence=evidence, **STAMP)


def closed(status: int) -> Closed:
    return Closed(exit_status=status, **STAMP)


def whole(*nodeids: str) -> list:
    """The events of cases that pass."""
    return [event for nodeid in nodeids for event in (started(nodeid), finished(nodeid))]


def judged(*events, required=(ONE, TWO), subjects=('stock',), interruption=None, **owed) -> Verdict:
    names = {nodeid: nodeid.split('[')[1].split('-')[0] for nodeid in required}
    return judge(Owed('cpu', subjects, names, **owed), RunLog(tuple(events)), interruption)


def reasons(verdict: Verdict) -> set[Reason]:
    return set(verdict.reasons)


def test_everything_required_ran_and_left_evidence():
    verdict = judged(collected(ONE, TWO), *whole(ONE, TWO), closed(0))
    assert verdict.outcome is Outcome.PASS
    assert verdict.exit_code == 0
    assert verdict.counts == {'cases': 2, 'PASS': 2, 'BROKEN': 0, 'MOVED': 0, 'UNJUDGED': 0}


@pytest.mark.parametrize('reason', list(Reason))
def test_a_case_carries_its_reason_to_the_run(reason: Reason):
    verdict = judged(collected(ONE, TWO), started(ONE), finished(ONE, reason), *whole(TWO), closed(1))
    assert verdict.outcome is reason.outcome
    assert verdict.reasons == {reason: 1}
    assert verdict.exit_code == (3 if reason.outcome is Outcome.UNJUDGED else 1)


def test_the_worst_case_decides():
    events = [started(ONE), finished(ONE, Reason.SKIPPED), started(TWO), finished(TWO, Reason.BYTES)]
    verdict = judged(collected(ONE, TWO), *events, closed(1))
    assert verdict.outcome is Outcome.BROKEN
    assert reasons(verdict) == {Reason.SKIPPED, Reason.BYTES}


def test_nothing_required_and_nothing_collected():
    verdict = judged(collected(), closed(5), required=())
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.NOTHING_SELECTED})


def test_a_required_case_that_is_not_collected():
    verdict = judged(collected(ONE), *whole(ONE), closed(0))
    assert (verdict.outcome, verdict.reasons) == (Outcome.UNJUDGED, {Reason.MISSING: 1})
    assert [row.nodeid for row in verdict.rows if row.reason] == [TWO]


def test_a_collected_case_that_never_started():
    verdict = judged(collected(ONE, TWO), *whole(ONE), closed(0))
    assert verdict.reasons == {Reason.MISSING: 1}
    assert 'never started' in verdict.rows[1].message


@pytest.mark.parametrize('evidence', [(), ({'kind': 'bytes', 'compared': 0},), ({'kind': 'bytes'},)])
def test_a_pass_without_a_comparison_is_none(evidence):
    verdict = judged(collected(ONE, TWO), started(ONE), finished(ONE, evidence=evidence), *whole(TWO), closed(0))
    assert verdict.reasons == {Reason.NO_EVIDENCE: 1}


@pytest.mark.parametrize(('record', 'reason'), [
    ({'kind': 'bytes', 'differing': 3}, Reason.BYTES), ({'kind': 'guard', 'differing': 1}, Reason.OUTSIDE_WRITE),
    ({'kind': 'bound', 'differing': 1}, Reason.BOUND), ({'kind': 'a new kind', 'differing': 1}, Reason.BYTES),
    ({'kind': 'bytes', 'differing': 'nan'}, Reason.BYTES), ({'kind': 'bytes', 'differing': None}, Reason.BYTES),
    ({'kind': 'steps', 'worst': 2, 'detail': {'allowed': 1}}, Reason.BOUND),
    ({'kind': 'conformance', 'worst': 'nan', 'detail': {'allowed': 2}}, Reason.BOUND),
])
@pytest.mark.parametrize('place', [0, 1])
def test_a_pass_that_its_own_evidence_contradicts(record, reason: Reason, place: int):
    """Whoever swallowed the ContractBroken, the record that was left before it was raised stays."""
    evidence = [RECORD, {'what': 'a with b', 'compared': 8} | record]
    events = [started(ONE), finished(ONE, evidence=(evidence[place], evidence[1 - place])), *whole(TWO)]
    verdict = judged(collected(ONE, TWO), *events, closed(0))
    assert (verdict.outcome, verdict.reasons) == (Outcome.BROKEN, {reason: 1})
    assert 'its evidence says otherwise' in verdict.rows[0].message


@pytest.mark.parametrize('record', [{'kind': 'steps', 'differing': 9, 'worst': 1, 'detail': {'allowed': 1}},
                                    {'kind': 'conformance', 'differing': 9, 'worst': None, 'detail': {'allowed': 2}}])
def test_what_is_only_counted_breaks_nothing(record):
    evidence = ({'what': 'a with b', 'compared': 8} | record,)
    events = [started(ONE), finished(ONE, evidence=evidence), *whole(TWO)]
    assert judged(collected(ONE, TWO), *events, closed(0)).outcome is Outcome.PASS


def test_no_evidence_anywhere():
    events = [event for nodeid in (ONE, TWO) for event in (started(nodeid), finished(nodeid, evidence=()))]
    verdict = judged(collected(ONE, TWO), *events, closed(0))
    assert (verdict.outcome, verdict.reasons) == (Outcome.UNJUDGED, {Reason.NO_EVIDENCE: 2})


def test_the_test_that_took_its_worker_down_is_named():
    lost = WorkerLost(nodeid=ONE, **STAMP | {'time': 103.0})
    verdict = judged(collected(ONE, TWO), started(ONE, limit_s=60.0), lost, *whole(TWO), closed(1))
    assert (verdict.outcome, verdict.reasons) == (Outcome.BROKEN, {Reason.CRASH: 1})
    assert verdict.rows[0].nodeid == ONE
    assert 'gw0' in verdict.rows[0].message


def test_a_worker_that_died_at_its_time_limit_hung():
    lost = WorkerLost(nodeid=ONE, **STAMP | {'time': 160.5})
    verdict = judged(collected(ONE, TWO), started(ONE, limit_s=60.0), lost, *whole(TWO), closed(1))
    assert verdict.reasons == {Reason.HANG: 1}


def test_started_without_finished_in_an_orderly_session_is_a_crash():
    verdict = judged(collected(ONE, TWO), started(ONE), *whole(TWO), closed(1))
    assert verdict.reasons == {Reason.CRASH: 1}


def test_a_session_that_was_killed_blames_nobody():
    verdict = judged(collected(ONE, TWO), started(ONE), *whole(TWO))
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.INFRA})
    assert 'in flight' in verdict.rows[0].message


def test_an_interruption_is_never_green():
    verdict = judged(collected(ONE, TWO), *whole(ONE, TWO), closed(0), interruption='SIGTERM was received')
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.INFRA})


def test_a_crash_before_the_second_attempt_is_not_forgiven():
    verdict = judged(collected(ONE, TWO), started(ONE), *whole(ONE), *whole(TWO), closed(1))
    assert verdict.reasons == {Reason.CRASH: 1}


@pytest.mark.parametrize('order', [(Reason.BYTES, None), (None, Reason.BYTES), (Reason.BYTES, Reason.BOUND)])
def test_attempts_that_disagree(order):
    attempts = [event for reason in order for event in (started(ONE), finished(ONE, reason))]
    verdict = judged(collected(ONE, TWO), *attempts, *whole(TWO), closed(1))
    assert (verdict.outcome, verdict.reasons) == (Outcome.BROKEN, {Reason.NONDETERMINISTIC: 1})


def test_a_file_that_cannot_be_collected_explains_its_missing_cases():
    failure = CollectFailed(nodeid=FILE, message='ImportError: no such thing', **STAMP)
    verdict = judged(collected(), failure, closed(1))
    assert verdict.reasons == {Reason.MISSING: 2, Reason.INFRA: 1}
    assert all('ImportError' in row.message for row in verdict.rows)


@pytest.mark.parametrize('status', [2, 3, 4, 134])
def test_exit_statuses_that_say_nothing_good(status: int):
    verdict = judged(collected(ONE, TWO), *whole(ONE, TWO), closed(status))
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.INFRA})


def test_an_exit_status_that_contradicts_the_log():
    assert reasons(judged(collected(ONE, TWO), *whole(ONE, TWO), closed(1))) == {Reason.INFRA}
    broken = [started(ONE), finished(ONE, Reason.BYTES), *whole(TWO)]
    assert reasons(judged(collected(ONE, TWO), *broken, closed(0))) == {Reason.INFRA, Reason.BYTES}


def test_a_worker_that_died_after_its_last_test():
    end = Closed(exit_status=0, died_at_exit={'gw1': -11}, **STAMP)
    verdict = judged(collected(ONE, TWO), *whole(ONE, TWO), end)
    assert (verdict.outcome, verdict.reasons) == (Outcome.BROKEN, {Reason.CRASH: 1})
    assert 'gw1' in verdict.problems[0].message


def test_a_session_that_never_closed():
    assert reasons(judged(collected(ONE, TWO), *whole(ONE, TWO))) == {Reason.INFRA}


def test_an_unreadable_line():
    log = RunLog((collected(ONE), *whole(ONE), closed(0)), unreadable=('{"event":"fini',))
    verdict = judge(Owed('cpu', ('stock',), {ONE: 'stock'}), log)
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.INFRA})


def test_workers_that_collected_different_cases():
    verdict = judged(collected(ONE, TWO), collected(ONE, worker='gw1'), *whole(ONE, TWO), closed(0))
    assert reasons(verdict) == {Reason.INFRA}


def test_cases_of_another_lane():
    verdict = judged(collected(ONE, TWO, lane='sm90'), *whole(ONE, TWO), closed(0))
    assert reasons(verdict) == {Reason.INFRA}


def test_the_wrong_device_leaves_every_case_unjudged():
    verdict = judged(problems=(Problem(Reason.WRONG_DEVICE, 'no GPU'),))
    assert (verdict.outcome, verdict.exit_code) == (Outcome.UNJUDGED, 3)
    assert {row.reason for row in verdict.rows} == {Reason.WRONG_DEVICE}


def test_a_subject_that_was_refused():
    refused = SubjectFacts(name='stock', spec='stock', refused='no lmdeploy here')
    verdict = judged(collected(subjects=(refused,)), closed(5))
    assert verdict.outcome is Outcome.UNJUDGED
    assert all('no lmdeploy here' in row.message for row in verdict.rows)


def test_a_subject_that_no_process_reports():
    verdict = judged(collected(ONE, TWO), *whole(ONE, TWO), closed(0), subjects=('stock', 'candidate'))
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.MISSING})


def test_stock_owes_its_manifest_even_if_it_no_longer_offers_the_operator():
    bare = SubjectFacts(name='stock', spec='stock', offers=())
    verdict = judged(collected(subjects=(bare,)), closed(5))
    assert verdict.reasons[Reason.MISSING] == 2
    assert 'does not offer alpha' in verdict.rows[0].message


def test_a_module_owes_only_what_it_offers():
    other = 'suites/beta/test_beta.py::test_contract[module-one]'
    module = SubjectFacts(name='module', spec='module:x.py', offers=('alpha',))
    plan = collected(MODULE_ONE, subjects=(module,)).model_copy(
        update={'operators': {FILE: 'alpha', 'suites/beta/test_beta.py': 'beta'}})
    verdict = judged(plan, *whole(MODULE_ONE), closed(0), required=(MODULE_ONE, other), subjects=('module',))
    assert verdict.outcome is Outcome.PASS
    assert verdict.not_offered == (('module', 'beta'),)


def test_a_module_that_offers_nothing():
    module = SubjectFacts(name='module', spec='module:x.py')
    verdict = judged(collected(subjects=(module,)), closed(5), required=(MODULE_ONE,), subjects=('module',))
    assert verdict.outcome is Outcome.UNJUDGED
    assert Reason.NOTHING_SELECTED in reasons(verdict)


def test_a_module_still_owes_the_cases_of_a_suite_that_vanished():
    gone = 'suites/gone/test_gone.py::test_contract[module-one]'
    module = SubjectFacts(name='module', spec='module:x.py', offers=('alpha',))
    verdict = judged(collected(MODULE_ONE, subjects=(module,)), *whole(MODULE_ONE), closed(0),
                     required=(MODULE_ONE, gone), subjects=('module',))
    assert verdict.reasons == {Reason.MISSING: 1}


def test_a_manifest_that_cannot_be_read():
    problem = Problem(Reason.MISSING, 'ci/required/cpu-stock.txt: no such manifest')
    verdict = judged(collected(ONE), *whole(ONE), closed(0), required=(), problems=(problem,))
    assert (verdict.outcome, reasons(verdict)) == (Outcome.UNJUDGED, {Reason.MISSING})
