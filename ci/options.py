"""What the commands' command lines have in common: options of one meaning, and how a usage error ends."""
from __future__ import annotations

from typing import Annotated

import typer

from ci.settings import UsageFault

EXIT_USAGE = 2

LaneOption = Annotated[str | None, typer.Option('--lane', metavar='LANE', help=(
    'auto (the default), cpu or sm90; BITGATE_LANE sets another default.'))]
SourceOption = Annotated[str | None, typer.Option('--lmdeploy-src', metavar='DIR', help=(
    'A checkout of lmdeploy to take as stock, in place of the installed one.'))]


def usage(fault: UsageFault, command: str = 'bitgate') -> typer.Exit:
    """Say what makes no sense; the exit to raise."""
    typer.echo(f'{command}: {fault}', err=True)
    return typer.Exit(EXIT_USAGE)
