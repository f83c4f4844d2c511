"""Runs pytest in a process group of its own, watches the result log, and leaves no process behind."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from ci.events import RESULTS, Finished, read
from ci.outdir import OUTPUT
from ci.processes import end_group, usable_cores
from harness.evidence.verdicts import Outcome

_POLL_S = 0.2
_REPORT_EVERY_S = 10.0


class Interrupted(Exception):
    """A signal asked this process to stop."""


def execute(command: list[str], root: Path, out: Path, workers: int, deadline_s: float, cases: int,
            say: Callable[[str], None]) -> str | None:
    """Run `command` in `root` until it ends or `deadline_s` seconds have passed.

    Its output goes to pytest.log in `out`; its result log is followed, and `say` gets a line every few seconds.
    Returns None if it came to its own end, else what cut it short. SIGINT or SIGTERM to this process ends it too.
    """
    with tempfile.TemporaryDirectory(prefix='bitgate-triton-') as cache, _signals_raise(), \
            open(out / OUTPUT, 'wb') as output:
        process = subprocess.Popen(command, cwd=root, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, env=_environment(root, workers, cache),
                                   start_new_session=True)
        try:
            cut = _watch(process, out / RESULTS, deadline_s, cases, say)
        except Interrupted as interrupted:
            cut = str(interrupted)
        finally:
            end_group(process)
    if cut is None and process.returncode < 0:
        cut = f'pytest was ended by {signal.Signals(-process.returncode).name}'
    return cut


def pytest_command(arguments: list[str]) -> list[str]:
    """The command line of a pytest session that leaves nothing in the tree."""
    return [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', *arguments]


def output_tail(out: Path, lines: int = 30) -> str:
    """The last lines that the session printed."""
    try:
        text = (out / OUTPUT).read_text(encoding='utf-8', errors='replace')
    except FileNotFoundError:
        return ''
    return '\n'.join(text.splitlines()[-lines:])


def _environment(root: Path, workers: int, cache: str) -> dict[str, str]:
    """This process's environment, made to fit: Triton's cache is private to the run, workers share the cores."""
    # pytest's own variables could narrow or reorder the session from outside the command line
    environment = {key: value for key, value in os.environ.items() if not key.startswith('PYTEST_')}
    package_root = str(Path(__file__).resolve().parents[1])
    paths = [str(root), package_root, *environment.get('PYTHONPATH', '').split(os.pathsep)]
    environment['PYTHONPATH'] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    environment['TRITON_CACHE_DIR'] = cache
    environment.setdefault('OMP_NUM_THREADS', str(max(1, usable_cores() // workers)))
    return environment


def _watch(process: subprocess.Popen, results: Path, deadline_s: float, cases: int,
           say: Callable[[str], None]) -> str | None:
    began = told = time.monotonic()
    while True:
        try:
            process.wait(_POLL_S)
            return None
        except subprocess.TimeoutExpired:
            now = time.monotonic()
        if now - began > deadline_s:
            return f'the deadline of {deadline_s:g} s passed'
        if now - told >= _REPORT_EVERY_S:
            told = now
            say(_progress(results, cases, now - began))


def _progress(results: Path, cases: int, seconds: float) -> str:
    finished = read(results).of(Finished)
    bad = sum(event.outcome is not Outcome.PASS for event in finished)
    return f'{len(finished):>5} of {cases} cases, {bad} not green, {seconds:.0f} s'


@contextmanager
def _signals_raise() -> Iterator[None]:
    """While inside, SIGINT and SIGTERM raise Interrupted, so that artifacts are written all the same."""
    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f'{signal.Signals(number).name} was received')

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
