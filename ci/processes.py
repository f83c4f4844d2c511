"""Processes that leave nothing behind: they die with their parent, and a group ends as one."""
from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent, process id `parent`, ends. Linux only; elsewhere nothing.

    A parent that ended before the request was made would never be noticed, hence the look afterwards.
    """
    if sys.platform != 'linux':
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_group(process: subprocess.Popen, patience_s: float = 5.0) -> None:
    """End `process`, the leader of a process group, and everything in the group: politely first, then by force."""
    for number, patience in ((signal.SIGTERM, patience_s), (signal.SIGKILL, patience_s)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        _wait_for_group(process, patience)
    process.wait()


def _wait_for_group(process: subprocess.Popen, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        process.poll()
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
