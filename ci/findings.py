"""From what pytest saw of one phase of a test to an outcome and a reason."""
from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from harness.evidence.log import ContractBroken
from harness.evidence.verdicts import Outcome, Reason

MESSAGE_LIMIT = 12_000
_TRACE_LINES = 25
_TIMEOUT = re.compile(r'Timeout \(?>[\d.]+s\b')    # how pytest-timeout says it, before and since 2.4
_OUT_OF_MEMORY_MARKS = ('out of memory', "can't allocate memory")


@dataclass(frozen=True)
class Finding:
    """Why a phase is not a pass."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f'{self.reason.outcome.value}/{self.reason.value}: {self.message}'


class NotJudged(Exception):
    """A test says nothing about what is on trial, whatever it did.

    Attributes:
        reason: a `Reason` whose outcome is UNJUDGED.
    """

    def __init__(self, reason: Reason, message: str):
        super().__init__(message)
        self.reason = reason


def finding_of(call: pytest.CallInfo, report: pytest.TestReport) -> Finding | None:
    """The finding of one phase ('setup', 'call' or 'teardown'), or None for a pass.

    A skip and an expected failure are no passes: known deviations are data of a contract, not marks on a test. What
    goes wrong in a set-up is nobody's fault yet; from then on an unexpected exception is that of what was on trial.
    """
    if hasattr(report, 'wasxfail'):
        if report.skipped:
            return Finding(Reason.SKIPPED, f'marked xfail ({report.wasxfail or "no reason"}), so nothing was judged')
        return Finding(Reason.CRASH, 'marked xfail, yet it passed: the mark hides what this test says')
    if report.passed:
        return None
    if report.skipped:
        where = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        return Finding(Reason.SKIPPED, f'{where}')
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, ContractBroken):
        return Finding(error.reason, _cut(error.explanation))
    if isinstance(error, NotJudged):
        return Finding(error.reason, _cut(str(error)))
    if isinstance(error, pytest.fail.Exception) and _TIMEOUT.match(str(error)):
        return Finding(Reason.HANG, _cut(report.longreprtext))
    if report.when == 'setup':
        return Finding(Reason.INFRA, _crash_text(report))
    reason = Reason.OOM if _is_out_of_memory(error) else Reason.CRASH
    return Finding(reason, _crash_text(report))


def worst_of(findings: list[Finding | None]) -> Finding | None:
    """The finding with the worst outcome, the earliest of equals; None if all phases passed."""
    order = list(Outcome)
    real = [finding for finding in findings if finding is not None]
    return min(real, key=lambda finding: order.index(finding.reason.outcome), default=None)


def _is_out_of_memory(error: BaseException | None) -> bool:
    """Host or device memory ran out. Told by name, so that this module needs no torch."""
    if isinstance(error, MemoryError) or type(error).__name__ == 'OutOfMemoryError':
        return True
    return isinstance(error, RuntimeError) and any(mark in str(error) for mark in _OUT_OF_MEMORY_MARKS)


def _crash_text(report: pytest.TestReport) -> str:
    """The exception in one line, then the end of its trace: lists show the first line only."""
    crash = getattr(report.longrepr, 'reprcrash', None)
    trace = '\n'.join(report.longreprtext.splitlines()[-_TRACE_LINES:])
    return _cut(f'{crash.message}\n{trace}' if crash else report.longreprtext)


def _cut(text: str) -> str:
    """The end of a long text, where the exception stands; what is no UTF-8 is escaped."""
    text = text.encode('utf-8', 'backslashreplace').decode()
    return text if len(text) <= MESSAGE_LIMIT else f'[...]\n{text[-MESSAGE_LIMIT:]}'
