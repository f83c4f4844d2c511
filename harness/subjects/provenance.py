"""Which source was on trial: a hash over the files that hold it."""
from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def source_sha256(root: Path, files: Iterable[Path]) -> str:
    """sha256 over the names (relative to `root`) and bytes of `files`, in order of their names."""
    digest = hashlib.sha256()
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        content = path.read_bytes()
        digest.update(f'{name}\0{len(content)}\0'.encode())
        digest.update(content)
    return digest.hexdigest()
