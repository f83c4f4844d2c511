"""The worker's side: writes down what happens to every test of its process; lets no skip or empty pass be green."""
from __future__ import annotations

import os
import time

import pytest

from ci.contradiction import contradiction
from ci.events import Collected, CollectFailed, Finished, LogWriter, Started, plain
from ci.findings import Finding, finding_of, worst_of
from ci.trials import Trials, is_judged
from harness.evidence.log import EvidenceLog
from harness.evidence.verdicts import Outcome, Reason

EVIDENCE = pytest.StashKey[EvidenceLog]()


class Recorder:
    """A pytest plugin for each process that runs tests."""

    def __init__(self, log: LogWriter, trials: Trials, worker: str, limit_s: float | None) -> None:
        self._log = log
        self._trials = trials
        self._worker = worker
        self._limit_s = limit_s
        self._findings: list[Finding | None] = []
        self._began = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector):
        """A file that skips itself as a whole would vanish without a trace: make it a failure."""
        report = yield
        if report.skipped:
            where = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
            report.outcome = 'failed'
            report.longrepr = str(Finding(Reason.SKIPPED, f'the whole file skips itself: {where}'))
        if report.failed:
            self._log.append(CollectFailed(nodeid=report.nodeid, message=report.longreprtext, **self._stamp()))
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        items = {item.nodeid: self._trials.subject_of(item) for item in session.items}
        self._log.append(Collected(
            lane=self._trials.lane.value,
            subjects=self._trials.facts(),
            operators=self._trials.operators,
            judged={nodeid: name for nodeid, name in items.items() if is_judged(nodeid)},
            ordinary=tuple(nodeid for nodeid in items if not is_judged(nodeid)),
            **self._stamp()))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        """First of all set-ups, since a skip mark is raised in one; called once for every attempt."""
        self._findings, self._began = [], time.monotonic()
        self._log.append(Started(nodeid=item.nodeid, limit_s=self._limit_s, **self._stamp()))
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        finding = finding_of(call, report)
        if finding is None and call.when == 'call' and is_judged(item.nodeid):
            finding = self._evidence_against_a_pass(item)
        if finding is not None and not report.failed:
            _fail(report, finding)
        self._findings.append(finding)
        if call.when == 'teardown':
            self._finish(item)
        return report

    def _finish(self, item: pytest.Item) -> None:
        finding = worst_of(self._findings)
        self._log.append(Finished(
            nodeid=item.nodeid,
            outcome=finding.reason.outcome if finding else Outcome.PASS,
            reason=finding.reason if finding else None,
            duration=time.monotonic() - self._began,
            message=finding.message if finding else '',
            evidence=tuple(plain(self._records(item))),
            **self._stamp()))

    def _evidence_against_a_pass(self, item: pytest.Item) -> Finding | None:
        records = self._records(item)
        if not records:
            return Finding(Reason.NO_EVIDENCE, 'the test passed, but compared nothing')
        contradicted = contradiction(plain(records))
        return Finding(*contradicted) if contradicted else None

    @staticmethod
    def _records(item: pytest.Item) -> list[dict]:
        log = item.stash.get(EVIDENCE, None)
        return log.as_dicts() if log else []

    def _stamp(self) -> dict:
        return {'worker': self._worker, 'pid': os.getpid(), 'time': time.time()}


def _fail(report: pytest.TestReport, finding: Finding) -> None:
    """Turn a report that pytest would not call a failure into one."""
    report.outcome = 'failed'
    report.longrepr = str(finding)
    if hasattr(report, 'wasxfail'):
        del report.wasxfail
