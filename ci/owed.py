"""What a run owes: the reviewed manifests of its lane and subjects, narrowed to what was asked for."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ci.judge import Owed, Problem
from ci.manifest import ManifestInvalid, load, load_upstream
from ci.upstream import UPSTREAM
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane


def owed_by(root: Path, lane: Lane, subjects: Sequence[str], suites: Sequence[str] = (),
            upstream: bool = False) -> Owed:
    """What `lane` owes for `subjects` ('stock', ...), of the folders suites/<name> named in `suites` (all if empty).

    With `upstream`, the known tests of lmdeploy's own are owed too; in `suites` they are called 'upstream'.
    """
    required: dict[str, str | None] = {}
    problems = []
    for subject in subjects:
        try:
            nodeids = load(root, lane, subject)
        except ManifestInvalid as fault:
            problems.append(Problem(Reason.MISSING, str(fault)))
            continue
        for nodeid in nodeids:
            # a test that tries no subject stands in every manifest
            required[nodeid] = None if nodeid in required else subject
    if upstream:
        try:
            required |= dict.fromkeys(load_upstream(root), UPSTREAM)
        except ManifestInvalid as fault:
            problems.append(Problem(Reason.MISSING, str(fault)))
    if suites:
        folders = tuple(f'{UPSTREAM}/' if suite == UPSTREAM else f'suites/{suite}/' for suite in suites)
        required = {nodeid: subject for nodeid, subject in required.items() if nodeid.startswith(folders)}
    partial = f'suites {", ".join(suites)} only' if suites else None
    return Owed(lane.value, tuple(subjects), required, partial, tuple(problems))
