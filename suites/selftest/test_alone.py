"""One memory-hungry case at a time, and none without its memory."""
import threading
from types import SimpleNamespace

import pytest

from ci.alone import Alone, needed_gib


def item(**options) -> SimpleNamespace:
    return SimpleNamespace(callspec=SimpleNamespace(params={'case': SimpleNamespace(options=options)}))


def run(alone: Alone, test, **options):
    """The hook around `test`, as pluggy would run it."""
    hook = alone.pytest_runtest_call(item(**options))
    next(hook)
    test()
    with pytest.raises(StopIteration):
        hook.send(None)


def test_only_a_case_that_declares_memory_needs_any():
    assert needed_gib(item(memory_gib=20)) == 20
    assert needed_gib(item()) == needed_gib(SimpleNamespace()) == 0
    assert needed_gib(SimpleNamespace(callspec=SimpleNamespace(params={}))) == 0


def test_two_of_them_never_run_at_once(tmp_path):
    inside, most = [], []

    def test():
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.pop()

    threads = [threading.Thread(target=run, args=(Alone(tmp_path, lambda: 99.0), test), kwargs={'memory_gib': 1})
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_small_case_waits_for_nobody(tmp_path):
    run(Alone(tmp_path, lambda: 99.0), lambda: run(Alone(tmp_path, lambda: 99.0), lambda: None), memory_gib=1)


def test_too_little_memory_is_told_and_the_lock_given_back(tmp_path):
    with pytest.raises(pytest.skip.Exception, match=r'expected 20 GiB of free GPU memory, found 3\.0'):
        run(Alone(tmp_path, lambda: 3.0), lambda: None, memory_gib=20)
    run(Alone(tmp_path, lambda: 99.0), lambda: None, memory_gib=20)
