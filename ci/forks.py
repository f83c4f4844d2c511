"""Functions in forked processes, a few at a time: each starts from what this process has imported, and shares nothing
after that. The process that forks must never have touched CUDA."""
from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ci.processes import die_with_parent

_POLL_S = 0.02
_FAILED = 70


@dataclass(frozen=True)
class Task:
    """What one process does: `run` returns its exit code; whatever it prints goes to the file `output`."""

    key: str
    run: Callable[[], int]
    output: Path


@dataclass(frozen=True)
class Ended:
    """How one process ended: its exit code, minus the signal that ended it, or None if its time was up."""

    key: str
    exit_code: int | None
    seconds: float


def run_forked(tasks: Sequence[Task], jobs: int, limit_s: float) -> Iterator[Ended]:
    """Run `tasks`, at most `jobs` of them at a time, each for at most `limit_s` seconds; yields them as they end.

    A process leads a group of its own, which is ended with it, and dies with this process.
    """
    waiting, running = list(reversed(tasks)), {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                task = waiting.pop()
                running[_forked(task)] = task, time.monotonic()
            yield from _ended(running, limit_s)
            time.sleep(_POLL_S)
    finally:
        for pid in running:
            _end_group(pid)
            os.waitpid(pid, 0)


def _forked(task: Task) -> int:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = _FAILED
    try:
        os.setsid()
        die_with_parent(parent)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        output = os.open(task.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, own in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, own)
        sys.stdout, sys.stderr = (os.fdopen(os.dup(number), 'w') for number in (1, 2))
        code = task.run()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else _FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _ended(running: dict[int, tuple[Task, float]], limit_s: float) -> Iterator[Ended]:
    for pid, (task, began) in list(running.items()):
        seconds = time.monotonic() - began
        done, status = os.waitpid(pid, os.WNOHANG)
        if not done and seconds <= limit_s:
            continue
        _end_group(pid)  # whatever it left behind, too
        if not done:
            os.waitpid(pid, 0)
        del running[pid]
        yield Ended(task.key, os.waitstatus_to_exitcode(status) if done else None, seconds)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
