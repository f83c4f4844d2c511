"""Planting a fault: a text of which something is replaced, judged as somebody's module on the case that must notice."""
from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.contracts import contract
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.subjects.module import load_module

NOTICED = (Reason.BYTES, Reason.OUTSIDE_WRITE, Reason.NONDETERMINISTIC)


def replaced(text: str, changes: list[tuple[str, str]], times: int = 1) -> str:
    """`text` with every (old, new) applied, each old occurring `times` times: a fault that hits nothing, or more places
    than somebody described, is no fault."""
    for old, new in changes:
        assert text.count(old) == times, f'expected {old!r} {times} times, found {text.count(old)}'
        text = text.replace(old, new)
    return text


def judge_text(folder: Path, text: str, operator: str, case_id: str, stock, device) -> EvidenceLog:
    """Judge a module of this text on one case. Raises ContractBroken."""
    path = folder / f'copy_{zlib.crc32(text.encode()):08x}.py'  # a module is loaded once per path
    path.write_text(text)
    judged = contract(operator)
    (case, ) = [case for case in judged.CASES if case.id == case_id]
    log = EvidenceLog()
    judged.judge(case, load_module(path), Setting(Lane.CPU, device, stock, 'the command'), log)
    return log


def assert_noticed(judge: Callable[[], EvidenceLog], reasons: tuple[Reason, ...] = NOTICED) -> None:
    """`judge` finds the contract broken, for one of these reasons, and says how to run the case again."""
    with pytest.raises(ContractBroken) as broken:
        judge()
    assert broken.value.reason in reasons, f'expected one of {reasons}, found {broken.value.reason}: {broken.value}'
    assert 'reproduce: the command' in str(broken.value)


def assert_holds(log: EvidenceLog) -> None:
    """What was judged left evidence, and nothing in it differs."""
    assert log.records, 'no evidence'
    differing = [record for record in log.records if record.differing]
    assert not differing, f'differing: {differing}'
