"""Evidence: what a case compared, kept as records. A test that leaves no record has judged nothing."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field

from harness.evidence.verdicts import Reason

# Kinds whose promise allows elements to differ: 'steps' and 'conformance' count those that are not the exact result.
COUNTED = frozenset({'steps', 'conformance'})


@dataclass(frozen=True)
class Record:
    """One comparison that took place.

    Attributes:
        kind: how it was compared: 'bytes', 'bound', 'steps', 'guard', 'repeat', 'graph', 'table', 'refusal', ... For
            the kinds of COUNTED `differing` is a figure; for all others anything but 0 is a broken contract.
        what: what was compared with what, in plain words.
        compared: number of bytes (or elements, for kinds that count elements) that took part; never 0.
        differing: how many of them differ (or lie outside the bound).
        worst: largest deviation seen, in the unit that `detail` names, or None where only equality counts.
        detail: further facts, JSON-compatible (counts of NaN and -0, unit of `worst`, bits, ...).
    """

    kind: str
    what: str
    compared: int
    differing: int = 0
    worst: float | None = None
    detail: dict = field(default_factory=dict)

    def __post_init__(self):
        if self.compared <= 0:
            raise ValueError(f'Record.compared: expected at least one element for {self.what!r}, '
                             f'found {self.compared}: a comparison of nothing is no evidence')


class ContractBroken(AssertionError):
    """A contract does not hold.

    Attributes:
        reason: a `Reason` whose outcome is BROKEN or MOVED.
        explanation: what an engineer needs to see, several lines of text.
    """

    def __init__(self, reason: Reason, explanation: str):
        super().__init__(explanation)
        self.reason = reason
        self.explanation = explanation


class EvidenceLog:
    """Collects the records of one test, in the order in which the comparisons took place."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def add(self, record: Record) -> None:
        self.records.append(record)

    def as_dicts(self) -> list[dict]:
        return [asdict(record) for record in self.records]
