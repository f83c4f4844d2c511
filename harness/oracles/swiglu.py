"""silu(gate) * up in float64, and the product of two 16-bit values rounded once."""
from __future__ import annotations

import numpy as np

from harness.oracles.storage import Format, steps_apart

# float32 exp(-gate) overflows above this magnitude of a negative gate (ln of the largest float32); the division by
# infinity then gives -0, where the true silu is of the order of 1e-37.
EXP_OVERFLOW_GATE = -88.7
ALLOWED_STEPS = 1


def silu(gates: np.ndarray) -> np.ndarray:
    """gate / (1 + exp(-gate)) in float64; -infinity gives its limit -0."""
    gates = np.asarray(gates, np.float64)
    with np.errstate(over='ignore', invalid='ignore'):
        result = gates / (1 + np.exp(-gates))
    return np.where(np.isneginf(gates), -0.0, result)


def product(silu_bits: np.ndarray, up_bits: np.ndarray, storage: Format) -> np.ndarray:
    """uint16 silu * uint16 up -> uint16, one rounding. Both factors have at most 11 significant bits, so that the
    float64 product is exact and rounds once."""
    with np.errstate(invalid='ignore', over='ignore'):
        return storage.round(storage.decode(silu_bits) * storage.decode(up_bits))


def judged_gates(gates: np.ndarray, storage: Format) -> np.ndarray:
    """Which gates the one-step promise covers: finite, above the overflow of exp, and silu normal in the format."""
    values = silu(gates)
    normal = np.abs(values) >= 2.0**storage.exponent_min
    return np.isfinite(gates) & (gates > EXP_OVERFLOW_GATE) & normal


def float32_error(gates: np.ndarray) -> np.ndarray:
    """Largest error of silu evaluated in float32 as gate / (1 + exp(-gate)), float64 [gates].

    In units of 2^-24 |silu|: 4 for a division of 2 ulp, 4 for exp of 2 ulp, and exp's argument, rounded once after the
    multiplication by log2(e), moves exp by 2 |gate|, of which the sum 1 + exp(-gate) passes on the share 1 / (1 +
    exp(gate)).
    """
    with np.errstate(over='ignore', invalid='ignore'):
        return np.abs(silu(gates)) * 2.0**-24 * (8 + 2 * np.abs(gates) / (1 + np.exp(gates)))


def wrong_silus(gate_bits: np.ndarray, silu_bits: np.ndarray, storage: Format) -> np.ndarray:
    """Which observed values are no silu, for every bit pattern of a gate: bool.

    Right is the float64 value, moved by at most the float32 error and rounded once; where exp(-gate) overflows -0 as
    well; NaN for NaN and for -infinity, +infinity for +infinity.
    """
    gates = storage.decode(gate_bits)
    truth = silu(gates)
    error = np.where(np.isfinite(gates), float32_error(gates), 0.0)
    with np.errstate(invalid='ignore'):
        # No error turns a sign over, that of zero included.
        ends = [np.copysign(np.maximum(np.abs(truth) + side, 0), truth) for side in (-error, error)]
        right = np.logical_or.reduce([silu_bits == storage.round(value) for value in (truth, *ends)])
    right |= np.isfinite(gates) & (gates <= EXP_OVERFLOW_GATE) & (silu_bits == 0x8000)
    missing = np.isnan(gates) | np.isneginf(gates)
    return ~np.where(missing, storage.is_nan(silu_bits), right)


def silu_steps(gate_bits: np.ndarray, silu_bits: np.ndarray, storage: Format) -> np.ndarray:
    """Steps between observed silu and the float64 value rounded to the format, for every gate."""
    return steps_apart(silu_bits, storage.round(silu(storage.decode(gate_bits))))


def one_rounding(gates: np.ndarray, ups: np.ndarray, limit: float,
                 storage: Format) -> tuple[np.ndarray, np.ndarray]:
    """What silu(gate) * up can be in float32, rounded once: the values of least and largest magnitude, float32.

    Args:
        gates, ups: float64, finite. limit: gates are cut above it and ups at both ends, unless it is 0.
    """
    if limit > 0:
        gates, ups = np.minimum(gates, limit), np.clip(ups, -limit, limit)
    truth = silu(gates) * ups
    size = np.abs(truth)
    error = np.where(size == 0, 0, float32_error(gates) * np.abs(ups) + 2.0**-24 * size + 2.0**-150)
    # Where exp(-gate) overflows, float32 has -0 for silu. No error turns a sign over.
    smallest = np.where(gates <= EXP_OVERFLOW_GATE, 0, np.maximum(size - error, 0))
    ends = [np.copysign(smallest, truth), np.copysign(size + error, truth)]
    return tuple(storage.decode(storage.round(end)).astype(np.float32) for end in ends)
