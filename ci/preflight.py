"""Before anything runs: what this machine is, which lane it can judge on, and whether the versions are known."""
from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.lanes.device import probe
from harness.lanes.fingerprint import fingerprint
from harness.lanes.lane import Lane, LaneRequest, WrongDevice, resolve

SUPPORTED = Path(__file__).parent / 'supported.toml'


@dataclass(frozen=True)
class Preflight:
    """What is known before a run.

    Attributes:
        lane: the lane, or None if the device does not serve the one that was asked for.
        obstacle: why there is no lane, in plain words; None if there is one.
        environment: the fingerprint, and under 'supported' the name of the known combination or None.
    """

    lane: Lane | None
    obstacle: str | None
    environment: Mapping[str, Any]


def preflight(request: LaneRequest) -> Preflight:
    """Look at this machine. Imports torch, never triton."""
    facts = probe()
    try:
        lane, obstacle = resolve(request, facts), None
    except WrongDevice as wrong:
        lane, obstacle = None, str(wrong)
    environment = fingerprint(lane or Lane.CPU, facts)
    if lane is None:
        environment['lane'] = None
    known = supported_combination(lane, environment) if lane else None
    environment['supported'] = known['name'] if known else None
    return Preflight(lane, obstacle, environment)


def as_loaded(environment: Mapping[str, Any], lane: Lane | None, lmdeploy: str | None) -> Mapping[str, Any]:
    """`environment` with the lmdeploy that was really imported, where that is not the installed one (a checkout)."""
    if lane is None or lmdeploy is None or lmdeploy == environment.get('lmdeploy'):
        return environment
    loaded = {**environment, 'lmdeploy': lmdeploy, 'lmdeploy_installed': environment.get('lmdeploy')}
    known = supported_combination(lane, loaded)
    return loaded | {'supported': known['name'] if known else None}


def combinations() -> list[dict[str, Any]]:
    """The combinations of versions that are known to work, with the reason why each is listed."""
    return tomllib.loads(SUPPORTED.read_text(encoding='utf-8'))['combination']


def supported_combination(lane: Lane, environment: Mapping[str, Any]) -> dict[str, Any] | None:
    """The known combination that `environment` (a fingerprint) is, or None. Local build tags ('+cpu') do not count."""
    for known in combinations():
        if known['lane'] == lane.value and all(_same(environment.get(name), version)
                                               for name, version in known['versions'].items()):
            return known
    return None


def _same(found: str | None, expected: str) -> bool:
    return found is not None and found.split('+')[0] == expected
