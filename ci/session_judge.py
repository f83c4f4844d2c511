"""The controller's side: judges the session from the result log as it ends, so that plain `pytest` fails closed."""
from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from ci.events import Closed, Collected, CollectFailed, LogWriter, WorkerLost, read
from ci.judge import Owed, Verdict, judge
from ci.owed import owed_by
from ci.report import headline, row_text
from ci.settings import Settings
from ci.trials import is_judged
from harness.evidence.verdicts import Outcome
from harness.lanes.lane import Lane

_SHOWN_ROWS = 20
_NARROWING_OPTIONS = ('keyword', 'markexpr', 'deselect', 'ignore', 'ignore_glob', 'lf', 'stepwise', 'pyargs')
# Where pytest's arguments come from if nobody named a file or a folder.
WHOLE_SESSION = (pytest.Config.ArgsSource.TESTPATHS, pytest.Config.ArgsSource.INVOCATION_DIR)


class SessionJudge:
    """A pytest plugin for the process that ends the session: the only one, or xdist's controller."""

    def __init__(self, log: LogWriter, results: Path, settings: Settings, lane: Lane) -> None:
        self._log = log
        self._results = results
        self._settings = settings
        self._lane = lane
        self._gateways: list[Any] = []
        self.verdict: Verdict | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self._log.append(WorkerLost(nodeid=crashitem, **self._stamp()))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object | None) -> None:
        """Also of a worker that died before its first test and was replaced: its death is a fact of this run."""
        self._gateways.append(node.gateway)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int):
        """Innermost, so that the workers are down already, and the terminal's summary is still to come."""
        result = yield
        self._log.append(Closed(exit_status=int(exitstatus), died_at_exit=self._died_at_exit(), **self._stamp()))
        self._judge(session)
        return result

    def _died_at_exit(self) -> dict[str, int]:
        """xdist does not look: a worker that dies once its last result is out leaves a clean report."""
        codes = {gateway.id: gateway._io.wait() for gateway in self._gateways}
        return {worker: code for worker, code in codes.items() if code}

    def _judge(self, session: pytest.Session) -> None:
        log = read(self._results)
        owed = self._owed(session.config)
        if owed is None:
            planned = [nodeid for event in log.of(Collected) for nodeid in event.judged]
            failed = [event for event in log.of(CollectFailed) if is_judged(event.nodeid)]
            if not planned and not failed and any(event.ordinary for event in log.of(Collected)):
                return
            owed = Owed(self._lane.value, (), partial='only what was selected')
        self.verdict = judge(owed, log)
        if self.verdict.outcome is not Outcome.PASS:
            session.exitstatus = self.verdict.exit_code

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.verdict is None:
            return
        terminalreporter.section('bitgate')
        rows = [row for row in self.verdict.rows if row.outcome is not Outcome.PASS]
        for problem in self.verdict.problems:
            terminalreporter.write_line(str(problem))
        for row in rows[:_SHOWN_ROWS]:
            terminalreporter.write_line(row_text(row, lines=1))
        if len(rows) > _SHOWN_ROWS:
            terminalreporter.write_line(f'... and {len(rows) - _SHOWN_ROWS} more')
        terminalreporter.write_line(headline(self.verdict))

    def _owed(self, config: pytest.Config) -> Owed | None:
        """What the whole lane owes, if nothing narrowed this session down; None for a filtered one."""
        if config.args_source not in WHOLE_SESSION or any(config.getoption(name, None) for name in _NARROWING_OPTIONS):
            return None
        return owed_by(config.rootpath, self._lane, self._settings.subject_names,
                       upstream=self._settings.upstream is not None)

    @staticmethod
    def _stamp() -> dict:
        return {'worker': 'controller', 'pid': os.getpid(), 'time': time.time()}
