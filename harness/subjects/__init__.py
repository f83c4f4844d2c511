"""Who is on trial: stock lmdeploy, the candidate, a module path."""
from __future__ import annotations

from pathlib import Path

from harness.subjects.protocol import OPERATORS, Provenance, Subject, SubjectRefused

__all__ = ['OPERATORS', 'Provenance', 'Subject', 'SubjectRefused', 'load']


def load(name: str, lmdeploy_src: Path | None = None) -> Subject:
    """Import a subject. The lane must be active.

    Args:
        name: 'stock', 'candidate' or 'module:PATH'.
        lmdeploy_src: a checkout of lmdeploy to import instead of the installed package; concerns stock, and whatever
            uses lmdeploy beside it.

    Raises:
        SubjectRefused: absent, or with a layout that is not known; the message says what was expected and found.
    """
    # Imported here, so that stock can be judged in an installation without the candidate.
    from harness.subjects.stock import load_stock
    if name == 'stock':
        return load_stock(lmdeploy_src)
    if name == 'candidate':
        from harness.subjects.candidate import load_candidate
        return load_candidate(lmdeploy_src)
    if name.startswith('module:'):
        from harness.subjects.module import load_module
        stock = load_stock(lmdeploy_src)  # first, so that the reference is what lmdeploy is without the module
        module = load_module(Path(name.removeprefix('module:')))
        stock.require_pristine()
        return module
    raise SubjectRefused(f"subject: expected 'stock', 'candidate' or 'module:PATH', found {name!r}")
