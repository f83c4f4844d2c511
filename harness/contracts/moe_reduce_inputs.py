"""Hidden states and weights for the weighted reduce. Values in, values out: float64 that the formats hold exactly.

Every builder takes the storage format's name and returns (hidden [M, K, N], weights [M, K]). Most are exact in any
order: all terms are small multiples of one power of two, so that no sum of any of them has to be rounded in the
accumulation. What decides there is which weight met which expert, and that nothing was rounded that need not be.
"""
from __future__ import annotations

import numpy as np

from harness.contracts import values
from harness.oracles.moe_reduce import LARGEST, PRECISION, rounded

Routed = tuple[np.ndarray, np.ndarray]


def _integers(seed: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Integers of both signs with magnitudes from low to high, float64."""
    count = int(np.prod(shape))
    bits = values.raw(seed, count).astype(np.int64).reshape(shape)
    return (low + (bits >> 1) % (high - low + 1)) * np.where(bits & 1, -1.0, 1.0)


def _gains(rows: int, experts: int) -> np.ndarray:
    """A power of two per token and expert [M, K], all of a token's distinct, another order for every token."""
    return np.exp2((np.arange(rows)[:, None] + np.arange(experts)) % experts - experts // 2)


def distinct_gains(storage: str, rows: int, experts: int, columns: int) -> Routed:
    """Expert k's states are larger by a power of two of its own, its weight smaller by the same: any mix-up shows."""
    terms = _integers(f'reduce/gains/{rows}x{experts}x{columns}', (rows, experts, columns), 1, 8)
    gains = _gains(rows, experts)
    return terms * gains[:, :, None], 1 / gains


def past_storage(storage: str) -> Routed:
    """Sums of 16 bits: exact in float32, more than bf16 and fp16 hold."""
    terms = _integers('reduce/past', (3, 8, 120), 128, 255) * np.exp2(np.arange(8) % 5)[:, None]
    gains = _gains(3, 8)
    return terms * gains[:, :, None], 1 / gains


def rounded_every_step(storage: str, experts: int) -> Routed:
    """a + b + c where every order that rounds each sum to storage gives a + 2, and one rounding at the end gives a.

    With p digits: a = 2^p + 2 (an odd number of steps of 2), b = 1 (half a step: a tie, to the even a + 2),
    c = -2^-(p+1) (lost beside a, and beside b a tie that goes to b).
    """
    digits = PRECISION[storage][0]
    terms = np.zeros((6, experts, 40))
    three = np.array([2.0**digits + 2, 1.0, -2.0**-(digits + 1)])
    places = np.array([[(row + column + step * (1 + column % 2)) % experts for step in range(3)]
                       for row in range(6) for column in range(40)]).reshape(6, 40, 3)
    rows, columns = np.meshgrid(np.arange(6), np.arange(40), indexing='ij')
    for step in range(3):
        terms[rows, places[..., step], columns] = three[step] * np.where(columns % 3, 1, -1)
    gains = np.exp2((np.arange(6)[:, None] + np.arange(experts)) % 3 - 1)
    return terms * gains[:, :, None], 1 / gains


def noise(storage: str, rows: int, experts: int, columns: int, positive: bool = False) -> Routed:
    """Ordinary states, and float32 weights of a router: positive, below one, with all their digits."""
    seed = f'reduce/noise/{rows}x{experts}x{columns}'
    hidden = (values.raw(seed, rows * experts * columns).reshape(rows, experts, columns) - 32767.5) / 9000
    weights = (values.raw(seed + '/weights', rows * experts).reshape(rows, experts) + 3000) / 69001
    return rounded(np.abs(hidden) if positive else hidden, storage), rounded(weights, 'fp32')


def one_hot(storage: str) -> Routed:
    """One expert with a weight, four without: the others' states must leave no trace, not even in the last bit."""
    hidden, weights = noise(storage, 5, 5, 96)
    return hidden, weights * np.eye(5)[[3, 0, 4, 1, 2]]


def zero_weights(storage: str) -> Routed:
    """Experts without weight hold the largest states; the second token has no weight at all."""
    hidden, weights = distinct_gains(storage, 4, 6, 64)
    off = (np.arange(4)[:, None] + np.arange(6)) % 3 == 0
    off[1] = True
    hidden[off] = LARGEST[storage]
    return hidden, np.where(off, 0.0, weights)


def negative_weights(storage: str) -> Routed:
    hidden, weights = distinct_gains(storage, 3, 5, 64)
    return hidden, weights * np.where(np.arange(5) % 2, -1.0, 1.0)


def cancelling(storage: str) -> Routed:
    """Pairs that cancel: the sum is +0, in any order."""
    hidden, weights = distinct_gains(storage, 3, 4, 64)
    terms = hidden * weights[:, :, None]
    terms[:, 2:] = -terms[:, 1::-1]
    return terms / weights[:, :, None], weights


def signed_zeros(storage: str, experts: int) -> Routed:
    """Every mix of zero terms: the sum is -0 only where all are -0 and no masked expert adds +0."""
    zeros = np.where(np.arange(1 << experts)[:, None] >> np.arange(experts) & 1, -0.0, 0.0).T  # [K, 2^K]
    hidden = np.stack([zeros, zeros, np.ones_like(zeros)])
    weights = np.array([1.0, -1.0, -0.0])[:, None] * np.ones(experts)
    return hidden, weights


def subnormals(storage: str) -> Routed:
    """Terms and sums that are subnormal in storage."""
    hidden, weights = distinct_gains(storage, 3, 4, 64)
    # The smallest gain is 2^-2: three powers more keep the states themselves on the grid.
    return hidden * 2.0**(PRECISION[storage][1] + 3), weights / 8


def overflow(storage: str) -> Routed:
    """Sums that reach the largest value exactly, and sums past it, of both signs."""
    largest = LARGEST[storage]
    pairs = np.array([[largest / 2, largest / 2], [largest, largest / 2], [largest, 0.0], [largest, largest],
                      [largest / 2, -largest / 2]])
    hidden = np.concatenate([pairs, -pairs]).T[None]  # [1, 2, 10]
    return hidden, np.ones((1, 2))


def back_from_overflow(storage: str) -> Routed:
    """Past the end of storage and back, in float32."""
    largest = LARGEST[storage]
    return np.array([[largest], [largest], [-largest]])[None] * np.ones((1, 1, 8)), np.ones((1, 3))


def nonfinite(storage: str) -> Routed:
    """NaN and infinities in states and weights: alone, opposed, and times a weight of zero."""
    hidden, weights = distinct_gains(storage, 5, 3, 16)
    nan, inf = np.nan, np.inf
    special = np.array([[nan, 1, 1], [1, nan, 1], [inf, 1, 1], [1, 1, -inf], [inf, -inf, 1], [inf, inf, 1],
                        [nan, inf, 1], [1, 1, 1]]).T
    hidden[:, :, :8] = special
    weights[1, 0] = 0.0
    weights[2, 2] = nan
    weights[3, 1] = inf
    return hidden, weights
