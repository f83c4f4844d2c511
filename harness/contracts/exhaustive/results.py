"""What a part of the proof found, as facts. Verdicts are made of these by whoever reports them."""
from __future__ import annotations

from dataclasses import asdict, dataclass, field

from harness.contracts.exhaustive.mismatch import Mismatch
from harness.contracts.formats import QuantFormat
from harness.evidence.verdicts import Reason


@dataclass(frozen=True)
class PartResult:
    """One part in one format.

    Attributes:
        part: 'a', 'b', 'floor', 'c' or 'packed'.
        fmt: the format; part a speaks of its storage format alone.
        unit: what is counted: 'gates', 'pairs', '(value, maximum) pairs'.
        visited, possible: how many of how many.
        differing_groups: groups whose bytes differ.
        mismatch: the first difference; None if there is none, or if it did not show a second time.
        reason: why the part does not hold; None if it does.
        seconds: GPU time on a GPU, wall time on the cpu lane.
        reference: what the subject on trial was compared with.
        facts: whatever else was measured.
    """

    part: str
    fmt: QuantFormat
    unit: str
    visited: int
    possible: int
    differing_groups: int
    mismatch: Mismatch | None
    reason: Reason | None
    seconds: float
    reference: str
    facts: dict = field(default_factory=dict)

    def __post_init__(self):
        if not 0 < self.visited <= self.possible:
            raise ValueError(f'PartResult.visited: expected 1 to {self.possible} {self.unit}, found {self.visited}: '
                             'a proof that visited nothing proves nothing')

    @property
    def format(self) -> str:
        """'bf16' or 'fp16' for part a, otherwise the format's id."""
        return self.fmt.storage if self.part == 'a' else self.fmt.id

    @property
    def exhaustive(self) -> bool:
        return self.visited == self.possible

    def as_dict(self) -> dict:
        """JSON-compatible."""
        return {**asdict(self), 'format': self.format, 'exhaustive': self.exhaustive,
                'reason': self.reason.value if self.reason else None}


def reason_for(differing: int, mismatch: Mismatch | None) -> Reason | None:
    """Why bytes do not hold: they differ, or they differed once and do not when looked at again."""
    if not differing:
        return None
    return Reason.BYTES if mismatch else Reason.NONDETERMINISTIC
