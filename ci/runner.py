"""`bitgate run`: preflight, plan, execute, judge, report. The artifacts are there whatever happens in between."""
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ci.events import RESULTS, Collected, RunLog, read
from ci.execute import execute, output_tail, pytest_command
from ci.judge import Owed, Problem, Verdict, judge
from ci.outdir import JUNIT, PLAN, SUMMARY, VERDICT, claimed, write_whole
from ci.owed import owed_by
from ci.plugin import auto_workers
from ci.preflight import Preflight, as_loaded, preflight
from ci.report import SCHEMA_VERSION, TOOL, as_dict, failures_text, headline, junit, summary
from ci.settings import CHECKOUT, Settings, UsageFault
from ci.trials import is_judged
from ci.upstream import UPSTREAM, NoCheckout, require_gpu
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane, LaneRequest


@dataclass(frozen=True)
class RunRequest:
    """What to judge, and how.

    Attributes:
        settings: lane and subjects.
        out: folder for the artifacts.
        suites: names of folders under suites/; empty means all that are required. With a checkout of upstream's in the
            settings, 'upstream' is one of them, and never left out.
        workers: number of xdist workers, None for what suits the lane.
        deadline_s: seconds for the whole session; test_limit_s: seconds for each test.
        root: the folder that holds suites/ and ci/required/.
    """

    settings: Settings
    out: Path
    suites: tuple[str, ...] = ()
    workers: int | None = None
    deadline_s: float = 3600.0
    test_limit_s: float = 600.0
    root: Path = CHECKOUT


def run(request: RunRequest, say: Callable[[str], None],
        look: Callable[..., Preflight] = preflight) -> Verdict:
    """Judge, and write verdict.json, junit.xml, summary.md, plan.json and results.jsonl into `request.out`.

    `say` gets plain progress lines, then the failures with their explanations, and last the headline. `look` is the
    preflight. Raises UsageFault for a request of no sense, before anything is touched.
    """
    request = _with_upstream(request)
    _check(request)
    found = look(request.settings.lane)
    if request.settings.upstream and found.lane:
        try:
            require_gpu(found.lane)
        except NoCheckout as fault:
            raise UsageFault(str(fault)) from None
    with claimed(request.out):
        return _run(request, say, found)


def _run(request: RunRequest, say: Callable[[str], None], found: Preflight) -> Verdict:
    settings = request.settings.on(found.lane) if found.lane else request.settings
    owed = _owed(request, found)
    say(f'lane {owed.lane}, subjects {", ".join(owed.subjects)}: {_at_most(owed)}{len(owed.required)} required cases')
    _write_plan(request, owed)
    started = time.monotonic()
    # a verdict that stands if this process is killed before it has a better one
    _write(request.out, judge(owed, RunLog(), 'the run has not come to its end', found.environment), settings)
    interruption = None
    if found.lane:
        workers = request.workers or auto_workers(found.lane)
        command = pytest_command(_arguments(request, settings, workers))
        interruption = execute(command, request.root, request.out, workers, request.deadline_s,
                               len(owed.required), say)
    log = read(request.out / RESULTS)
    environment = as_loaded(found.environment, found.lane, _loaded_lmdeploy(log))
    if settings.upstream:
        environment = {**environment, 'upstream_tests': str(settings.upstream)}
    verdict = judge(owed, log, interruption, environment)
    _write(request.out, verdict, settings)
    _tell(verdict, settings, request.out, time.monotonic() - started, say)
    return verdict


def _loaded_lmdeploy(log: RunLog) -> str | None:
    """The version of lmdeploy that was on trial as stock, as its own source gives it; None if it was not on trial."""
    versions = [subject.provenance.get('version') for event in log.of(Collected) for subject in event.subjects
                if subject.name == 'stock' and subject.provenance]
    return versions[-1] if versions else None


def _at_most(owed: Owed) -> str:
    """A module owes nothing for operators that it lacks, and which those are is known once it is loaded."""
    return 'up to ' if 'module' in owed.subjects else ''


def _with_upstream(request: RunRequest) -> RunRequest:
    if not request.settings.upstream or not request.suites or UPSTREAM in request.suites:
        return request
    return replace(request, suites=(*request.suites, UPSTREAM))


def _check(request: RunRequest) -> None:
    # The harness's own tests judge nobody, so that they are no part of a verdict.
    known = sorted(path.name for path in (request.root / 'suites').glob('*')
                   if path.is_dir() and path.name[0] not in '._' and is_judged(f'suites/{path.name}/'))
    known += [UPSTREAM] if request.settings.upstream else []
    for suite in request.suites:
        if suite not in known:
            raise UsageFault(f'--suites: expected one of {", ".join(known)}, found {suite!r}')
    if not (request.root / 'suites').is_dir():
        raise UsageFault(f'suites: expected the folder {request.root / "suites"}; run from a checkout of bitgate')
    if request.workers is not None and request.workers < 1:
        raise UsageFault(f'-n: expected at least 1 worker, found {request.workers}')


def _owed(request: RunRequest, found: Preflight) -> Owed:
    subjects, upstream = request.settings.subject_names, request.settings.upstream is not None
    obstacle = Problem(Reason.WRONG_DEVICE, found.obstacle or 'no lane')
    if found.lane:
        return owed_by(request.root, found.lane, subjects, request.suites, upstream)
    if request.settings.lane is LaneRequest.AUTO:
        return Owed(request.settings.lane.value, subjects, problems=(obstacle,))
    # the lane is known, only its device is not here: show what stays unjudged
    owed = owed_by(request.root, Lane(request.settings.lane.value), subjects, request.suites, upstream)
    return replace(owed, problems=(*owed.problems, obstacle))


def _arguments(request: RunRequest, settings: Settings, workers: int) -> list[str]:
    arguments = [*settings.arguments(), f'--bitgate-out={request.out.resolve()}', f'--bitgate-parent={os.getpid()}',
                 '-n', str(workers), '--dist', 'load', f'--timeout={request.test_limit_s:g}', '--timeout-method=thread']
    return arguments + [suite if suite == UPSTREAM else f'suites/{suite}' for suite in request.suites]


def _write_plan(request: RunRequest, owed: Owed) -> None:
    plan = {'tool': TOOL, 'schema_version': SCHEMA_VERSION, 'lane': owed.lane, 'subjects': owed.subjects,
            'upstream': str(request.settings.upstream or ''), 'suites': request.suites,
            'required': sorted(owed.required)}
    write_whole(request.out / PLAN, json.dumps(plan, indent=1) + '\n')


def _write(out: Path, verdict: Verdict, settings: Settings) -> None:
    write_whole(out / VERDICT, json.dumps(as_dict(verdict), indent=1, allow_nan=False) + '\n')
    write_whole(out / JUNIT, junit(verdict))
    write_whole(out / SUMMARY, summary(verdict, settings.reproduce))


def _tell(verdict: Verdict, settings: Settings, out: Path, seconds: float, say: Callable[[str], None]) -> None:
    for name, operator in verdict.not_offered:
        say(f'{name} does not offer {operator}: not judged')
    if verdict.outcome is not Outcome.PASS:
        say(failures_text(verdict, settings.reproduce))
    if any(problem.reason is Reason.INFRA for problem in verdict.problems) and (tail := output_tail(out)):
        say(f'the end of what pytest printed:\n{tail}')
    say(f'{seconds:.0f} s, artifacts in {out}')
    say(headline(verdict))
