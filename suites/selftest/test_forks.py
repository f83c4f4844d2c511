"""Processes that are forked for one function each: every end is told, and nothing stays."""
import os
import signal
import subprocess
import sys
import time

from ci.forks import Task, run_forked


def _raises() -> int:
    raise ValueError('on purpose')


def _leaves_a_child(folder) -> int:
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
    (folder / 'pid').write_text(str(child.pid))
    return 0


def run(folder, functions: dict, jobs: int = 2, limit_s: float = 20) -> dict:
    tasks = [Task(key, function, folder / f'{key}.log') for key, function in functions.items()]
    return {ended.key: ended.exit_code for ended in run_forked(tasks, jobs, limit_s)}


def test_every_end_is_told(tmp_path):
    found = run(tmp_path, {
        'well': lambda: 0, 'three': lambda: 3, 'raises': _raises, 'exits': lambda: sys.exit(5),
        'killed': lambda: os.kill(os.getpid(), signal.SIGKILL), 'prints': lambda: print('said') or 0})
    assert found == {'well': 0, 'three': 3, 'raises': 70, 'exits': 5, 'killed': -9, 'prints': 0}
    assert 'on purpose' in (tmp_path / 'raises.log').read_text()
    assert (tmp_path / 'prints.log').read_text() == 'said\n'


def test_one_that_takes_too_long_is_ended_and_the_others_are_not(tmp_path):
    began = time.monotonic()
    assert run(tmp_path, {'slow': lambda: time.sleep(60), 'well': lambda: 0}, limit_s=1.0) == {'slow': None, 'well': 0}
    assert time.monotonic() - began < 20


def test_no_more_run_than_were_asked_for(tmp_path):
    marks = tmp_path / 'marks'
    marks.mkdir()

    def counted() -> int:
        mark = marks / str(os.getpid())
        mark.touch()
        time.sleep(0.2)
        beside = len(list(marks.iterdir()))
        mark.unlink()
        return beside

    assert set(run(tmp_path, {str(n): counted for n in range(4)}, jobs=1).values()) == {1}


def test_what_a_process_leaves_behind_is_ended_with_it(tmp_path):
    assert run(tmp_path, {'leaves': lambda: _leaves_a_child(tmp_path)}) == {'leaves': 0}
    pid = int((tmp_path / 'pid').read_text())
    for _ in range(100):
        if not _alive(pid):
            return
        time.sleep(0.05)
    raise AssertionError(f'process {pid} lives')


def _alive(pid: int) -> bool:
    try:
        with open(f'/proc/{pid}/stat') as stat:
            return stat.read().split()[2] != 'Z'
    except FileNotFoundError:
        return False
