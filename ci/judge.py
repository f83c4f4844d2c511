"""The judge: from what was owed and what the result log says, to a verdict. Reads no file, trusts no exit code."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ci.contradiction import contradiction
from ci.events import Closed, Collected, CollectFailed, Finished, RunLog, Started, SubjectFacts, WorkerLost
from harness.evidence.verdicts import Outcome, Reason


@dataclass(frozen=True)
class Problem:
    """Something that stands in the way of a verdict and belongs to no single case."""

    reason: Reason
    message: str

    def __str__(self) -> str:
        return f'{self.reason.outcome.value}/{self.reason.value} {self.message}'


@dataclass(frozen=True)
class Row:
    """The judgement of one planned case. `duration` is in seconds, None if it never finished."""

    nodeid: str
    subject: str | None
    outcome: Outcome
    reason: Reason | None = None
    message: str = ''
    duration: float | None = None


@dataclass(frozen=True)
class Owed:
    """What a run owes.

    Attributes:
        lane: the lane on trial, or 'auto' where none could be chosen.
        subjects: names of the subjects on trial.
        required: node id -> subject in whose manifest it stands. Empty where only what was selected is judged.
        partial: why this is less than everything the lane owes, or None.
        problems: what is known before anything runs (a manifest that is absent, the wrong device).
    """

    lane: str
    subjects: tuple[str, ...]
    required: Mapping[str, str | None] = field(default_factory=dict)
    partial: str | None = None
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What can be said of a run, and everything that it rests on."""

    lane: str
    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]
    partial: str | None
    environment: Mapping[str, Any]
    subjects: tuple[SubjectFacts, ...]
    not_offered: tuple[tuple[str, str], ...]

    @property
    def outcome(self) -> Outcome:
        """The worst of all cases and problems; UNJUDGED if there are none."""
        return Outcome.worst([row.outcome for row in self.rows] + [item.reason.outcome for item in self.problems])

    @property
    def reasons(self) -> dict[Reason, int]:
        """Reason -> how many cases and problems have it, in the order of the vocabulary."""
        found = Counter(row.reason for row in self.rows if row.reason)
        found.update(problem.reason for problem in self.problems)
        return {reason: found[reason] for reason in Reason if reason in found}

    @property
    def counts(self) -> dict[str, int]:
        """Number of cases in all ('cases') and by outcome."""
        found = Counter(row.outcome for row in self.rows)
        return {'cases': len(self.rows)} | {outcome.value: found[outcome] for outcome in Outcome}

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 BROKEN or MOVED, 3 UNJUDGED."""
        return {Outcome.PASS: 0, Outcome.UNJUDGED: 3}.get(self.outcome, 1)


def judge(owed: Owed, log: RunLog, interruption: str | None = None,
          environment: Mapping[str, Any] | None = None) -> Verdict:
    """Judge one run.

    Args:
        owed: what had to be shown.
        log: what the processes of the run wrote down.
        interruption: why the run ended before its time (deadline, signal), or None.
        environment: facts about the place, carried into the verdict unread.
    """
    subjects, not_offered = _subjects(log)
    required = _narrow(owed, log, not_offered)
    collected = {nodeid: name for event in log.of(Collected) for nodeid, name in event.judged.items()}
    planned = dict(collected) | dict(required)
    docket = _Docket(log, collected, subjects, owed.problems, interruption)
    rows = tuple(docket.row(nodeid, planned[nodeid]) for nodeid in sorted(planned))
    problems = owed.problems
    if not any(problem.reason is Reason.WRONG_DEVICE for problem in owed.problems):
        problems += _subject_problems(owed, required, subjects, log) + _session_problems(owed, log, interruption)
        if not rows:
            problems += (Problem(Reason.NOTHING_SELECTED, 'no case was required and none was collected'),)
    return Verdict(owed.lane, rows, problems, owed.partial, environment or {}, subjects, not_offered)


def _subjects(log: RunLog) -> tuple[tuple[SubjectFacts, ...], tuple[tuple[str, str], ...]]:
    """The subjects as the processes of the run found them, and (subject, operator) for everything not offered."""
    facts = {subject.name: subject for event in log.of(Collected) for subject in event.subjects}
    operators = sorted({operator for event in log.of(Collected) for operator in event.operators.values()})
    missing = [(subject.name, operator) for subject in facts.values() if subject.refused is None
               for operator in operators if operator not in subject.offers]
    return tuple(facts.values()), tuple(missing)


def _narrow(owed: Owed, log: RunLog, not_offered: tuple[tuple[str, str], ...]) -> dict[str, str | None]:
    """What is owed once a module's operators are known: a module owes nothing for an operator that it lacks.

    A file whose operator no process reported stays owed: an absent suite is no excuse.
    """
    operators = {file: operator for event in log.of(Collected) for file, operator in event.operators.items()}
    excused = {operator for name, operator in not_offered if name == 'module'}
    return {nodeid: name for nodeid, name in owed.required.items()
            if not (name == 'module' and operators.get(nodeid.split('::')[0]) in excused)}


class _Docket:
    """The log, laid out by case."""

    def __init__(self, log: RunLog, collected: Mapping[str, str | None], subjects: tuple[SubjectFacts, ...],
                 obstacles: tuple[Problem, ...], interruption: str | None) -> None:
        self._collected = collected
        self._refused = {subject.name: subject.refused for subject in subjects if subject.refused}
        self._lacking = {subject.name: subject for subject in subjects}
        self._operators = {file: name for event in log.of(Collected) for file, name in event.operators.items()}
        self._failed_files = {event.nodeid: event.message for event in log.of(CollectFailed)}
        self._wrong_device = next((item for item in obstacles if item.reason is Reason.WRONG_DEVICE), None)
        self._interruption = interruption
        closed = log.of(Closed)
        self._orderly = bool(closed) and closed[-1].exit_status in (0, 1) and interruption is None
        self._started: dict[str, list[Started]] = {}
        self._finished: dict[str, list[Finished]] = {}
        self._lost: dict[str, list[WorkerLost]] = {}
        for kind, table in ((Started, self._started), (Finished, self._finished), (WorkerLost, self._lost)):
            for event in log.of(kind):
                table.setdefault(event.nodeid, []).append(event)

    def row(self, nodeid: str, subject: str | None) -> Row:
        """The judgement of one case: the worst of its attempts, and none of them excuses another."""
        if self._wrong_device:
            return Row(nodeid, subject, Outcome.UNJUDGED, Reason.WRONG_DEVICE, self._wrong_device.message)
        started, finished = self._started.get(nodeid, []), self._finished.get(nodeid, [])
        if not started and not finished:
            return Row(nodeid, subject, Outcome.UNJUDGED, Reason.MISSING, self._why_missing(nodeid, subject))
        if len(started) > len(finished) or nodeid in self._lost:
            reason, message = self._why_unfinished(nodeid)
            return Row(nodeid, subject, reason.outcome, reason, message)
        attempts = [_attempt(event) for event in finished]
        if len({(outcome, reason) for outcome, reason, _ in attempts}) > 1:
            told = ', '.join(reason.value if reason else outcome.value for outcome, reason, _ in attempts)
            texts = '\n'.join(dict.fromkeys(message for _, _, message in attempts if message))
            return Row(nodeid, subject, Outcome.BROKEN, Reason.NONDETERMINISTIC,
                       f'{len(attempts)} attempts did not agree: {told}\n{texts}', finished[-1].duration)
        outcome, reason, message = attempts[-1]
        return Row(nodeid, subject, outcome, reason, message, finished[-1].duration)

    def _why_missing(self, nodeid: str, subject: str | None) -> str:
        file = nodeid.split('::')[0]
        if file in self._failed_files:
            return f'required, but {file} could not be collected:\n{self._failed_files[file]}'
        if nodeid in self._collected:
            return 'collected, but it never started'
        if subject in self._refused:
            return f'required, but {subject} cannot be put on trial: {self._refused[subject]}'
        facts, operator = self._lacking.get(subject), self._operators.get(file)
        if facts and operator and operator not in facts.offers:
            return f'required, but {subject} does not offer {operator}'
        return 'required, but not collected: renamed, removed, or the session never got that far'

    def _why_unfinished(self, nodeid: str) -> tuple[Reason, str]:
        """A test that took its process down is the culprit; one that was merely running when all ended is not."""
        start, lost = self._started[nodeid][-1], self._lost.get(nodeid)
        if lost:
            seconds = lost[-1].time - start.time
            if start.limit_s and seconds >= start.limit_s:
                return Reason.HANG, f'ran for {seconds:.0f} s (limit {start.limit_s:g} s), then its worker was ended'
            return Reason.CRASH, f'worker {start.worker} (process {start.pid}) died {seconds:.1f} s into this test'
        if self._orderly:
            return Reason.CRASH, f'process {start.pid} began this test and never came to its end'
        return Reason.INFRA, f'in flight when the session ended: {self._interruption or "it was cut short"}'


def _attempt(event: Finished) -> tuple[Outcome, Reason | None, str]:
    """One attempt. A pass is a pass only with at least one comparison of something, and none that failed."""
    if event.reason is not None:
        return event.reason.outcome, event.reason, event.message
    if event.outcome is not Outcome.PASS:
        return Outcome.UNJUDGED, Reason.INFRA, f'outcome {event.outcome.value} without a reason: {event.message}'
    if not any(record.get('compared', 0) > 0 for record in event.evidence):
        return Outcome.UNJUDGED, Reason.NO_EVIDENCE, 'the test passed, but compared nothing'
    contradicted = contradiction(event.evidence)
    if contradicted:
        reason, message = contradicted
        return reason.outcome, reason, message
    return Outcome.PASS, None, ''


def _subject_problems(owed: Owed, required: Mapping[str, str | None], subjects: tuple[SubjectFacts, ...],
                      log: RunLog) -> tuple[Problem, ...]:
    problems = []
    for subject in subjects:
        if subject.refused:
            problems.append(Problem(Reason.INFRA, f'{subject.name} cannot be put on trial: {subject.refused}'))
    excused = set(owed.required.values()) - set(required.values())
    for name in sorted(item for item in excused if item):
        problems.append(Problem(Reason.NOTHING_SELECTED, f'{name} offers none of the operators that it was tried for'))
    seen = {subject.name for subject in subjects}
    if log.of(Collected):
        problems += [Problem(Reason.MISSING, f'{name} was to be tried, but no process reports it')
                     for name in owed.subjects if name not in seen]
    return tuple(problems)


def _session_problems(owed: Owed, log: RunLog, interruption: str | None) -> tuple[Problem, ...]:
    """What is wrong with the session as a whole: how it was collected, how it was logged, how it ended."""
    texts = [f'{event.nodeid} could not be collected:\n{event.message}' for event in _unique_failures(log)]
    texts += [f'a line of the result log cannot be read: {line!r}' for line in log.unreadable]
    plans = log.of(Collected)
    if len({(frozenset(plan.judged), plan.lane) for plan in plans}) > 1:
        texts.append('the workers did not collect the same cases')
    texts += [f'cases of lane {lane} were collected in a run of lane {owed.lane}'
              for lane in sorted({plan.lane for plan in plans}) if lane != owed.lane]
    closed = log.of(Closed)
    if interruption:
        texts.append(f'the session was cut short: {interruption}')
    elif not closed:
        texts.append('the session never came to its own end')
    else:
        texts += _exit_status_problems(closed[-1].exit_status, log)
    crashes = [f'worker {worker} ended with exit code {code}'
               for event in closed for worker, code in event.died_at_exit.items()]
    return (*(Problem(Reason.INFRA, text) for text in texts), *(Problem(Reason.CRASH, text) for text in crashes))


def _unique_failures(log: RunLog) -> list[CollectFailed]:
    """Collection failures, one for each place; every worker reports its own."""
    return list({event.nodeid: event for event in log.of(CollectFailed)}.values())


def _exit_status_problems(status: int, log: RunLog) -> list[str]:
    """pytest's own word against the log's. It never makes a verdict better."""
    unfinished = len(log.of(Started)) - len(log.of(Finished))
    failed = [event for event in log.of(Finished) if event.outcome is not Outcome.PASS]
    trouble = bool(failed or unfinished or log.of(CollectFailed) or log.of(WorkerLost))
    if status == 5 and not log.of(Started):
        return []
    if status not in (0, 1):
        return [f'pytest ended with exit status {status}']
    if status == 0 and trouble:
        return ['pytest ended with exit status 0, but the result log holds failures']
    if status == 1 and not trouble:
        return ['pytest ended with exit status 1, but the result log holds no failure']
    return []
