"""The `bitgate` command. Options and the environment are read here, into typed values, and nowhere deeper."""
from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from ci.change import check_change
from ci.court import HarnessCourt
from ci.doctor import examine
from ci.doctor import text as doctor_text
from ci.exhaust import exhaust
from ci.mutate import mutate_command
from ci.options import LaneOption, SourceOption, usage
from ci.plan import PlanFailed, collect, compare
from ci.plan import write as write_manifests
from ci.preflight import preflight
from ci.runner import RunRequest
from ci.runner import run as run_request
from ci.settings import CHECKOUT, Settings, UsageFault, settings_from

EXIT_DIFFERS, EXIT_UNJUDGED = 1, 3

app = typer.Typer(name='bitgate', no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="A merge gate for lmdeploy's Block-FP8 mixture-of-experts kernels: are the bits still right?")

SubjectOption = Annotated[list[str] | None, typer.Option('--subject', metavar='SUBJECT', help=(
    'Who is on trial: stock, candidate or module:PATH. May be given again. Default: stock and candidate.'))]
RootOption = Annotated[Path, typer.Option('--root', hidden=True, help='Folder of suites/ and ci/required/.')]
UpstreamOption = Annotated[str | None, typer.Option('--upstream', metavar='CHECKOUT', help=(
    "A checkout of lmdeploy whose own kernel tests run too, against the lmdeploy on trial; sm90 only."))]
SuitesOption = Annotated[list[str] | None, typer.Option('--suites', metavar='NAME', help=(
    'Only the folder suites/NAME. May be given again. The verdict says that it is partial.'))]
OutOption = Annotated[Path, typer.Option('--out', metavar='DIR', help='Where the artifacts go.')]
WorkersOption = Annotated[str, typer.Option('-n', '--workers', metavar='N', help="Worker processes, or 'auto'.")]
DeadlineOption = Annotated[float, typer.Option('--deadline', min=1, help='Seconds for the whole session.')]
TimeoutOption = Annotated[float, typer.Option('--timeout', min=1, help='Seconds for each test.')]
CheckOption = Annotated[bool, typer.Option('--check', help='Fail if a manifest is not what the suites hold.')]
WriteOption = Annotated[bool, typer.Option('--write', help='Make the manifests what the suites hold.')]
JsonOption = Annotated[bool, typer.Option('--json', help='Machine-readable.')]


@app.command()
def run(lane: LaneOption = None, subject: SubjectOption = None, lmdeploy_src: SourceOption = None,
        upstream: UpstreamOption = None, suites: SuitesOption = None, out: OutOption = Path('bitgate-out'),
        workers: WorkersOption = 'auto', deadline: DeadlineOption = 3600, timeout: TimeoutOption = 600,
        root: RootOption = CHECKOUT) -> None:
    """Judge the subjects: exit 0 PASS, 1 BROKEN or MOVED, 2 usage, 3 UNJUDGED."""
    if workers != 'auto' and not workers.isdigit():
        raise usage(UsageFault(f"-n: expected a number or 'auto', found {workers!r}"))
    request = RunRequest(_settings(lane, subject, lmdeploy_src, upstream), out, tuple(suites or ()),
                         None if workers == 'auto' else int(workers), deadline, timeout, root.resolve())
    try:
        verdict = run_request(request, _say)
    except UsageFault as fault:
        raise usage(fault) from None
    raise typer.Exit(verdict.exit_code)


@app.command()
def plan(check: CheckOption = False, write: WriteOption = False, lmdeploy_src: SourceOption = None,
         upstream: UpstreamOption = None, root: RootOption = CHECKOUT) -> None:
    """Compare the required-case manifests of both lanes with what the suites hold; no GPU is needed for either."""
    if check and write:
        raise usage(UsageFault('plan: expected --check or --write, found both'))
    root = root.resolve()
    try:
        plans = collect(root, _settings(None, None, lmdeploy_src, upstream))
    except PlanFailed as failed:
        typer.echo(str(failed), err=True)
        raise typer.Exit(EXIT_UNJUDGED) from None
    changes = compare(root, plans)
    if write:
        write_manifests(root, plans)
    elif changes:
        typer.echo(changes)
    for item in plans:
        typer.echo(str(item))
    stale = 'written' if write else 'not what the suites hold'
    typer.echo(f'manifests: {stale if changes else "current"}')
    if check and changes:
        raise typer.Exit(EXIT_DIFFERS)


@app.command()
def doctor(lane: LaneOption = None, subject: SubjectOption = None, lmdeploy_src: SourceOption = None,
           as_json: JsonOption = False, root: RootOption = CHECKOUT) -> None:
    """Say what is here, which lane that means, and what would run; exit 3 if no lane or a subject cannot."""
    settings = _settings(lane, subject, lmdeploy_src)
    with contextlib.redirect_stdout(sys.stderr):    # lmdeploy logs to stdout while it is imported
        report = examine(root.resolve(), settings, preflight(settings.lane), HarnessCourt())
    typer.echo(json.dumps(report, indent=1) if as_json else doctor_text(report))
    judgeable = report['lane'] and not any(subject['refused'] for subject in report['subjects'])
    raise typer.Exit(0 if judgeable else EXIT_UNJUDGED)


app.command()(exhaust)
app.command('mutate')(mutate_command)
app.command()(check_change)


def _settings(lane: str | None, subject: list[str] | None, lmdeploy_src: str | None,
              upstream: str | None = None) -> Settings:
    try:
        return settings_from(lane, subject, lmdeploy_src, os.environ, upstream)
    except UsageFault as fault:
        raise usage(fault) from None


def _say(text: str) -> None:
    typer.echo(text)


def main() -> None:
    """Entry point of the `bitgate` command. What goes wrong in bitgate itself is UNJUDGED, never BROKEN."""
    try:
        app()
    except Exception:
        traceback.print_exc()
        typer.echo('UNJUDGED: INFRA: bitgate itself failed, see above', err=True)
        sys.exit(EXIT_UNJUDGED)
