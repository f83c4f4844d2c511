"""A verdict as people and programs read it: one line, Markdown, JSON, JUnit. Functions of the verdict, no more."""
from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

from ci.judge import Row, Verdict
from harness.evidence.verdicts import Outcome

SCHEMA_VERSION = 1
TOOL = 'bitgate'
_LANE_NOTES = {'cpu': 'source semantics judged, nothing proven on sm90', 'sm90': 'judged on this GPU'}
_SHOWN_FAILURES = 20
_Reproduce = Callable[[str], str]


def headline(verdict: Verdict) -> str:
    """One line: outcome, lane, and what it rests on or why it is not green."""
    cases = len(verdict.rows)
    names = ' and '.join(sorted({row.subject for row in verdict.rows if row.subject}, key=_subject_order))
    scope = f'{cases} case{"" if cases == 1 else "s"}' + (f', {names}' if names else '')
    if verdict.partial:
        scope += f'; partial: {verdict.partial}'
    if verdict.outcome is Outcome.PASS:
        text = _LANE_NOTES.get(verdict.lane, 'judged')
    else:
        text = ', '.join(f'{reason.value} {count}' for reason, count in verdict.reasons.items())
    return f'{verdict.outcome.value}[{verdict.lane}]: {text} ({scope})'


def row_text(row: Row, lines: int | None = None, reproduce: _Reproduce | None = None) -> str:
    """A case that is not green, with the first `lines` lines of its explanation (all if None)."""
    head = f'{row.outcome.value}/{row.reason.value if row.reason else ""} {row.nodeid}'
    body = row.message.strip().splitlines()
    if lines is not None:
        body = body[:lines]
    command = reproduce(row.nodeid) if reproduce else ''
    if command and command not in row.message:
        body.append(f'reproduce: {command}')
    return '\n'.join([head] + [f'    {line}' for line in body])


def failures_text(verdict: Verdict, reproduce: _Reproduce) -> str:
    """Everything that keeps the verdict from being green, most telling first; empty for PASS."""
    order = list(Outcome)
    rows = sorted((row for row in verdict.rows if row.outcome is not Outcome.PASS),
                  key=lambda row: (order.index(row.outcome), row.nodeid))
    blocks = [str(problem) for problem in verdict.problems]
    alike = Counter((row.reason, row.message) for row in rows)
    told: set = set()
    for row in rows:
        key = (row.reason, row.message)
        if key in told or len(told) >= _SHOWN_FAILURES:
            continue
        told.add(key)
        more = alike[key] - 1
        blocks.append(row_text(row, reproduce=reproduce) + (f'\n    and {more} more like it' if more else ''))
    untold = sum(count for key, count in alike.items() if key not in told)
    if untold:
        blocks.append(f'... and {untold} more cases; verdict.json lists all of them')
    return '\n\n'.join(blocks)


def as_dict(verdict: Verdict) -> dict[str, Any]:
    """The content of verdict.json."""
    return {
        'tool': TOOL,
        'schema_version': SCHEMA_VERSION,
        'outcome': verdict.outcome.value,
        'lane': verdict.lane,
        'headline': headline(verdict),
        'reasons': {reason.value: count for reason, count in verdict.reasons.items()},
        'counts': verdict.counts,
        'partial': verdict.partial,
        'environment': dict(verdict.environment),
        'subjects': [subject.model_dump(mode='json') for subject in verdict.subjects],
        'not_offered': [{'subject': name, 'operator': operator} for name, operator in verdict.not_offered],
        'problems': [{'reason': problem.reason.value, 'message': problem.message} for problem in verdict.problems],
        'cases': [{'nodeid': row.nodeid, 'subject': row.subject, 'outcome': row.outcome.value,
                   'reason': row.reason.value if row.reason else None, 'message': row.message,
                   'duration': row.duration} for row in verdict.rows],
    }


