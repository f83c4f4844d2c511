"""A source tree in which one file is the mutant's and every other is a link to the original's."""
from __future__ import annotations

import importlib.util
from pathlib import Path

from harness.mutants.fault import Fault
from harness.mutants.rewrite import DoesNotApply, mutated

ROOTS = {'stock': 'lmdeploy', 'candidate': 'harness/kernels'}


def root_of(subject: str) -> Path:
    """The folder that holds the package of an installed subject. Raises DoesNotApply if there is none."""
    if subject == 'candidate':
        return Path(__file__).resolve().parents[2]
    found = importlib.util.find_spec('lmdeploy')  # which imports nothing
    if found is None:
        raise DoesNotApply('expected lmdeploy to be installed, found no such package')
    return Path(found.submodule_search_locations[0]).resolve().parent


def mutant_of(fault: Fault, root: Path) -> str:
    """The text of the mutant.

    Args:
        root: the folder that holds the subject's package: that of lmdeploy, or this repository's.

    Raises:
        DoesNotApply: there is no such file, or the rewrite does not fit it.
    """
    file = original_of(fault, root)
    try:
        return mutated(file.read_text(encoding='utf-8'), fault)
    except OSError as error:
        raise DoesNotApply(f'{fault.id}: file: expected a file of {fault.subject}, found {error}') from None


def original_of(fault: Fault, root: Path) -> Path:
    """The file that a fault changes."""
    return root / ROOTS[fault.subject] / fault.file


def plant(fault: Fault, root: Path, folder: Path) -> None:
    """Make `folder` a tree like `root`, as far as the subject's package goes, with the mutant in it.

    Raises DoesNotApply, before anything is made."""
    text = mutant_of(fault, root)
    relative = original_of(fault, root).relative_to(root)
    here, there = folder, root
    for name in relative.parts[:-1]:
        here, there = here / name, there / name
        here.mkdir(parents=True)
        for entry in there.iterdir():
            if entry.name != '__pycache__' and not relative.is_relative_to(entry.relative_to(root)):
                (here / entry.name).symlink_to(entry.resolve())
    (folder / relative).write_text(text, encoding='utf-8')
