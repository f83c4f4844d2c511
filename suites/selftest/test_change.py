"""`bitgate check-change` on real git repositories: what is wrong with a change is found, in the change alone."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ci.change import ChangeReport, examine_change
from ci.cli import app
from ci.settings import UsageFault

GOOD = 'def double(n):\n    return 2 * n\n'


class Repository:
    """A repository with one commit, `base`; every `commit` answers with its name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git('init', '--quiet', '--initial-branch=main')
        # whatever stands here was there before the change, and is not what it is held to
        self.base = self.commit({'old.py': 'def (:  \n', 'kept.py': GOOD, 'moved.py': GOOD})

    def git(self, *arguments: str) -> str:
        given = {'user.name': 'a', 'user.email': 'a@b', 'commit.gpgsign': 'false', 'core.hooksPath': '/x'}
        identity = [word for key, value in given.items() for word in ('-c', f'{key}={value}')]
        return subprocess.run(['git', '-C', str(self.path), *identity, *arguments], check=True, text=True,
                              capture_output=True).stdout.strip()

    def commit(self, files: dict[str, str | bytes | None]) -> str:
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.git('add', '--all')
        self.git('commit', '--quiet', '--message', 'a change')
        return self.git('rev-parse', 'HEAD')

    def examine(self, files: dict[str, str | bytes | None]) -> ChangeReport:
        return examine_change(self.path, self.base, self.commit(files))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / 'repository')


def test_a_clean_change(repository: Repository):
    report = repository.examine({'kept.py': GOOD + '\n\ndouble(3)\n', 'ä b/new.py': GOOD, 'notes.txt': 'text\n'})
    assert report == ChangeReport(3, ('kept.py', 'ä b/new.py'), ())
    assert str(report) == 'clean: 3 files touched, 2 of them Python'


@pytest.mark.parametrize(('source', 'told'), [
    ('def double(n):\n    return 2 *\n', 'kept.py:2: does not compile: invalid syntax'),
    ('def double(n):\nreturn 2\n', 'kept.py:2: does not compile: expected an indented block'),
    ('x = 1\0\n', 'kept.py:1: does not compile: '),
    (b'x = "caf\xe9"\n', 'kept.py:1: does not compile: '),
    ('return 1\n', "kept.py:1: does not compile: 'return' outside function"),
    ('x = ' + '-' * 200_000 + '1\n', 'kept.py:1: does not compile: '),
])
def test_python_that_does_not_compile(repository: Repository, source: str | bytes, told: str):
    report = repository.examine({'kept.py': source})
    assert [finding[:len(told)] for finding in report.findings] == [told]


@pytest.mark.parametrize(('name', 'text', 'told'), [
    ('kept.py', GOOD + 'x = 1 \n', 'kept.py:3: trailing whitespace.'),
    ('notes.txt', 'one\n \ttwo\n', 'notes.txt:2: space before tab in indent.'),
    ('notes.txt', 'one\n\n', 'notes.txt:2: new blank line at EOF.'),
    ('notes.txt', '<<<<<<< ours\n', 'notes.txt:1: leftover conflict marker'),
])
def test_whitespace_and_conflict_marks(repository: Repository, name: str, text: str, told: str):
    assert repository.examine({name: text}).findings == (told,)


def test_no_configuration_makes_whitespace_pass(repository: Repository):
    repository.git('config', 'core.whitespace', '-blank-at-eol')
    repository.git('config', 'diff.external', 'true')
    assert repository.examine({'notes.txt': 'one \n'}).findings == ('notes.txt:1: trailing whitespace.',)


def test_only_what_the_change_holds_is_looked_at(repository: Repository):
    head = repository.commit({'moved.py': None, 'to/moved.py': GOOD, 'old.py': None})
    (repository.path / 'kept.py').write_text('def (: \n')    # the working tree is nobody's commit
    assert examine_change(repository.path, repository.base, head) == ChangeReport(1, ('to/moved.py',), ())


def test_links_are_not_compiled(repository: Repository):
    (repository.path / 'link.py').symlink_to('no such python (')
    assert repository.examine({'notes.txt': 'text\n'}).compiled == ()


def test_nothing_is_executed(repository: Repository, tmp_path: Path):
    report = repository.examine({'kept.py': f'open({str(tmp_path / "ran")!r}, "w")\n'})
    assert (report.findings, (tmp_path / 'ran').exists()) == ((), False)


def test_a_warning_is_no_finding(repository: Repository):
    assert repository.examine({'kept.py': "x = '\\d'\nassert (1, 2)\n"}).findings == ()


def test_another_repository_in_the_environment_is_not_looked_at(repository: Repository, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch):
    Repository(tmp_path / 'other')
    head = repository.commit({'notes.txt': 'one \n'})
    monkeypatch.setenv('GIT_DIR', str(tmp_path / 'other' / '.git'))
    assert examine_change(repository.path, repository.base, head).findings == ('notes.txt:1: trailing whitespace.',)


@pytest.mark.parametrize(('base', 'head', 'told'), [
    ('main', 'absent', "HEAD: expected a commit of .*, found 'absent'"),
    ('--output=x', 'main', "BASE: expected a commit of .*, found '--output=x'"),
    ('main', 'main', 'expected two commits that differ, found the same files in main and main'),
])
def test_commits_of_no_sense(repository: Repository, base: str, head: str, told: str):
    with pytest.raises(UsageFault, match=told):
        examine_change(repository.path, base, head)


@pytest.mark.parametrize('folder', ['absent', 'plain'])
def test_what_is_no_repository(tmp_path: Path, folder: str):
    (tmp_path / 'plain').mkdir()
    with pytest.raises(UsageFault, match='--repo: expected a git repository'):
        examine_change(tmp_path / folder, 'a', 'b')


@pytest.mark.parametrize(('files', 'code', 'last'), [
    ({'notes.txt': 'one\n'}, 0, 'clean: 1 files touched, 0 of them Python'),
    ({'kept.py': 'x = (\n'}, 1, '1 findings (1 files touched, 1 of them Python)'),
])
def test_the_command(repository: Repository, files: dict, code: int, last: str):
    repository.commit(files)
    done = CliRunner().invoke(app, ['check-change', repository.base, 'main', '--repo', str(repository.path)])
    assert (done.exit_code, done.output.splitlines()[-1]) == (code, last)
    assert CliRunner().invoke(app, ['check-change', 'no', 'main', '--repo', str(repository.path)]).exit_code == 2
