"""The folder that a run leaves its artifacts in: only ever its own files, each of them whole or absent."""
from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.events import RESULTS
from ci.report import TOOL
from ci.settings import UsageFault

VERDICT, PLAN, JUNIT, SUMMARY, OUTPUT = 'verdict.json', 'plan.json', 'junit.xml', 'summary.md', 'pytest.log'
ARTIFACTS = (VERDICT, PLAN, JUNIT, SUMMARY, RESULTS, OUTPUT)


def write_whole(path: Path, text: str) -> None:
    """Write `path` so that a reader, or a kill at any moment, finds the old content or the new, never a part."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.name}.')
    try:
        with os.fdopen(descriptor, 'w', encoding='utf-8') as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """`out`, ready for a run and kept from others until the end: created, or cleared of an earlier run's artifacts.

    Nothing else in it is touched. Raises UsageFault if `out` is no folder, holds files without being the folder of an
    earlier run, or belongs to a run that is still going on.
    """
    if out.exists() and not out.is_dir():
        raise UsageFault(f'--out: expected a folder, found a file: {out}')
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        if not os.access(out, os.W_OK):
            raise PermissionError(f'{out} cannot be written to')
    except OSError as error:
        raise UsageFault(f'--out: expected a folder that can be made and written to, found {error}') from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageFault(f'--out: expected a folder that no other run is using, found one in use: {out}') from None
        _clear(out)
        yield
    finally:
        os.close(descriptor)


def _clear(out: Path) -> None:
    if not any(out.iterdir()):
        return
    if not any(_is_ours(out / name) for name in (VERDICT, PLAN)):
        raise UsageFault(f'--out: expected an empty folder or one of an earlier run, found other files in {out}')
    for name in ARTIFACTS:
        (out / name).unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get('tool') == TOOL
