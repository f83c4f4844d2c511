"""What a user may ask for, as typed values. Command lines and the environment are read into these once, at the edge."""
from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ci.manifest import SUBJECT_NAMES
from ci.upstream import NoCheckout, checkout_of, is_upstream
from harness.lanes.lane import Lane, LaneRequest

CHECKOUT = Path(__file__).resolve().parents[1]
LANE_VARIABLE = 'BITGATE_LANE'


class UsageFault(ValueError):
    """A value that was asked for makes no sense. The message names it, what was expected and what was found."""


@dataclass(frozen=True)
class SubjectSpec:
    """A subject as asked for: 'stock', 'candidate' or 'module:PATH'. `path` is absolute, None but for modules."""

    name: str
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> SubjectSpec:
        """Raises UsageFault unless `text` is one of the three forms."""
        name, colon, path = text.partition(':')
        if name not in SUBJECT_NAMES or (name == 'module') != bool(colon and path):
            raise UsageFault(f'--subject: expected stock, candidate or module:PATH, found {text!r}')
        return cls(name, Path(path).resolve() if path else None)

    def __str__(self) -> str:
        return f'{self.name}:{self.path}' if self.path else self.name


DEFAULT_SUBJECTS = (SubjectSpec('stock'), SubjectSpec('candidate'))


@dataclass(frozen=True)
class Settings:
    """Who is on trial, and where.

    Attributes:
        lane: the lane asked for.
        subjects: at most one of each name.
        lmdeploy_src: a checkout of lmdeploy to try in place of the installed one, absolute, or None.
        upstream: a checkout of lmdeploy whose kernel tests run beside the suites, absolute, or None.
    """

    lane: LaneRequest = LaneRequest.AUTO
    subjects: tuple[SubjectSpec, ...] = DEFAULT_SUBJECTS
    lmdeploy_src: Path | None = None
    upstream: Path | None = None

    @property
    def subject_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.subjects)

    def on(self, lane: Lane) -> Settings:
        """The same settings with the lane that was chosen in place of the one that was asked for."""
        return replace(self, lane=LaneRequest(lane.value))

    def arguments(self) -> list[str]:
        """The pytest arguments that ask for exactly this."""
        arguments = [f'--lane={self.lane.value}'] + [f'--subject={spec}' for spec in self.subjects]
        arguments += [f'--lmdeploy-src={self.lmdeploy_src}'] if self.lmdeploy_src else []
        return arguments + ([f'--upstream={self.upstream}'] if self.upstream else [])

    def reproduce(self, nodeid: str) -> str:
        """The one command that runs exactly the test `nodeid` under these settings."""
        words = [_interpreter(), '-m', 'pytest', '--lane', self.lane.value]
        # With '=': a folder that stands alone is one of tests to pytest until it knows the option, and moves its root
        if self.lmdeploy_src:
            words.append(f'--lmdeploy-src={self.lmdeploy_src}')
        if self.upstream and is_upstream(nodeid):
            words.append(f'--upstream={self.upstream}')
        if any(spec not in DEFAULT_SUBJECTS for spec in self.subjects):
            words += [word for spec in self.subjects for word in ('--subject', str(spec))]
        return shlex.join([*words, nodeid])


def _interpreter() -> str:
    """How a reader in the checkout calls this Python: by path if it lives there (tox's does), else as 'python'."""
    running = Path(sys.executable)
    return str(running.relative_to(CHECKOUT)) if running.is_relative_to(CHECKOUT) else 'python'


def settings_from(lane: str | None, subjects: list[str] | None, lmdeploy_src: str | None,
                  environment: dict[str, str] | os._Environ, upstream: str | None = None) -> Settings:
    """Settings from option texts (None: not given) and the environment. Raises UsageFault for a value of no sense."""
    asked = lane or environment.get(LANE_VARIABLE) or LaneRequest.AUTO.value
    try:
        request = LaneRequest(asked)
    except ValueError:
        source = '--lane' if lane else LANE_VARIABLE
        raise UsageFault(f'{source}: expected auto, cpu or sm90, found {asked!r}') from None
    specs = tuple(dict.fromkeys(SubjectSpec.parse(text) for text in subjects or ())) or DEFAULT_SUBJECTS
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise UsageFault(f'--subject: expected each kind of subject at most once, found {", ".join(map(str, specs))}')
    source = Path(lmdeploy_src).resolve() if lmdeploy_src else None
    if source and not source.is_dir():
        raise UsageFault(f'--lmdeploy-src: expected a folder, found {lmdeploy_src!r}')
    try:
        return Settings(request, specs, source, checkout_of(upstream) if upstream is not None else None)
    except NoCheckout as fault:
        raise UsageFault(str(fault)) from None
