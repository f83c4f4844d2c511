"""Known deviations of stock: what it does today where the contract says otherwise, kept as validated data.

Each is asserted as it was observed. One that changes or vanishes is red until somebody has looked and edits this list.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason


@dataclass(frozen=True)
class Deviation:
    """One finding.

    Attributes:
        finding: its number, for ever.
        operator, case: which case it concerns; `case` is the end of the case id.
        raises: the exception type that the call raises today; None if it gives another result instead, which the
            operator's contract knows in every byte.
        why: what happens inside, one sentence.
    """

    finding: str
    operator: str
    case: str
    raises: type[Exception] | None
    why: str

    def __post_init__(self):
        if not (self.finding.startswith('F') and self.finding[1:].isdigit()):
            raise ValueError(f'Deviation.finding: expected F and a number, found {self.finding!r}')
        if not self.why.strip():
            raise ValueError(f'Deviation.why: expected a reason for {self.finding}, found nothing')


STOCK_DEVIATIONS = (
    Deviation('F1', 'quant_fp8', '-no_rows', ZeroDivisionError,
              'the launcher divides the row count by a grid of zero programs when M is 0'),
    Deviation('F20', 'fill_kv_cache_blocked_fp8', '-off_group', None,
              'lanes past the head dimension load the head\'s first elements again, and these take part in the maximum '
              'of a last group that is not whole'),
)


def find(operator: str, case_id: str) -> Deviation | None:
    """The deviation of stock that concerns a case, or None."""
    return next((d for d in STOCK_DEVIATIONS if d.operator == operator and case_id.endswith(d.case)), None)


def assert_deviates(log: EvidenceLog, deviation: Deviation, call: Callable[[], object], reproduce: str) -> None:
    """Call stock and require that it deviates exactly as recorded.

    Raises:
        ContractBroken: BETTER if the call succeeds now, CRASH if it fails in another way.
    """
    try:
        call()
    except deviation.raises:
        log.add(Record('deviation', f'stock deviates as recorded in {deviation.finding}: {deviation.why}', compared=1))
        return
    except Exception as error:
        raise ContractBroken(Reason.CRASH, f'{deviation.finding} changed: expected {deviation.raises.__name__}, found '
                             f'{type(error).__name__}: {error}\nreproduce: {reproduce}') from error
    raise ContractBroken(Reason.BETTER, f'{deviation.finding} vanished: expected {deviation.raises.__name__} '
                         f'({deviation.why}), found a result; review and drop it from the list\nreproduce: {reproduce}')


def assert_observed(log: EvidenceLog, deviation: Deviation, holds: Callable[[], None], reproduce: str) -> None:
    """Require that the contract proper does not hold, after the result was found to be as recorded.

    Args:
        holds: raises ContractBroken unless the contract holds.

    Raises:
        ContractBroken: BETTER if it does.
    """
    try:
        holds()
    except ContractBroken:
        log.add(Record('deviation', f'stock deviates as recorded in {deviation.finding}: {deviation.why}', compared=1))
        return
    raise ContractBroken(Reason.BETTER, f'{deviation.finding} vanished: the contract holds ({deviation.why}); review '
                         f'and drop it from the list\nreproduce: {reproduce}')
