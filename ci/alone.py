"""Cases that need so much GPU memory that no two of them fit beside each other: one at a time in a session."""
from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

LOCK = 'memory.lock'
MEMORY = 'memory_gib'


class Alone:
    """A pytest plugin for each process that runs tests.

    Args:
        folder: shared by all processes of the session.
        free_gib: the GPU's free memory, after this process has given back what it merely keeps.
    """

    def __init__(self, folder: Path, free_gib: Callable[[], float]) -> None:
        self._lock = folder / LOCK
        self._free_gib = free_gib

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        needed = needed_gib(item)
        if not needed:
            return (yield)
        with self._lock.open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released with the file, and by a process that dies
            free = self._free_gib()
            if free < needed:
                pytest.skip(f'expected {needed} GiB of free GPU memory, found {free:.1f}')  # which is never green
            try:
                return (yield)
            finally:
                self._free_gib()


def needed_gib(item: pytest.Item) -> float:
    """What the case of a test declares; 0 for what fits anywhere."""
    callspec = getattr(item, 'callspec', None)
    case = callspec.params.get('case') if callspec else None
    return (getattr(case, 'options', None) or {}).get(MEMORY, 0)


def free_gpu_gib() -> float:
    """The current GPU's free memory in GiB, with torch's cache given back."""
    import torch
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0] / 2**30
