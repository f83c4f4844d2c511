"""Faults planted in a copy of one of lmdeploy's modules, and the copy judged as somebody's module."""
from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

from harness.evidence.log import EvidenceLog
from harness.subjects.stock import KERNELS
from suites.selftest.planted import judge_text, replaced

_RELATIVE_IMPORT = re.compile(r'^( *)from (\.+[\w.]*) import', re.MULTILINE)


def rewritten(module: str, changes: list[tuple[str, str]], since: str = '', times: int = 1) -> str:
    """The text of lmdeploy's `module` (below its kernels), able to stand alone, with every (old, new) applied.

    `old` must occur exactly `times` times from `since` on.
    """
    original = importlib.import_module(f'{KERNELS}.{module}')
    text = _RELATIVE_IMPORT.sub(
        lambda found: f'{found[1]}from {importlib.util.resolve_name(found[2], original.__package__)} import',
        Path(original.__file__).read_text())
    start = text.index(since)
    return text[:start] + replaced(text[start:], changes, times)


def judge_copy(folder: Path, module: str, changes: list[tuple[str, str]], operator: str, case_id: str, stock,
               device, since: str = '') -> EvidenceLog:
    """Judge the rewritten copy on one case. Raises ContractBroken."""
    return judge_text(folder, rewritten(module, changes, since), operator, case_id, stock, device)
