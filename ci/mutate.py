"""`bitgate mutate`: plant one fault at a time, and count what the suites notice."""
from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ci.mutation import MutationRequest, Result, State, mutate, prepare
from ci.options import LaneOption, SourceOption, usage
from ci.outdir import write_whole
from ci.preflight import Preflight, preflight
from ci.processes import usable_cores
from ci.settings import CHECKOUT, Settings, UsageFault, settings_from
from ci.upstream import NoCheckout, require_gpu
from harness.evidence.verdicts import Outcome
from harness.lanes.lane import Lane
from harness.mutants.fault import CatalogueInvalid, Fault, Impossible, built_in, chosen, load
from harness.mutants.rewrite import DoesNotApply
from harness.mutants.tree import root_of

_MOST_JOBS_ON_A_GPU = 14
_EXIT_SURVIVED, _EXIT_UNJUDGED = 1, 3
_TOOL = 'bitgate mutate'


def mutate_command(
    subject: Annotated[list[str] | None, typer.Option('--subject', metavar='SUBJECT', help=(
        'Whose faults: stock or candidate. May be given again. Default: both.'))] = None,
    ids: Annotated[list[str] | None, typer.Option('--ids', metavar='PATTERN', help=(
        "Only faults with such an id, for example 'K19-*'. May be given again."))] = None,
    catalogue: Annotated[Path | None, typer.Option('--catalogue', metavar='FILE', help=(
        'Faults of your own, in place of those of this repository; docs/sensitivity.md shows the format.'))] = None,
    sample: Annotated[int | None, typer.Option(min=1, metavar='N', help=(
        'Only N of the faults, always the same, spread over all of them.'))] = None,
    lane: LaneOption = None,
    lmdeploy_src: SourceOption = None,
    upstream: Annotated[str | None, typer.Option('--upstream', metavar='CHECKOUT', help=(
        "Ask lmdeploy's own kernel tests of this checkout in place of the suites; sm90 and stock only."))] = None,
    jobs: Annotated[int | None, typer.Option('-j', '--jobs', min=1, metavar='N', help=(
        'Processes at a time. Default: one a core.'))] = None,
    timeout: Annotated[float, typer.Option('--timeout', min=1, help='Seconds for each case of a mutant.')] = 240,
    out: Annotated[Path | None, typer.Option('--out', metavar='DIR', help=(
        'Where what the mutants left is kept: an absent or empty folder. Default: a folder that is removed.'))] = None,
    as_json: Annotated[Path | None, typer.Option('--json', metavar='FILE', help='Write the results there.')] = None,
) -> None:
    """Plant faults and count: exit 0 if every fault is noticed, 1 if one survives, 2 usage, 3 UNJUDGED."""
    try:
        settings = settings_from(lane, subject, lmdeploy_src, os.environ, upstream)
        loaded = load(catalogue) if catalogue else built_in()
        subjects = ('stock', ) if settings.upstream else settings.subject_names
        faults = sampled(chosen(loaded, subjects, tuple(ids or ())), sample)
        _check(settings, faults, out, as_json)
    except (UsageFault, CatalogueInvalid, DoesNotApply) as fault:
        raise usage(UsageFault(str(fault)), _TOOL) from None
    ground = _looked_at(settings)
    if ground.lane is None:
        typer.echo(f'UNJUDGED[{settings.lane.value}]: WRONG_DEVICE: {ground.obstacle}')
        raise typer.Exit(_EXIT_UNJUDGED)
    if settings.upstream:
        try:
            require_gpu(ground.lane)
        except NoCheckout as fault:
            raise usage(UsageFault(str(fault)), _TOOL) from None
    began = time.perf_counter()
    with _folder(out) as folder, _shared_cache():
        results = _run(settings, ground.lane, faults, folder, jobs, timeout)
    seconds = time.perf_counter() - began
    if as_json:
        told = _as_dict(results, loaded.impossible, settings, ground, seconds)
        write_whole(as_json, json.dumps(told, indent=1) + '\n')
    for line in summary(results, ground.lane, seconds):
        typer.echo(line)
    raise typer.Exit(exit_code(results))


def _check(settings: Settings, faults: tuple[Fault, ...], out: Path | None, as_json: Path | None) -> None:
    if 'module' in settings.subject_names:
        raise UsageFault('--subject: expected stock or candidate, found a module')
    if not faults:
        raise UsageFault('expected faults of the subjects asked for, found none in the catalogue')
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageFault(f'--out: expected an absent or empty folder, found {out}')
    if as_json and not (as_json.parent.is_dir() and os.access(as_json.parent, os.W_OK) and not as_json.is_dir()):
        raise UsageFault(f'--json: expected a file in a folder that can be written to, found {as_json}')


def sampled(faults: tuple[Fault, ...], sample: int | None) -> tuple[Fault, ...]:
    """`sample` of the faults: those whose ids have the smallest checksums, whatever else is in the catalogue."""
    if sample is None:
        return faults
    picked = set(sorted((fault.id for fault in faults), key=lambda text: zlib.crc32(text.encode()))[:sample])
    return tuple(fault for fault in faults if fault.id in picked)


