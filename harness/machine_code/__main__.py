"""python -m harness.machine_code: the fused kernel, compiled for sm_90 in every configuration of the catalogue."""
from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import triton
import typer

from harness.machine_code.catalogue_launches import (
    CANDIDATE,
    OPERATOR,
    LauncherAbsent,
    UnknownCase,
    catalogue_launches,
    load_launcher,
)
from harness.machine_code.compile import CompilationFailed, compile_for_sm90
from harness.machine_code.launches import Interpreted, distinct

# Triton holds the GIL while it compiles; what overlaps is nvdisasm, which takes three quarters of the time.
_WORKERS = 2


def builds(module: str, case_ids: frozenset[str] | None) -> list[dict]:
    """Compile every distinct build of one launcher. One dict per build: its machine code, and who launches it.

    Keys beside those of `MachineCode`: `module`, `constants`, `options`, `cases` (ids) and `grids` of the launches.
    """
    launches = [(case_id, launch) for case_id, recorded in catalogue_launches(load_launcher(module), case_ids).items()
                for launch in recorded]
    if not launches:
        raise LauncherAbsent(f'{module}: expected {OPERATOR} to launch a Triton kernel, found no launch')
    users: dict[str, list] = {}
    for case_id, launch in launches:
        users.setdefault(launch.specialization.key, []).append((case_id, launch))
    specializations = distinct(launch for _, launch in launches)
    typer.echo(f'{module}: compiling {len(specializations)} builds of {len(launches)} launches', err=True)
    with tempfile.TemporaryDirectory() as cache, triton.knobs.cache.scope():
        triton.knobs.cache.dir = cache  # a build that was cached by somebody else proves nothing about this source
        with ThreadPoolExecutor(_WORKERS) as pool:
            compiled = list(pool.map(compile_for_sm90, specializations))
    return [{'module': module, **code.as_dict(), 'constants': specialization.constants,
             'options': dict(specialization.options),
             'cases': [case_id for case_id, _ in users[specialization.key]],
             'grids': sorted({launch.grid for _, launch in users[specialization.key]})}
            for specialization, code in zip(specializations, compiled, strict=True)]


def main(
    module: Annotated[list[str] | None, typer.Option(help='Dotted name or file of a module with a function '
                                                     'silu_and_mul_quant. May be repeated.')] = None,
    case: Annotated[list[str] | None, typer.Option(help='Only this case of the catalogue. May be repeated.')] = None,
    as_json: Annotated[bool, typer.Option('--json', help='Print JSON instead of a table.')] = False,
    out: Annotated[Path | None, typer.Option(help='Write there instead of printing.')] = None,
) -> None:
    """Registers, spills and instruction hash of the fused kernel for sm_90. Needs no GPU and no driver."""
    case_ids = frozenset(case) if case else None
    try:
        rows = [row for name in module or [CANDIDATE] for row in builds(name, case_ids)]
    except (LauncherAbsent, UnknownCase, Interpreted, CompilationFailed) as error:
        typer.echo(f'error: {error}', err=True)
        raise typer.Exit(2) from error
    text = json.dumps(rows, indent=1, default=str) if as_json else _table(rows)
    if out:
        out.write_text(text + '\n')
    else:
        typer.echo(text)


def _table(rows: list[dict]) -> str:
    lines = ['registers  spills  shared  instructions  sha256            build']
    lines += [f'{row["registers"]:9}  {row["spills"]:6}  {row["shared"]:6}  {row["instructions"]:12}  '
              f'{row["sha256"][:16]}  {row["name"]}' for row in rows]
    versions = sorted({f'triton {row["triton"]}, ptxas {row["ptxas"]}' for row in rows})
    return '\n'.join(lines + [f'{len(rows)} builds, {len({row["sha256"] for row in rows})} different; ' +
                              '; '.join(versions)])


if __name__ == '__main__':
    typer.run(main)
