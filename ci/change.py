"""`bitgate check-change BASE HEAD`: whitespace, conflict marks, Python that does not compile.

git is asked for both trees; the working tree is not looked at, and nothing of the change is executed.
"""
from __future__ import annotations

import os
import subprocess
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ci.options import usage
from ci.settings import UsageFault

EXIT_FINDINGS = 1
_REGULAR_FILES = ('100644', '100755')
# git's own default: what a user's or a repository's configuration says must not decide what a change is held to
_WHITESPACE = 'core.whitespace=blank-at-eol,blank-at-eof,space-before-tab'


@dataclass(frozen=True)
class Touched:
    """A regular file that the change added or altered: its path and the object that holds it in HEAD."""

    path: str
    blob: str


@dataclass(frozen=True)
class ChangeReport:
    """What was looked at.

    Attributes:
        touched: number of regular files added or altered.
        compiled: paths of those that are Python; each was byte-compiled, or stands in `findings`.
        findings: one line each, 'path:line: what is wrong'.
    """

    touched: int
    compiled: tuple[str, ...]
    findings: tuple[str, ...]

    def __str__(self) -> str:
        looked_at = f'{self.touched} files touched, {len(self.compiled)} of them Python'
        return f'{len(self.findings)} findings ({looked_at})' if self.findings else f'clean: {looked_at}'


def examine_change(repository: Path, base: str, head: str) -> ChangeReport:
    """Look at what differs between the trees of two commits.

    Raises:
        UsageFault: no git or no repository, a name that is no commit's, or two commits that hold the same files.
    """
    if not repository.is_dir():
        raise UsageFault(f'--repo: expected a git repository, found no such folder: {repository}')
    commits = [_commit(repository, *named) for named in (('BASE', base), ('HEAD', head))]
    changed = _git(repository, 'diff', '--raw', '-z', '--no-abbrev', '--no-renames', '--no-ext-diff', *commits)
    if not changed:
        raise UsageFault(f'BASE and HEAD: expected two commits that differ, found the same files in {base} and {head}')
    touched = parse_raw(changed)
    python = [item for item in touched if item.path.endswith('.py')]
    checked = _run(repository, '-c', _WHITESPACE, 'diff', '--check', '--no-ext-diff', '--no-textconv', '--no-color',
                   *commits)
    if checked.returncode not in (0, EXIT_FINDINGS, 2):    # git says 2 for findings of --check
        raise UsageFault(f'git diff --check failed: {_text(checked.stderr)}')
    findings = [line for line in _text(checked.stdout).splitlines() if line and line[0] not in '+-']
    if checked.returncode and not findings:
        findings = ['git diff --check ended with findings, and did not say which']
    for item in python:
        fault = syntax_fault(item.path, _git(repository, 'cat-file', 'blob', item.blob))
        findings += [fault] if fault else []
    return ChangeReport(len(touched), tuple(item.path for item in python), tuple(findings))


def parse_raw(output: bytes) -> list[Touched]:
    """The regular files that are in HEAD, from `git diff --raw -z`: links, submodules and removals are left out."""
    fields = output.decode('utf-8', 'surrogateescape').split('\0')
    touched = []
    for facts, path in zip(fields[0::2], fields[1::2], strict=False):
        _, mode, _, blob, _ = facts.split(' ')
        if mode in _REGULAR_FILES:
            touched.append(Touched(path, blob))
    return touched


def syntax_fault(path: str, source: bytes) -> str | None:
    """Why this source cannot be byte-compiled by the running Python, as 'path:line: text'; None if it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')    # a warning is none of ours, and must not become an error
            compile(source, path, 'exec', dont_inherit=True)
    except SyntaxError as error:
        return f'{path}:{error.lineno or 1}: does not compile: {error.msg}'
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        return f'{path}:1: does not compile: {type(error).__name__}: {error}'
    return None


def _commit(repository: Path, which: str, name: str) -> str:
    found = _run(repository, 'rev-parse', '--verify', '--quiet', '--end-of-options', f'{name}^{{commit}}')
    if found.returncode == 0:
        return _text(found.stdout).strip()
    inside = _run(repository, 'rev-parse', '--git-dir')
    if inside.returncode:
        raise UsageFault(f'--repo: expected a git repository, found {repository}: {_text(inside.stderr).strip()}')
    raise UsageFault(f'{which}: expected a commit of {repository}, found {name!r}')


def _git(repository: Path, *arguments: str) -> bytes:
    done = _run(repository, *arguments)
    if done.returncode:
        raise UsageFault(f'git {arguments[0]} failed: {_text(done.stderr).strip()}')
    return done.stdout


def _run(repository: Path, *arguments: str) -> subprocess.CompletedProcess:
    # GIT_DIR and its like would point git at another repository than the one that was named
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith('GIT_') or key.startswith('GIT_CONFIG')}
    try:
        return subprocess.run(['git', '-C', str(repository), *arguments], env=environment | {'LC_ALL': 'C'},
                              stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except FileNotFoundError:
        raise UsageFault('check-change: expected git on the PATH, found none') from None


def _text(output: bytes) -> str:
    return output.decode('utf-8', 'backslashreplace')


BaseArgument = Annotated[str, typer.Argument(metavar='BASE', help='The commit that the change starts from.')]
HeadArgument = Annotated[str, typer.Argument(metavar='HEAD', help='The commit that holds the change.')]
RepositoryOption = Annotated[Path, typer.Option('--repo', metavar='DIR', help='The repository.')]


def check_change(base: BaseArgument, head: HeadArgument, repo: RepositoryOption = Path('.')) -> None:
    """Whitespace and byte-compilation of what differs between two commits: exit 0 clean, 1 findings, 2 usage."""
    try:
        report = examine_change(repo, base, head)
    except UsageFault as fault:
        raise usage(fault) from None
    for finding in report.findings:
        typer.echo(finding)
    typer.echo(str(report))
    raise typer.Exit(EXIT_FINDINGS if report.findings else 0)
