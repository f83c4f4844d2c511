"""The result log: one JSON object a line, appended by the process in which the thing happened.

A test's process writes `started` and `finished` itself, each in one write to a descriptor opened with O_APPEND, so that
killing any other process loses nothing that was said before. Everything that judges reads this log.
"""
from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from harness.evidence.verdicts import Outcome, Reason

RESULTS = 'results.jsonl'
SCHEMA_VERSION = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra='forbid')


class SubjectFacts(_Frozen):
    """A subject as one process found it.

    Attributes:
        name: 'stock', 'candidate' or 'module'.
        spec: what was asked for, for example 'module:my_kernels.py'.
        offers: the operators that it has, sorted; empty if it was refused.
        provenance: which code it is, or None if it was refused.
        refused: why it cannot be put on trial, or None.
    """

    name: str
    spec: str
    offers: tuple[str, ...] = ()
    provenance: dict[str, Any] | None = None
    refused: str | None = None


class _Event(_Frozen):
    schema_version: Literal[1] = SCHEMA_VERSION
    worker: str
    pid: int
    time: float


class Collected(_Event):
    """What one process found to run.

    Attributes:
        lane: the lane that the cases were chosen for.
        subjects: the subjects that were asked for.
        operators: suite file -> the operator that it tries.
        judged: node id -> name of the subject on trial, or None for a test that tries none.
        ordinary: node ids of tests that judge no subject (the harness's own tests).
    """

    event: Literal['collected'] = 'collected'
    lane: str
    subjects: tuple[SubjectFacts, ...]
    operators: dict[str, str]
    judged: dict[str, str | None]
    ordinary: tuple[str, ...]


class CollectFailed(_Event):
    """A file (or part of one) could not be collected, or skipped itself as a whole."""

    event: Literal['collect_failed'] = 'collect_failed'
    nodeid: str
    message: str


class Started(_Event):
    """A test began. `limit_s` is its time limit in seconds, if it has one."""

    event: Literal['started'] = 'started'
    nodeid: str
    limit_s: float | None = None


class Finished(_Event):
    """A test came to its end, whatever the end was.

    Attributes:
        reason: why `outcome` is not PASS, or None.
        duration: seconds, set-up and tear-down included.
        message: what an engineer needs to see; empty on PASS.
        evidence: the comparisons that took place, as `harness.evidence.log.Record` has them.
    """

    event: Literal['finished'] = 'finished'
    nodeid: str
    outcome: Outcome
    reason: Reason | None
    duration: float
    message: str
    evidence: tuple[dict[str, Any], ...]


class WorkerLost(_Event):
    """The controller saw a worker die while it ran `nodeid`."""

    event: Literal['worker_lost'] = 'worker_lost'
    nodeid: str


class Closed(_Event):
    """The session came to its own end.

    Attributes:
        exit_status: what pytest itself made of it.
        died_at_exit: worker -> exit code, for workers that did not end with 0, whenever that was.
    """

    event: Literal['closed'] = 'closed'
    exit_status: int
    died_at_exit: dict[str, int] = {}


Event = Annotated[Collected | CollectFailed | Started | Finished | WorkerLost | Closed, Field(discriminator='event')]
_EVENT = TypeAdapter(Event)


@dataclass(frozen=True)
class RunLog:
    """A result log, read. `unreadable` holds the lines that are no events, cut to 200 characters."""

    events: tuple[Any, ...] = ()
    unreadable: tuple[str, ...] = ()

    def of(self, kind: type) -> list:
        """The events of one kind, in the order in which they were written."""
        return [event for event in self.events if isinstance(event, kind)]


def parse(text: str) -> RunLog:
    """The events in `text`, one a line. A line cut short by a full disk or a kill is kept as unreadable."""
    events, unreadable = [], []
    # Not splitlines, which cuts at characters that stand inside a message.
    for line in filter(None, text.split('\n')):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError:
            unreadable.append(line[:200])
    return RunLog(tuple(events), tuple(unreadable))


def read(path: Path) -> RunLog:
    """The log at `path`; a file that does not exist is an empty log."""
    try:
        return parse(path.read_text(encoding='utf-8', errors='replace'))
    except FileNotFoundError:
        return RunLog()


def plain(value: Any) -> Any:
    """`value` as strict JSON can hold it: infinities and NaN as text, numpy's and torch's values as Python's."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return plain(value.tolist()) if hasattr(value, 'tolist') else str(value)


class LogWriter:
    """Appends events to one log; every process that runs tests has its own."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, event: _Event) -> None:
        """Write `event` in a single write. Raises OSError if the line did not go out whole."""
        line = (event.model_dump_json() + '\n').encode()
        if os.write(self._descriptor, line) != len(line):
            raise OSError('the result log took only part of a line: is the disk full?')

    def close(self) -> None:
        os.close(self._descriptor)
