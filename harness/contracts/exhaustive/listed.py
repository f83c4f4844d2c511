"""Pairs that are named one by one, through both sides: samples, and sets too small for a sweep."""
from __future__ import annotations

import numpy as np
import torch

from harness.contracts.exhaustive.mismatch import Mismatch, explain
from harness.contracts.exhaustive.plan import GROUPS_PER_ROW, Arrangement
from harness.contracts.exhaustive.sides import PairBuffer, Sides
from harness.evidence.differing_groups import new_tally, require_sight, tally_differing_groups


def compare_listed(sides: Sides, arrangement: Arrangement, gates: np.ndarray, ups: np.ndarray,
                   partner: tuple[int, int] | None = None,
                   rows: int | None = None) -> tuple[int, Mismatch | None]:
    """Pairs (uint16 [n] each) in the order given, `pairs_per_group` of them to a group.

    Args:
        partner: (gate, up) bits, for the arrangement that has one.
        rows: of a chunk; all pairs at once if None.

    Returns:
        (groups that differ, the first difference by name).
    """
    slots = arrangement.slots_per_row
    rows = rows or -(-len(gates) // slots)
    buffer = PairBuffer(arrangement, rows, sides.fmt.storage, sides.device)
    if partner:
        buffer.set_partner(*partner)
    keys = torch.arange(rows * GROUPS_PER_ROW, device=sides.device)
    differing, mismatch = 0, None
    for start in range(0, len(gates), rows * slots):
        chunk = slice(start, start + rows * slots)
        buffer.write(gates[chunk], ups[chunk])
        tally, unfused = new_tally(sides.device), sides.unfused(buffer.gate_up)
        if start == 0:
            require_sight(unfused)
        filled = -(-len(gates[chunk]) // arrangement.pairs_per_group)
        tally_differing_groups(sides.fused(buffer.gate_up), unfused, keys, torch.zeros_like(keys[:1]), tally, filled)
        found, first = tally.tolist()
        if found and not differing:
            mismatch = explain(sides, buffer.gate_up, first)
        differing += found
    return differing, mismatch
