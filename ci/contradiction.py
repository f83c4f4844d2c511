"""Evidence that contradicts a pass. A test, or a subject in between, may have swallowed what a contract raised."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.evidence.log import COUNTED
from harness.evidence.verdicts import Reason

_REASONS = {'guard': Reason.OUTSIDE_WRITE, 'bound': Reason.BOUND, 'steps': Reason.BOUND, 'conformance': Reason.BOUND}


def contradiction(evidence: Iterable[Mapping[str, Any]]) -> tuple[Reason, str] | None:
    """Why a case with these records (as `harness.evidence.log.Record` has them) is no pass, or None.

    A record with anything that differs is a contract that does not hold. Where `differing` is only counted, the largest
    deviation stands against what the record says is allowed.
    """
    for record in evidence:
        kind, differing = record.get('kind', ''), record.get('differing', 0)
        allowed, worst = (record.get('detail') or {}).get('allowed'), record.get('worst')
        if kind not in COUNTED and differing != 0:
            told = f'{differing} of {record.get("compared")} differ'
        elif kind in COUNTED and allowed is not None and worst is not None and not _within(worst, allowed):
            told = f'{worst} is more than the {allowed} allowed'
        else:
            continue
        return _REASONS.get(kind, Reason.BYTES), (f'the test passed, but its evidence says otherwise: {told} '
                                                  f'({kind}: {record.get("what")})')
    return None


def _within(worst: Any, allowed: Any) -> bool:
    try:
        return float(worst) <= float(allowed)
    except (TypeError, ValueError):
        return False