def junit(verdict: Verdict) -> str:
    """JUnit XML: one row for every planned case, BROKEN and MOVED as failure, UNJUDGED as error.

    What belongs to no case stands in a suite of its own, so that a file without cases is never an empty green one.
    """
    report = JUnitXml('bitgate')
    suite = TestSuite(f'bitgate {verdict.lane}')
    # All at once: the suite's figures are counted anew with every call.
    suite.add_testcases([_junit_case(row) for row in verdict.rows])
    report.add_testsuite(suite)
    if verdict.problems:
        session = TestSuite(f'bitgate {verdict.lane} session')
        for problem in verdict.problems:
            case = TestCase(problem.reason.value, 'bitgate.session', 0)
            case.result = [_junit_result(problem.reason.outcome, problem.reason.value, problem.message)]
            session.add_testcase(case)
        report.add_testsuite(session)
    stream = io.BytesIO()
    report.write(stream, pretty=True)
    return stream.getvalue().decode()


def summary(verdict: Verdict, reproduce: _Reproduce) -> str:
    """Markdown for a job's summary page."""
    outcomes = ' | '.join(outcome.value for outcome in Outcome)
    lines = [f'## {headline(verdict)}', '', f'| suite | subject | cases | {outcomes} |',
             '| --- | --- | --- |' + ' --- |' * len(Outcome)]
    groups: dict[tuple[str, str], Counter] = {}
    for row in verdict.rows:
        groups.setdefault((row.nodeid.split('::')[0], row.subject or '-'), Counter())[row.outcome] += 1
    for (file, subject), found in sorted(groups.items()):
        counts = ' | '.join(str(found[outcome]) for outcome in Outcome)
        lines.append(f'| {file} | {subject} | {sum(found.values())} | {counts} |')
    lines += ['', '### On trial', '']
    lines += [_subject_line(subject) for subject in verdict.subjects] or ['- nothing was loaded']
    lines += [f'- {name} does not offer {operator}: not judged' for name, operator in verdict.not_offered]
    trouble = failures_text(verdict, reproduce)
    if trouble:
        lines += ['', '### Why it is not green', '', '````text', trouble, '````']
    lines += ['', '### Environment', '', '| what | found |', '| --- | --- |']
    lines += [f'| {key} | {_cell(value)} |' for key, value in verdict.environment.items()]
    return '\n'.join(lines) + '\n'


def _junit_case(row: Row) -> TestCase:
    file, _, name = row.nodeid.partition('::')
    case = TestCase(name, file.removesuffix('.py').replace('/', '.'), row.duration or 0)
    if row.outcome is not Outcome.PASS:
        case.result = [_junit_result(row.outcome, row.reason.value if row.reason else '', row.message)]
    return case


def _junit_result(outcome: Outcome, reason: str, message: str) -> Failure | Error:
    kind = Error if outcome is Outcome.UNJUDGED else Failure
    first = next(iter(message.strip().splitlines()), '')
    result = kind(_xml_text(f'{outcome.value}/{reason}: {first}'), f'{outcome.value}/{reason}')
    result.text = _xml_text(message)
    return result


def _xml_text(text: str) -> str:
    """`text` without the control characters that XML 1.0 cannot hold."""
    return re.sub('[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]', '\ufffd', text)


def _subject_line(subject: Any) -> str:
    if subject.refused:
        return f'- {subject.name}: refused: {subject.refused}'
    code = subject.provenance or {}
    return (f'- {subject.name} {code.get("version", "")}: {", ".join(subject.offers) or "offers nothing"} '
            f'(`{code.get("path", "?")}`, sha256 `{str(code.get("sha256", "?"))[:16]}`)')


def _cell(value: Any) -> str:
    return str(value).replace('|', '\\|').replace('\n', ' ')


def _subject_order(name: str) -> int:
    return ('stock', 'candidate', 'module').index(name) if name in ('stock', 'candidate', 'module') else 3
