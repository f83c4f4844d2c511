"""Which pairs are visited where not all of them can be: every edge, then random bits."""
from __future__ import annotations

import numpy as np

from harness.contracts.exhaustive.plan import PATTERNS, Arrangement
from harness.contracts.silu_and_mul import edge_gates
from harness.oracles.quantisation import AMAX_FLOOR
from harness.oracles.storage import Format

# Edges take at most this share of a sample.
_EDGE_SHARE = 0.75


def edge_ups(storage: Format) -> np.ndarray:
    """Ups (uint16 bits) at which the product changes its nature, of both signs: one, zero, subnormals, the floor of the
    group maximum from both sides, the ends, infinity, NaN."""
    normal = 1 << storage.mantissa
    floor = int(storage.round(np.array(float(AMAX_FLOOR))))
    positive = np.array([int(storage.round(np.array(1.0))), 0, 1, normal - 1, normal, floor - 1, floor, floor + 1,
                         storage.infinity - 1, storage.infinity, storage.infinity + 1, 0x7FFF])
    return np.concatenate([positive, positive | 0x8000]).astype(np.uint16)


def sample_pairs(storage: Format, gates: range, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` (gate, up) pairs, uint16 each: edge gates within the range with edge ups, then random ones.

    Edge pairs come in an order in which every edge gate and every edge up appears before any of them has met all of the
    others, so that a small sample still holds each edge.
    """
    rng = np.random.Generator(np.random.PCG64(seed))
    inside = [gate for gate in dict.fromkeys(edge_gates(storage).tolist()) if gate in gates]
    corners = list(dict.fromkeys([gates[0], gates[-1], *inside]))
    ups = list(dict.fromkeys(edge_ups(storage).tolist()))
    edges = [(gate, ups[(place + turn) % len(ups)]) for turn in range(len(ups)) for place, gate in enumerate(corners)]
    edges = edges[:max(int(count * _EDGE_SHARE), 1)]
    others = rng.integers((gates.start, 0), (gates.stop, PATTERNS), size=(count - len(edges), 2))
    pairs = np.concatenate([np.array(edges), others])
    return pairs[:, 0].astype(np.uint16), pairs[:, 1].astype(np.uint16)


def sample_groups(storage: Format, arrangement: Arrangement, gates: range, count: int,
                  seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of `count` groups as a sweep would pack them: one gate with consecutive ups. uint16, in order."""
    size = arrangement.pairs_per_group
    chosen, ups = sample_pairs(storage, gates, count, seed)
    first = ups // size * size
    return np.repeat(chosen, size), (first[:, None] + np.arange(size)).reshape(-1).astype(np.uint16)


def partner_maxima(storage: Format, count: int) -> np.ndarray:
    """Up to `count` values (uint16 bits) from the floor of the group maximum to twice it, evenly in their logarithm.

    Beside one of them a pair under the floor is scaled by a known maximum, so that together they move the edges between
    codes across the pair's possible products.
    """
    values = float(AMAX_FLOOR) * np.exp2(np.arange(count) / count)
    bits = storage.round(values)
    bits = bits + (storage.decode(bits) < float(AMAX_FLOOR)).astype(np.uint16)
    return np.unique(bits)


def sample_maxima(storage: Format, largest_code: float) -> np.ndarray:
    """Group maxima (uint16 bits) at which the quantiser changes its nature, each with both neighbours, ascending."""
    points = [0, 1, 1 << storage.mantissa, storage.infinity - 1, storage.infinity]
    points += storage.round(float(AMAX_FLOOR) * np.array([0.5, 1.0, 2.0])).tolist()
    exponents = np.array([-40, -20, -8, -1, 0, 1, 6])
    points += storage.round(largest_code * np.exp2(exponents.astype(np.float64))).tolist()
    around = np.array(points)[:, None] + np.array([-1, 0, 1])
    return np.unique(around[(around >= 0) & (around <= storage.infinity)])

