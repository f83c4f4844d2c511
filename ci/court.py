"""What the runner asks of the harness: lanes, subjects and catalogues, behind one small protocol.

The pytest plugin takes its court from the hook `pytest_bitgate_court`, so that the runner's own tests can put the real
plugin, workers and judge to work on a small court of their own.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ci.settings import SubjectSpec
from harness.lanes.lane import Lane, LaneRequest


class Court(Protocol):
    """Where cases come from and who can be tried."""

    def operators(self) -> tuple[str, ...]:
        """The operators that can be on trial."""

    def choose(self, request: LaneRequest) -> Lane:
        """The lane to judge on. Raises harness.lanes.lane.WrongDevice."""

    def activate(self, lane: Lane) -> Any:
        """Prepare this process for `lane`, before anything imports triton; returns the torch.device of the lane."""

    def load(self, spec: SubjectSpec, lmdeploy_src: Path | None) -> Any:
        """The subject, after `activate`. Raises if it cannot be put on trial; the message says why."""

    def catalogue(self, operator: str) -> tuple[Any, ...]:
        """Every `harness.contracts.case.Case` of the operator, of all lanes."""


class HarnessCourt:
    """The court of this repository. Imports late: triton must not be imported before `activate`."""

    def operators(self) -> tuple[str, ...]:
        from harness.subjects.protocol import OPERATORS
        return OPERATORS

    def choose(self, request: LaneRequest) -> Lane:
        from harness.lanes.device import probe
        from harness.lanes.lane import resolve
        return resolve(request, probe())

    def activate(self, lane: Lane) -> Any:
        from harness.lanes.activation import activate
        return activate(lane)

    def load(self, spec: SubjectSpec, lmdeploy_src: Path | None) -> Any:
        from harness.subjects import load
        return load(str(spec), lmdeploy_src)

    def catalogue(self, operator: str) -> tuple[Any, ...]:
        from harness.contracts import catalogue
        return catalogue(operator)
