"""Runs suites against mutants: who is asked, in which process, and what their answers say about a fault."""
from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from ci.events import RESULTS, Collected, Finished, RunLog, Started, WorkerLost, read
from ci.forks import Ended, Task, run_forked
from ci.judge import Owed, judge
from ci.outdir import OUTPUT
from ci.upstream import UPSTREAM
from harness.evidence.verdicts import Outcome
from harness.lanes.lane import Lane
from harness.mutants.fault import Fault
from harness.mutants.rewrite import DoesNotApply
from harness.mutants.tree import mutant_of, original_of, plant

# Of a fault that depends on timing, one run says nothing.
RACE_RUNS, RACE_KILLS = 20, 19
TREE = 'tree'
_OPERATOR = re.compile(r"^OPERATOR = '(\w+)'$", re.MULTILINE)
# What lmdeploy's kernels import and what takes its time; none of it knows a kernel or touches CUDA.
_HEAVY = ('triton.language', 'torch._dynamo', 'torch._inductor.compiler_bisector', 'transformers', 'mmengine',
          'requests', 'PIL.Image', 'yapf')


class State(str, Enum):
    """What is known of a mutant."""

    KILLED = 'killed'
    SURVIVED = 'survived'
    EQUIVALENT = 'equivalent'
    ELSEWHERE = 'not expressible here'
    INVALID = 'invalid'
    UNJUDGED = 'unjudged'


@dataclass(frozen=True)
class Result:
    """One fault after its run: the case that killed it (or whatever else there is to say), and the seconds it took.

    `kills` of `runs` runs noticed; more than one run where the fault depends on timing.
    """

    fault: Fault
    state: State
    case: str = ''
    reason: str = ''
    message: str = ''
    seconds: float = 0.0
    kills: int = 0
    runs: int = 0


@dataclass(frozen=True)
class MutationRequest:
    """What to run.

    Attributes:
        faults, lane: which, and where.
        stock_root: the folder that holds the lmdeploy to plant in. root: of suites/.
        out: an empty folder; what a mutant left lies in out/ID. jobs: processes at a time.
        limit_s, test_limit_s: seconds for a mutant, and for one of its cases.
        upstream: a checkout of lmdeploy whose own tests are asked in place of the suites, or None.
    """

    faults: tuple[Fault, ...]
    lane: Lane
    stock_root: Path
    root: Path
    out: Path
    jobs: int
    limit_s: float = 900.0
    test_limit_s: float = 240.0
    upstream: Path | None = None


@dataclass(frozen=True)
class _Answer:
    """What one run said."""

    state: State
    case: str = ''
    reason: str = ''
    message: str = ''
    seconds: float = 0.0


@dataclass
class _Book:
    """The runs of one fault, as they come in."""

    fault: Fault
    answers: list[_Answer] = field(default_factory=list)

    @property
    def runs(self) -> int:
        return RACE_RUNS if self.fault.race else 1

    def result(self) -> Result:
        kills = [answer for answer in self.answers if answer.state is State.KILLED]
        seconds = sum(answer.seconds for answer in self.answers)
        bad = [answer for answer in self.answers if answer.state not in (State.KILLED, State.SURVIVED)]
        shown = (bad or kills or self.answers)[0]
        wanted = RACE_KILLS if self.fault.race else 1
        state = shown.state if bad else State.KILLED if len(kills) >= wanted else State.SURVIVED
        message = shown.message
        if self.fault.equivalent and state is State.SURVIVED:
            state, message = State.EQUIVALENT, self.fault.equivalent
        elif self.fault.equivalent and state is State.KILLED:
            state, message = State.INVALID, f'said to be equivalent, yet a case notices: {message}'
        return Result(self.fault, state, shown.case, shown.reason, message, seconds, len(kills), self.runs)


def prepare(lane: Lane) -> None:
    """Import what every mutant's process needs, once, before any of them is forked. Touches no GPU."""
    if lane is Lane.CPU:
        from harness.lanes.activation import activate
        activate(lane)
    else:
        import triton  # noqa: F401
    for name in _HEAVY:
        if importlib.util.find_spec(name.partition('.')[0]) is not None:
            importlib.import_module(name)
    from harness.contracts import contract  # the contracts know no kernel either
    contract('quant_fp8')


