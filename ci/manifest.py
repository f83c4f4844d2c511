"""Required-case manifests: which cases a lane owes for a subject, as reviewed text files, one node id a line."""
from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

from harness.lanes.lane import Lane

SUBJECT_NAMES = ('stock', 'candidate', 'module')


UPSTREAM_RELEASE = '0.18.0'    # the release of lmdeploy whose tests are known by name


class ManifestInvalid(ValueError):
    """A manifest is absent, empty, out of order or names a case twice."""


def manifest_path(root: Path, lane: Lane, subject: str) -> Path:
    """Where the manifest of `lane` and `subject` ('stock', 'candidate' or 'module') stands under `root`."""
    return root / 'ci' / 'required' / f'{lane.value}-{subject}.txt'


def upstream_manifest_path(root: Path) -> Path:
    """Where the known tests of lmdeploy's own stand under `root`; they are the same for every lane and subject."""
    return root / 'ci' / 'required' / f'upstream-{UPSTREAM_RELEASE}.txt'


def render_upstream(nodeids: Iterable[str]) -> str:
    """The text of the manifest of upstream's tests."""
    header = (f"# lmdeploy {UPSTREAM_RELEASE}'s own tests that `--upstream` owes: one node id a line, sorted.\n"
              '# Whatever else a checkout holds is judged beside them.\n'
              '# Written by `bitgate plan --upstream CHECKOUT --write`, reviewed like code.\n')
    return header + ''.join(f'{nodeid}\n' for nodeid in sorted(nodeids))


def render(lane: Lane, subject: str, nodeids: Iterable[str]) -> str:
    """The text of a manifest."""
    note = ('# A module owes only the cases of the operators that it offers.\n' if subject == 'module' else '')
    header = (f'# Cases that lane {lane.value} owes for subject {subject}: one node id a line, sorted.\n{note}'
              '# Written by `bitgate plan --write`, reviewed like code.\n')
    return header + ''.join(f'{nodeid}\n' for nodeid in sorted(nodeids))


def parse(text: str, name: str) -> tuple[str, ...]:
    """The node ids of a manifest. Raises ManifestInvalid, naming the manifest by `name`."""
    nodeids = tuple(line for line in text.splitlines() if line.strip() and not line.startswith('#'))
    if not nodeids:
        raise ManifestInvalid(f'{name}: expected at least one node id, found none')
    for before, after in zip(nodeids, nodeids[1:], strict=False):
        if before >= after:
            raise ManifestInvalid(f'{name}: expected sorted lines without repeats, found {after!r} after {before!r}')
    return nodeids


def load(root: Path, lane: Lane, subject: str) -> tuple[str, ...]:
    """The node ids that `lane` owes for `subject`. Raises ManifestInvalid if the file is absent or not well formed."""
    return _read(root, manifest_path(root, lane, subject), render(lane, subject, ()), 'bitgate plan --write')


def load_upstream(root: Path) -> tuple[str, ...]:
    """The known tests of lmdeploy's own. Raises ManifestInvalid if the file is absent or not well formed."""
    return _read(root, upstream_manifest_path(root), render_upstream(()), 'bitgate plan --upstream CHECKOUT --write')


def _read(root: Path, path: Path, empty: str, made_by: str) -> tuple[str, ...]:
    name = str(path.relative_to(root))
    try:
        text = path.read_text(encoding='utf-8')
    except FileNotFoundError:
        raise ManifestInvalid(f'{name}: no such manifest; `{made_by}` makes it') from None
    except (OSError, UnicodeError) as error:
        raise ManifestInvalid(f'{name}: expected a text file, found {error}') from None
    header = empty.split('\n')[0]
    if not text.startswith(header):
        raise ManifestInvalid(f'{name}: expected the first line {header!r}, found {text[:80].splitlines()[:1]}')
    return parse(text, name)


def difference(name: str, reviewed: str, collected: str) -> str:
    """A unified diff from the reviewed manifest to the collected one; empty if they are equal."""
    lines = difflib.unified_diff(reviewed.splitlines(), collected.splitlines(), f'{name} (reviewed)',
                                 f'{name} (collected)', lineterm='', n=0)
    return '\n'.join(lines)
