"""`bitgate plan`: what the suites hold for every lane and subject, against the reviewed manifests."""
from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ci.events import RESULTS, Collected, CollectFailed, read
from ci.execute import pytest_command
from ci.manifest import (
    SUBJECT_NAMES,
    difference,
    manifest_path,
    render,
    render_upstream,
    upstream_manifest_path,
)
from ci.outdir import write_whole
from ci.settings import Settings
from ci.upstream import UPSTREAM, is_upstream
from harness.lanes.lane import Lane

_DEADLINE_S = 300.0


class PlanFailed(Exception):
    """The suites cannot be collected whole, so there is no plan to compare or to write."""


@dataclass(frozen=True)
class Plan:
    """The cases of one lane and subject, and the manifest that they belong to. Upstream's tests have no lane."""

    lane: Lane | None
    subject: str
    nodeids: tuple[str, ...]

    def path(self, root: Path) -> Path:
        return manifest_path(root, self.lane, self.subject) if self.lane else upstream_manifest_path(root)

    def text(self) -> str:
        return render(self.lane, self.subject, self.nodeids) if self.lane else render_upstream(self.nodeids)

    def __str__(self) -> str:
        name = f'{self.lane.value}-{self.subject}' if self.lane else self.subject
        return f'{name}: {len(self.nodeids)} cases'


def collect(root: Path, settings: Settings) -> list[Plan]:
    """The plans of both lanes for every kind of subject, collected on whatever device this is; upstream's if asked for.

    Raises PlanFailed if a file cannot be collected, a subject cannot be loaded, or nothing was collected.
    """
    plans = [plan for lane in Lane for plan in _collect_lane(root, lane, settings)]
    return list({(plan.lane, plan.subject): plan for plan in plans}.values())


def compare(root: Path, plans: list[Plan]) -> str:
    """What differs between the plans and the reviewed manifests, as unified diffs; empty if nothing does."""
    texts = []
    for plan in plans:
        path = plan.path(root)
        reviewed = path.read_text(encoding='utf-8') if path.exists() else ''
        texts.append(difference(str(path.relative_to(root)), reviewed, plan.text()))
    return '\n'.join(text for text in texts if text)


def write(root: Path, plans: list[Plan]) -> None:
    """Make the manifests what the plans are."""
    for plan in plans:
        path = plan.path(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, plan.text())


def _collect_lane(root: Path, lane: Lane, settings: Settings) -> list[Plan]:
    with tempfile.TemporaryDirectory(prefix='bitgate-plan-') as folder:
        arguments = [f'--plan-lane={lane.value}', f'--bitgate-out={folder}', '-n', '0']
        if settings.lmdeploy_src:
            arguments.append(f'--lmdeploy-src={settings.lmdeploy_src}')
        if settings.upstream:
            arguments.append(f'--upstream={settings.upstream}')
        status, output = _run(pytest_command(arguments), root)
        log = read(Path(folder) / RESULTS)
    failures = [f'{event.nodeid}: {event.message}' for event in log.of(CollectFailed)]
    plans = log.of(Collected)
    if plans:
        failures += [f'{subject.name} cannot be put on trial: {subject.refused}'
                     for subject in plans[-1].subjects if subject.refused]
    if failures or status or not plans or not plans[-1].judged:
        told = '\n'.join(failures) or output[-4000:]
        raise PlanFailed(f'lane {lane.value} cannot be planned:\n{told}')
    judged = plans[-1].judged
    planned = [Plan(lane, subject, tuple(sorted(nodeid for nodeid, name in judged.items() if name in (subject, None))))
               for subject in SUBJECT_NAMES]
    theirs = tuple(sorted(filter(is_upstream, judged)))
    return planned + ([Plan(None, UPSTREAM, theirs)] if theirs else [])


def _run(command: list[str], root: Path) -> tuple[int, str]:
    # pytest's own variables could narrow the session from outside the command line
    inherited = {key: value for key, value in os.environ.items() if not key.startswith('PYTEST_')}
    environment = inherited | {'PYTHONPATH': os.pathsep.join([str(root), str(Path(__file__).resolve().parents[1]),
                                                               os.environ.get('PYTHONPATH', '')])}
    try:
        done = subprocess.run(command, cwd=root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        raise PlanFailed(f'collecting took more than {_DEADLINE_S:g} s') from None
    return done.returncode, done.stdout