def mutate(request: MutationRequest, told: Callable[[Result], None]) -> tuple[Result, ...]:
    """Run every fault, then every case that noticed one without any fault: a case that fails then, too, says nothing.

    `told` hears of each fault as it ends. Results come in the order of the faults.
    """
    results: dict[str, Result] = {}

    def tell(result: Result) -> None:
        results[result.fault.id] = result
        told(result)

    books, tasks = {}, []
    for fault in request.faults:
        if request.lane.value not in fault.lanes:
            tell(Result(fault, State.ELSEWHERE))
            continue
        book = _Book(fault)
        keys = [f'{fault.id}.{number}' for number in range(1, book.runs + 1)] if fault.race else [fault.id]
        try:
            tasks += [_task(request, fault, key) for key in keys]
            books |= dict.fromkeys(keys, book)
        except DoesNotApply as error:
            tell(Result(fault, State.INVALID, message=str(error)))
    for ended in run_forked(tasks, request.jobs, request.limit_s):
        book = books[ended.key]
        book.answers.append(_answer(request.out / ended.key, ended))
        if len(book.answers) == book.runs:
            tell(book.result())
    for fault_id, message in _false_alarms(request, results.values()).items():
        tell(Result(results[fault_id].fault, State.INVALID, results[fault_id].case, message=message))
    return tuple(results[fault.id] for fault in request.faults)


def _task(request: MutationRequest, fault: Fault, key: str) -> Task:
    tree = request.out / key / TREE
    tree.mkdir(parents=True)
    arguments, served = [f'--subject={fault.subject}', *_asked(request, fault.guards)], None
    if fault.subject == 'stock':
        plant(fault, request.stock_root, tree)
        arguments.append(f'--lmdeploy-src={tree}')
    else:
        original = original_of(fault, request.root)
        served = '.'.join(original.relative_to(request.root).with_suffix('').parts), tree / original.name
        served[1].write_text(mutant_of(fault, request.root), encoding='utf-8')
    killers = tuple(f'[{fault.subject}-{killer.partition("/")[2]}]' for killer in fault.killers)
    return _session(request, key, [*arguments, '-x'], killers, served)


def _asked(request: MutationRequest, guards: Sequence[str]) -> list[str]:
    if request.upstream is not None:
        return [f'--upstream={request.upstream}', UPSTREAM]
    suites = suites_of(request.root)
    return [suites[operator] for operator in guards]


def suites_of(root: Path) -> dict[str, str]:
    """Operator -> the file of its suite, relative to `root`."""
    found = {}
    for file in sorted((root / 'suites').glob('*/test_*.py')):
        named = _OPERATOR.search(file.read_text(encoding='utf-8'))
        if named:
            found[named[1]] = file.relative_to(root).as_posix()
    return found


def _session(request: MutationRequest, key: str, arguments: list[str], first: tuple[str, ...] = (),
             served: tuple[str, Path] | None = None) -> Task:
    """A pytest session in a process of its own; `served` is a module's name and the file to import it from."""
    folder = request.out / key
    command = ['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', f'--timeout={request.test_limit_s}',
               f'--lane={request.lane.value}', f'--bitgate-out={folder}', f'--bitgate-lock={request.out}',
               f'--rootdir={request.root}', *arguments]

    def run() -> int:
        import torch
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // request.jobs))
        os.chdir(request.root)
        if served is not None:
            sys.meta_path.insert(0, _Served(*served))
        return int(pytest.main(command, plugins=[_First(first)]))

    return Task(key, run, folder / OUTPUT)


class _Served:
    """An import hook: one module comes from another file."""

    def __init__(self, name: str, file: Path) -> None:
        self._name, self._file = name, file

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self._file) if name == self._name else None


