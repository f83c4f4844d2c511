"""Faults planted in a copy of one of lmdeploy's modules, and the copy judged as somebody's module."""
from __future__ import annotations

import importlib
import importlib.util
import re
import zlib
from pathlib import Path

from harness.contracts import contract
from harness.contracts.setting import Setting
from harness.evidence.log import EvidenceLog
from harness.lanes.lane import Lane
from harness.subjects.module import load_module
from harness.subjects.stock import KERNELS

_RELATIVE_IMPORT = re.compile(r'^from (\.+[\w.]*) import', re.MULTILINE)


def rewritten(module: str, changes: list[tuple[str, str]], since: str = '') -> str:
    """The text of lmdeploy's `module` (below its kernels), able to stand alone, with every (old, new) applied.

    `old` must occur exactly once from `since` on: a fault that hits nothing, or two places, is no fault that anybody
    described.
    """
    original = importlib.import_module(f'{KERNELS}.{module}')
    text = _RELATIVE_IMPORT.sub(
        lambda found: f'from {importlib.util.resolve_name(found[1], original.__package__)} import',
        Path(original.__file__).read_text())
    start = text.index(since)
    before, text = text[:start], text[start:]
    for old, new in changes:
        assert text.count(old) == 1, f'expected {old!r} once in {module}, found {text.count(old)}'
        text = text.replace(old, new)
    return before + text


def judge_copy(folder: Path, module: str, changes: list[tuple[str, str]], operator: str, case_id: str, stock,
               device, since: str = '') -> EvidenceLog:
    """Judge the rewritten copy on one case. Raises ContractBroken."""
    text = rewritten(module, changes, since)
    path = folder / f'copy_{zlib.crc32(text.encode()):08x}.py'  # a module is loaded once per path
    path.write_text(text)
    judged = contract(operator)
    (case, ) = [case for case in judged.CASES if case.id == case_id]
    log = EvidenceLog()
    judged.judge(case, load_module(path), Setting(Lane.CPU, device, stock, 'the command'), log)
    return log