def _looked_at(settings: Settings) -> Preflight:
    """The preflight, in a process of its own: this one forks, and must not touch CUDA."""
    with multiprocessing.get_context('fork').Pool(1) as pool:
        return pool.apply(preflight, (settings.lane, ))


@contextlib.contextmanager
def _folder(out: Path | None):
    if out is None:
        with tempfile.TemporaryDirectory(prefix='bitgate-mutants-') as folder:
            yield Path(folder)
        return
    out.mkdir(parents=True, exist_ok=True)
    yield out.resolve()


@contextlib.contextmanager
def _shared_cache():
    """One Triton cache for all mutants: they differ in one kernel, and have the others in common."""
    with tempfile.TemporaryDirectory(prefix='bitgate-triton-') as cache:
        os.environ.setdefault('TRITON_CACHE_DIR', cache)
        yield


def _run(settings: Settings, lane: Lane, faults: tuple[Fault, ...], folder: Path, jobs: int | None,
         test_limit_s: float) -> tuple[Result, ...]:
    most = usable_cores() if lane is Lane.CPU else min(usable_cores(), _MOST_JOBS_ON_A_GPU)
    with contextlib.redirect_stdout(sys.stderr):
        prepare(lane)
    stock_root = settings.lmdeploy_src or root_of('stock')
    request = MutationRequest(faults, lane, stock_root, CHECKOUT, folder, jobs or most, test_limit_s=test_limit_s,
                              upstream=settings.upstream)
    told = 0

    def say(result: Result) -> None:
        nonlocal told
        told += 1
        typer.echo(f'[{told:>{len(str(len(faults)))}}/{len(faults)}] {_line(result)}')

    return mutate(request, say)


def _line(result: Result) -> str:
    times = f' in {result.kills} of {result.runs} runs' if result.runs > 1 else ''
    if result.state is State.KILLED:
        return (f'{"killed":<9} {result.fault.id}{times}, {result.seconds:.1f} s: {result.reason} in '
                f'{result.case.rpartition("/")[2]}')
    if result.state is State.ELSEWHERE:
        return f'{"elsewhere":<9} {result.fault.id}: shows on {", ".join(result.fault.lanes)} only'
    first = result.message.strip().splitlines()[0] if result.message.strip() else ''
    return f'{result.state.value:<9} {result.fault.id}{times}, {result.seconds:.1f} s{": " if first else ""}{first}'


def summary(results: tuple[Result, ...], lane: Lane, seconds: float) -> list[str]:
    """A row for every guarding operator (the first guard of a fault), then what is not killed, then the count."""
    lines = ['', f'{"operator":<36}' + ''.join(f'{state.value:>{len(state.value) + 2}}' for state in State)]
    for operator in sorted({result.fault.guards[0] for result in results}):
        found = Counter(result.state for result in results if result.fault.guards[0] == operator)
        lines.append(f'{operator:<36}' + ''.join(f'{found[state] or "":>{len(state.value) + 2}}' for state in State))
    found = Counter(result.state for result in results)
    lines.append('')
    lines += [_line(result) for result in results
              if result.state in (State.SURVIVED, State.INVALID, State.UNJUDGED)]
    judged = found[State.KILLED] + found[State.SURVIVED]
    lines.append(f'{verdict_of(results).value}[{lane.value}]: {found[State.KILLED]} of {judged} faults noticed, '
                 + ', '.join(f'{found[state]} {state.value}' for state in State
                             if state not in (State.KILLED, State.SURVIVED) and found[state])
                 + f'{"; " if len(found) > 1 else ""}{seconds:.0f} s')
    return lines


def verdict_of(results: tuple[Result, ...]) -> Outcome:
    """BROKEN if a fault survives, UNJUDGED if something cannot be said or nothing was tried, PASS otherwise."""
    found = {result.state for result in results}
    if State.SURVIVED in found:
        return Outcome.BROKEN
    return Outcome.PASS if State.KILLED in found and not found & {State.INVALID, State.UNJUDGED} else Outcome.UNJUDGED


def exit_code(results: tuple[Result, ...]) -> int:
    return {Outcome.PASS: 0, Outcome.BROKEN: _EXIT_SURVIVED}.get(verdict_of(results), _EXIT_UNJUDGED)


def _as_dict(results: tuple[Result, ...], impossible: tuple[Impossible, ...], settings: Settings, ground: Preflight,
             seconds: float) -> dict:
    return {'tool': _TOOL, 'lane': ground.lane.value, 'environment': dict(ground.environment),
            'asked': 'upstream' if settings.upstream else 'suites', 'seconds': seconds,
            'verdict': verdict_of(results).value,
            'results': [{'id': r.fault.id, 'subject': r.fault.subject, 'kind': r.fault.kind, 'guards': r.fault.guards,
                         'state': r.state.value, 'case': r.case, 'reason': r.reason, 'seconds': r.seconds,
                         'kills': r.kills, 'runs': r.runs, 'message': r.message} for r in results],
            'impossible': [item.model_dump() for item in impossible]}