class _First:
    """A pytest plugin: the cases that are most likely to notice are asked first, then the others of one guard after the
    other, from all over its catalogue: neighbours are alike, and what one misses the next one misses, too."""

    def __init__(self, ends: Sequence[str]) -> None:
        self._ends = ends

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {item: at for at, item in enumerate(items)}
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: (
            next((at for at, end in enumerate(self._ends) if item.nodeid.endswith(end)), len(self._ends)),
            files.index(item.path), _bits_reversed(place[item])))


def _bits_reversed(number: int) -> int:
    """0, 1, 2, 3, ... in an order that halves the gaps again and again."""
    return int(f'{number:016b}'[::-1], 2)


def _answer(folder: Path, ended: Ended) -> _Answer:
    """What a session's log says. A process that died in a case was killed by it, whatever it died of."""
    log = read(folder / RESULTS)
    refused = [subject.refused for event in log.of(Collected) for subject in event.subjects if subject.refused]
    if refused:
        return _Answer(State.INVALID, message=f'does not import: {refused[0]}', seconds=ended.seconds)
    log = _with_loss(log, ended)
    verdict = judge(Owed(_lane_of(log), (), partial='a mutant'), log)
    order = {event.nodeid: at for at, event in enumerate(log.of(Started))}
    noticed = sorted((row for row in verdict.rows if row.outcome in (Outcome.BROKEN, Outcome.MOVED)),
                     key=lambda row: order.get(row.nodeid, len(order)))
    if noticed:
        row = noticed[0]
        shutil.rmtree(folder / TREE, ignore_errors=True)  # of no further use; at the others somebody will want to look
        return _Answer(State.KILLED, row.nodeid, row.reason.value, row.message, ended.seconds)
    if verdict.outcome is Outcome.PASS:
        return _Answer(State.SURVIVED, seconds=ended.seconds)
    why = [str(problem) for problem in verdict.problems] + [
        f'{row.nodeid}: {row.message}' for row in verdict.rows if row.outcome is Outcome.UNJUDGED]
    time_up = 'its time was up; ' if ended.exit_code is None else ''
    return _Answer(State.UNJUDGED, message=f'{time_up}{why[0] if why else "nothing was run"}', seconds=ended.seconds)


def _with_loss(log: RunLog, ended: Ended) -> RunLog:
    """The log, in which a case that its process did not survive is a worker lost."""
    finished = {event.nodeid for event in log.of(Finished)}
    unfinished = [event for event in log.of(Started) if event.nodeid not in finished]
    if not unfinished or ended.exit_code is None:
        return log
    last = unfinished[-1]
    lost = WorkerLost(nodeid=last.nodeid, worker='mutate', pid=os.getpid(), time=last.time + ended.seconds)
    return RunLog((*log.events, lost), log.unreadable)


def _lane_of(log: RunLog) -> str:
    return next((event.lane for event in log.of(Collected)), 'auto')


def _false_alarms(request: MutationRequest, results: Iterable[Result]) -> Mapping[str, str]:
    """Fault -> what its killing case says of the original. Empty, if the cases are worth something."""
    killed = [result for result in results if result.state is State.KILLED]
    tasks = []
    for subject in sorted({result.fault.subject for result in killed}):
        cases = sorted({result.case for result in killed if result.fault.subject == subject})
        for part in range(min(request.jobs, len(cases))):
            key = f'without-fault.{subject}.{part}'
            (request.out / key).mkdir()
            own = [f'--subject={subject}', *cases[part::request.jobs]]
            if subject == 'stock':
                own.append(f'--lmdeploy-src={request.stock_root}')
            if request.upstream is not None:
                own.append(f'--upstream={request.upstream}')
            tasks.append(_session(request, key, own))
    passed: set[str] = set()
    said: dict[str, str] = {}
    for ended in run_forked(tasks, request.jobs, request.limit_s):
        log = read(request.out / ended.key / RESULTS)
        for row in judge(Owed(_lane_of(log), (), partial='without a fault'), log).rows:
            said[row.nodeid] = row.message
            passed |= {row.nodeid} if row.outcome is Outcome.PASS else set()
    return {result.fault.id: f'{result.case} fails without any fault, too: {said.get(result.case, "it did not run")}'
            for result in killed if result.case not in passed}

