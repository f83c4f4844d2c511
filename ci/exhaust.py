"""`bitgate exhaust`: the fused operator on every input, where that is finite, against stock's composition."""
from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ci.exhaust_proof import ExhaustRequest, Found, prove
from ci.exhaust_report import as_dict, exit_code, summary
from ci.options import LaneOption, SourceOption, usage
from ci.settings import SubjectSpec, UsageFault, settings_from

_SECONDS_BETWEEN_LINES = 2.0


class Part(str, Enum):
    """The parts of the proof."""

    A = 'a'
    B = 'b'
    FLOOR = 'floor'
    C = 'c'
    PACKED = 'packed'


class Storage(str, Enum):
    BF16 = 'bf16'
    FP16 = 'fp16'


class Codes(str, Enum):
    E4M3FN = 'e4m3fn'
    E5M2 = 'e5m2'


class ScaleFmt(str, Enum):
    NONE = 'none'
    UE8M0 = 'ue8m0'


def exhaust(
    lane: LaneOption = None,
    subject: Annotated[str, typer.Option('--subject', metavar='SUBJECT', help=(
        'Whose fused operator is on trial: candidate or module:PATH.'))] = 'candidate',
    lmdeploy_src: SourceOption = None,
    part: Annotated[list[Part] | None, typer.Option(help=(
        'a: every gate. b: every (gate, up) pair alone in its group. floor: every pair beside a larger partner. '
        'c: every (value, group maximum) pair. packed: every pair, 128 to a group. Repeatable. Default: all.'))] = None,
    dtype: Annotated[list[Storage] | None, typer.Option(help='Repeatable. Default: both.')] = None,
    codes: Annotated[list[Codes] | None, typer.Option(help='Repeatable. Default: both.')] = None,
    scale_fmt: Annotated[list[ScaleFmt] | None, typer.Option(help='Repeatable. Default: both.')] = None,
    gates: Annotated[str | None, typer.Option(metavar='LO:HI', help=(
        'Part b: only gates with bit patterns from LO up to HI, HI excluded; decimal or 0x...'))] = None,
    pair: Annotated[str | None, typer.Option(metavar='GATE:UP', help=(
        'Part b: only this pair of bit patterns, for example 0x3fc0:0x3f80.'))] = None,
    sample: Annotated[int | None, typer.Option(min=128, metavar='N', help=(
        'Visit a sample instead: N groups in floor, c and packed, 2 N pairs in b. The cpu lane samples always, 128 by '
        'default.'))] = None,
    seed: Annotated[int, typer.Option(min=0, help='Of the sample; its edges do not depend on it.')] = 0,
    chunk_rows: Annotated[int, typer.Option(min=1, help=(
        'Part b: at most so many rows of 128 pairs in one chunk, 64 KiB of input each.'))] = 4096,
    out: Annotated[Path | None, typer.Option('--json', metavar='OUT', help='Write the result there.')] = None,
) -> None:
    """Prove the fused operator on every input, where those are finite: exit 0 PASS, 1 BROKEN, 2 usage, 3 UNJUDGED.

    On sm90 everything is visited. On cpu part a is whole, and the others are sampled with their edges.
    """
    try:
        settings = settings_from(lane, [subject], lmdeploy_src, os.environ)
        request = ExhaustRequest(
            lane=settings.lane, subject=_with_fused_operator(settings.subjects[0]), lmdeploy_src=settings.lmdeploy_src,
            parts=_values(part, Part), storages=_values(dtype, Storage), codes=_values(codes, Codes),
            scale_fmts=tuple(None if text == 'none' else text for text in _values(scale_fmt, ScaleFmt)),
            gates=_gates(gates), pair=_pair(pair), sample=sample, seed=seed, chunk_rows=chunk_rows)
        _check_consistent(request, out)
    except UsageFault as fault:
        raise usage(fault, 'bitgate exhaust') from None
    started = time.perf_counter()
    progress = _ProgressLines(sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):  # lmdeploy logs to stdout while it is imported
        found = prove(request, progress)
    report = as_dict(request, found, time.perf_counter() - started)
    if out:
        out.write_text(json.dumps(report, indent=1) + '\n', encoding='utf-8')
    typer.echo(summary(request, found))
    raise typer.Exit(exit_code(found))


def _check_consistent(request: ExhaustRequest, out: Path | None) -> None:
    if request.pair and request.parts != ('b', ):
        raise UsageFault(f'--pair: expected --part b alone, found the parts {", ".join(request.parts)}')
    if out and not (out.parent.is_dir() and os.access(out.parent, os.W_OK) and not out.is_dir()):
        raise UsageFault(f'--json: expected a file in a folder that can be written to, found {out}')


def _values(chosen: list[Enum] | None, choices: type[Enum]) -> tuple[str, ...]:
    """Option values in the order of `choices`, each once; all of them if none was given."""
    return tuple(choice.value for choice in choices if not chosen or choice in chosen)


def _with_fused_operator(spec: SubjectSpec) -> SubjectSpec:
    if spec.name == 'stock':
        raise UsageFault('--subject: expected candidate or module:PATH, found stock, which has no fused operator and '
                         'is what the subject is compared with')
    return spec


def _gates(text: str | None) -> range:
    """'LO:HI' -> the range of bit patterns; all if None. Raises UsageFault."""
    if text is None:
        return range(65536)
    chosen = range(*_two_numbers(text))
    if not chosen or chosen.start < 0 or chosen.stop > 65536:
        raise UsageFault(f'--gates: expected LO:HI with 0 <= LO < HI <= 65536, found {text!r}')
    return chosen


def _pair(text: str | None) -> tuple[int, int] | None:
    """'GATE:UP' -> the two bit patterns. Raises UsageFault."""
    if text is None:
        return None
    chosen = _two_numbers(text)
    if not all(0 <= bits < 65536 for bits in chosen):
        raise UsageFault(f'--pair: expected GATE:UP with bit patterns of 16 bits, found {text!r}')
    return chosen


def _two_numbers(text: str) -> tuple[int, int]:
    """'A:B', decimal or 0x...; (-1, -1), which no option accepts, if that is not what the text is."""
    first, _, second = text.partition(':')
    try:
        return int(first, 0), int(second, 0)
    except ValueError:
        return -1, -1


class _ProgressLines:
    """A line for every part that is done, and where a long one stands, on stderr every few seconds."""

    def __init__(self, results: TextIO) -> None:
        self._results = results
        self._started = self._said = time.perf_counter()
        self._title = ''

    def begin(self, title: str) -> None:
        self._title = title
        typer.echo(f'{title}: begins', err=True)
        self._started = self._said = time.perf_counter()

    def step(self, visited: int, possible: int) -> None:
        now = time.perf_counter()
        if now - self._said >= _SECONDS_BETWEEN_LINES:
            self._said = now
            rate = visited / (now - self._started)
            typer.echo(f'{self._title}: {100 * visited / possible:.0f} %, {rate:.3g} a second', err=True)

    def end(self, found: Found) -> None:
        typer.echo(found.line(), file=self._results)
