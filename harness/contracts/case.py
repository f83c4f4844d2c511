"""A case: one input of one operator, with the reason why it exists."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BOTH_LANES = frozenset({'cpu', 'sm90'})
SM90_ONLY = frozenset({'sm90'})
CPU_ONLY = frozenset({'cpu'})


@dataclass(frozen=True)
class Case:
    """One input of one operator. Rebuilds its inputs from its id alone: `build` takes no argument but the device.

    Attributes:
        operator: the operator on trial, for example 'quant_fp8'.
        id: unique within the operator, letters, digits, '.', '_' and '-' only; stable for ever once in a manifest.
        why: why this case exists, one sentence.
        lanes: lanes on which the case is required.
        build: torch.device -> the operator's inputs (a frozen dataclass of the operator's contract file).
        options: the arguments that are not tensors (dtype, scale_fmt, ...), JSON-compatible values.
    """

    operator: str
    id: str
    why: str
    build: Callable[..., Any] = field(repr=False, compare=False)
    lanes: frozenset[str] = BOTH_LANES
    options: dict = field(default_factory=dict, compare=False)

    def __post_init__(self):
        allowed = set('abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-')
        if not self.id or set(self.id) - allowed:
            raise ValueError(f'Case.id: expected letters, digits, ".", "_" and "-", found {self.id!r}')
        if not self.why.strip():
            raise ValueError(f'Case.why: expected the reason for case {self.id!r}, found nothing')
        if not self.lanes or self.lanes - BOTH_LANES:
            raise ValueError(f'Case.lanes: expected a subset of {sorted(BOTH_LANES)}, found {sorted(self.lanes)}')
