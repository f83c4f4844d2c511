"""`bitgate doctor`: what is here, which lane that means, what would run and what would not, and why."""
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ci.court import Court
from ci.manifest import ManifestInvalid, load
from ci.preflight import Preflight, as_loaded, combinations
from ci.settings import Settings
from ci.trials import Trials
from harness.lanes.lane import Lane


def examine(root: Path, settings: Settings, found: Preflight, court: Court) -> dict[str, Any]:
    """Everything that doctor tells, JSON-compatible. Activates the lane in this process if there is one.

    Keys: `lane` (None if the device does not serve the one asked for), `asked`, `obstacle`, `supported` (name of the
    known combination or None), `why` (why it is listed), `known` (names of the lane's combinations), `environment`,
    `subjects`: for each its name, `refused` (a message or None), `provenance`, `required_cases` (None without a
    manifest), and `operators`: operator -> {'runs', 'why'}.
    """
    obstacle = found.obstacle or _activation_fault(court, found.lane)
    subjects = _subjects(root, settings, found.lane, court) if found.lane and not obstacle else []
    loaded = next((item['provenance'].get('version') for item in subjects
                   if item['name'] == 'stock' and item['provenance']), None)
    environment = as_loaded(found.environment, found.lane, loaded)
    known = [item for item in combinations() if found.lane is None or item['lane'] == found.lane.value]
    supported = environment.get('supported')
    return {
        'asked': settings.lane.value,
        'lane': found.lane.value if found.lane and not obstacle else None,
        'obstacle': obstacle,
        'supported': supported,
        'why': next((item['why'] for item in known if item['name'] == supported), None),
        'known': [item['name'] for item in known],
        'environment': dict(environment),
        'subjects': subjects,
    }


def _activation_fault(court: Court, lane: Lane) -> str | None:
    """Why this process cannot be prepared for `lane`, whatever the cause; None if it now is."""
    try:
        court.activate(lane)
    except Exception as error:
        return f'lane {lane.value} cannot be activated: {type(error).__name__}: {error}'
    return None


def _subjects(root: Path, settings: Settings, lane: Lane, court: Court) -> list[dict[str, Any]]:
    trials = Trials(court, settings, lane, plan=False)
    return [_subject(root, lane, facts, court.operators()) for facts in trials.load_all()]


def _subject(root: Path, lane: Lane, facts: Any, operators: Iterable[str]) -> dict[str, Any]:
    cases = _required(root, lane, facts)
    return {'name': facts.name, 'spec': facts.spec, 'refused': facts.refused, 'provenance': facts.provenance,
            'required_cases': cases,
            'operators': {operator: _operator(facts, operator) for operator in operators}}


def _operator(facts: Any, operator: str) -> dict[str, Any]:
    if facts.refused:
        return {'runs': False, 'why': f'{facts.name} cannot be put on trial: {facts.refused}'}
    if operator not in facts.offers:
        return {'runs': False, 'why': f'{facts.name} does not offer it'}
    return {'runs': True, 'why': f'{facts.name} offers it'}


def _required(root: Path, lane: Lane, facts: Any) -> int | None:
    """How many cases the subject owes. A module owes those of its operators: suites/*/test_<operator>.py."""
    try:
        nodeids = load(root, lane, facts.name)
    except ManifestInvalid:
        return None
    if facts.name == 'module' and not facts.refused:
        files = {f'test_{operator}.py' for operator in facts.offers}
        nodeids = [nodeid for nodeid in nodeids if nodeid.split('::')[0].split('/')[-1] in files]
    return len(nodeids)


def text(report: dict[str, Any]) -> str:
    """The report for a person."""
    lines = [f'lane: {report["lane"] or "none"} (asked for: {report["asked"]})']
    if report['obstacle']:
        lines.append(f'  why not: {report["obstacle"]}')
    if report['supported']:
        lines += ['supported combination: yes', f'  {report["supported"]}']
    else:
        lines += ['supported combination: no', '  known for this lane: ' + '; '.join(report['known'])]
    lines.append('environment:')
    lines += [f'  {key}: {value}' for key, value in report['environment'].items()
              if key not in ('lane', 'supported') and value is not None]
    lines += [line for subject in report['subjects'] for line in _subject_lines(subject)]
    if not report['subjects']:
        lines.append('subjects: not looked at, since there is no lane to try them on')
    return '\n'.join(lines)


def _subject_lines(subject: dict[str, Any]) -> list[str]:
    code = subject['provenance'] or {}
    cases = subject['required_cases']
    owed = 'no manifest' if cases is None else f'{cases} required cases'
    if subject['refused']:
        return [f'subject {subject["spec"]}: refused ({owed} stay unjudged)', f'  {subject["refused"]}']
    lines = [f'subject {subject["spec"]} {code.get("version", "")}: {owed}', f'  {code.get("path", "")}']
    return lines + [f'  {"runs" if item["runs"] else "does not run"}: {operator} ({item["why"]})'
                    for operator, item in subject['operators'].items()]
