"""The vocabulary of every judgement: four outcomes, and the reasons that explain them.

One vocabulary serves a case, a run, a JUnit row and a report. Only `Outcome.PASS` is green.
"""
from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """What can be said of a case or a run. Listed from worst to best: a run's outcome is the worst of its cases."""

    BROKEN = 'BROKEN'
    MOVED = 'MOVED'
    UNJUDGED = 'UNJUDGED'
    PASS = 'PASS'

    @staticmethod
    def worst(outcomes) -> Outcome:
        """The worst of `outcomes`; an empty collection cannot be judged, so it is UNJUDGED."""
        order = list(Outcome)
        return min(outcomes, key=order.index, default=Outcome.UNJUDGED)


class Reason(str, Enum):
    """Why an outcome is not PASS. Each reason belongs to exactly one outcome."""

    # BROKEN: a contract does not hold
    BYTES = 'BYTES'
    BOUND = 'BOUND'
    WORSE = 'WORSE'
    OUTSIDE_WRITE = 'OUTSIDE_WRITE'
    NONDETERMINISTIC = 'NONDETERMINISTIC'
    CRASH = 'CRASH'
    HANG = 'HANG'
    OOM = 'OOM'
    GOLDEN_REAL = 'GOLDEN_REAL'
    GOLDEN_NEAR_TIE = 'GOLDEN_NEAR_TIE'
    GOLDEN_LENGTH = 'GOLDEN_LENGTH'
    # MOVED: no contract broken, but bits changed and the change does not declare it
    BETTER = 'BETTER'
    WORSE_WITHIN_BOUND = 'WORSE_WITHIN_BOUND'
    NONFINITE_TABLE = 'NONFINITE_TABLE'
    LATENT = 'LATENT'
    # UNJUDGED: it cannot be said
    MISSING = 'MISSING'
    SKIPPED = 'SKIPPED'
    NOTHING_SELECTED = 'NOTHING_SELECTED'
    NO_EVIDENCE = 'NO_EVIDENCE'
    WRONG_DEVICE = 'WRONG_DEVICE'
    INFRA = 'INFRA'
    STALE_GOLDEN = 'STALE_GOLDEN'
    NO_GOLDEN = 'NO_GOLDEN'
    TOO_FEW_SAMPLES = 'TOO_FEW_SAMPLES'

    @property
    def outcome(self) -> Outcome:
        """The outcome that this reason belongs to."""
        names = list(Reason.__members__)
        position = names.index(self.name)
        if position < names.index('BETTER'):
            return Outcome.BROKEN
        if position < names.index('MISSING'):
            return Outcome.MOVED
        return Outcome.UNJUDGED
