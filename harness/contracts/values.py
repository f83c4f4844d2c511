"""Matrices of 16-bit values from which the catalogues are made. Bits in, bits out: the same on every machine.

Every builder takes the storage format and the FP8 format whose edges it aims at and returns uint16 [M, N] with N a
multiple of the group of 128. Random bits come from PCG64's raw stream, which numpy keeps stable for ever.
"""
from __future__ import annotations

import zlib

import numpy as np

from harness.oracles.fp8 import Fp8
from harness.oracles.quantisation import AMAX_FLOOR
from harness.oracles.storage import Format

GROUP = 128
SIGN = np.uint16(0x8000)


def raw(seed: str, count: int) -> np.ndarray:
    """`count` uniform uint16, determined by the text `seed`."""
    words = np.random.PCG64(zlib.crc32(seed.encode())).random_raw((count + 3) // 4)
    return words.view(np.uint16)[:count]


def noise(storage: Format, seed: str, shape: tuple[int, int], scale: float = 1.0) -> np.ndarray:
    """Bell-shaped values of standard deviation `scale` (the sum of four uniforms), uint16 bits."""
    uniform = raw(seed, 4 * shape[0] * shape[1]).astype(np.int64).reshape(4, *shape)
    centred = (uniform.sum(axis=0) - 2 * 65535) / 37837.0  # 65535 / sqrt(3): the sum's standard deviation
    return storage.round(centred * scale)


def _groups_below(storage: Format, seed: str, maxima: np.ndarray) -> np.ndarray:
    """One group per maximum (uint16 bits, positive): the maximum at a place that moves on, smaller values elsewhere."""
    count = len(maxima)
    largest = storage.decode(maxima)[:, None]
    fraction = raw(seed, count * GROUP).reshape(count, GROUP) / 65536.0
    signs = (raw(seed + '/signs', count * GROUP).reshape(count, GROUP) & 1) * -2.0 + 1
    groups = storage.round(largest * fraction * signs)
    place = np.arange(count) * 37 % GROUP
    groups[np.arange(count), place] = maxima | np.where(np.arange(count) % 2, SIGN, np.uint16(0))
    return groups


def _rows(groups: np.ndarray, per_row: int) -> np.ndarray:
    """Groups [count, 128] -> [M, per_row * 128], the last row filled up from the first groups."""
    missing = -len(groups) % per_row
    return np.concatenate([groups, groups[:missing]]).reshape(-1, per_row * GROUP)


def _neighbours(bits: np.ndarray) -> np.ndarray:
    """Each positive value with its representable neighbours: below, itself, above."""
    bits = np.asarray(bits, np.uint16)
    return np.stack([bits - (bits > 0), bits, bits + 1], axis=-1).reshape(-1).astype(np.uint16)


def zero_groups(storage: Format, fp8: Fp8) -> np.ndarray:
    """A zero group at every position of a row of five; a zero row; a row of -0; a row zero but for one value."""
    x = noise(storage, 'zero_groups', (8, 5 * GROUP)).reshape(8, 5, GROUP)
    x[np.arange(5), np.arange(5)] = 0
    x[5], x[6], x[7] = 0, SIGN, 0
    x[7, 2, 77] = storage.round(np.array(3.0))
    return x.reshape(8, -1)


def signed_zeros(storage: Format, fp8: Fp8) -> np.ndarray:
    """Both zeros beside values, and values of both signs so small that their code is a zero: the sign must stay."""
    groups = _groups_below(storage, 'signed_zeros', storage.round(np.array([1.0, 2.0**-6, 100.0, 1.0])))
    tiny = storage.round(np.array([2.0**-20, 2.0**-12, 2.0**-10, 2.0**-14]))[:, None]
    kind = raw('signed_zeros/kind', 4 * GROUP).reshape(4, GROUP) % 5
    keep = (groups & 0x7FFF) == (groups & 0x7FFF).max(axis=1, keepdims=True)
    replaced = np.select([kind == 0, kind == 1, kind == 2, kind == 3], [0 * tiny, 0 * tiny | SIGN, tiny, tiny | SIGN],
                         groups)
    return _rows(np.where(keep, groups, replaced).astype(np.uint16), 2)


def subnormals(storage: Format, fp8: Fp8) -> np.ndarray:
    """Groups of storage subnormals only, groups whose codes are FP8 subnormals, and both beside ordinary values."""
    smallest_normal = 1 << storage.mantissa
    own = raw('subnormals', 2 * GROUP).reshape(2, GROUP) % smallest_normal
    own[:, ::3] |= SIGN
    maxima = storage.round(np.array([fp8.maximum, fp8.maximum]))
    coded = _groups_below(storage, 'subnormals/coded', maxima)
    subnormal_code = fp8.values[1] * ((raw('subnormals/codes', GROUP) % 64) / 8.0)
    coded[0] = np.where((coded[0] & 0x7FFF) == maxima[0], coded[0], storage.round(subnormal_code))
    coded[1, 1::2] = own[0, 1::2]
    return _rows(np.concatenate([own, coded]).astype(np.uint16), 2)


def maximum_ties(storage: Format, fp8: Fp8) -> np.ndarray:
    """The maximum several times in a group, with both signs, adjacent and far apart; a group of one magnitude."""
    maxima = storage.round(np.array([1.0, 448.0, 0.3, 2.0**-9, 5.5, 57344.0]))
    groups = _groups_below(storage, 'maximum_ties', maxima)
    for row, places in enumerate(((0, 127), (63, 64), (0, 1, 2, 3), (31, 32, 95, 96), range(128), (5, 70))):
        places = np.array(places)
        groups[row, places] = maxima[row] | np.where(places % 2, SIGN, np.uint16(0))
    return _rows(groups, 3)


def code_edges(storage: Format, fp8: Fp8) -> np.ndarray:
    """Every code's value and every midpoint between codes, with both neighbours, where the scale is a power of two.

    The group's maximum is F, so that values meet the conversion as they are: ties must go to the even code.
    """
    midpoints = (fp8.values[:-1] + fp8.values[1:]) / 2
    aimed = np.unique(_neighbours(storage.round(np.concatenate([fp8.values, midpoints]))))
    aimed = aimed[storage.decode(aimed) <= fp8.maximum]
    aimed = np.concatenate([aimed, aimed | SIGN])
    lanes = GROUP - 1
    padded = np.resize(aimed, -(-len(aimed) // lanes) * lanes).reshape(-1, lanes)
    groups = np.concatenate([padded, np.full((len(padded), 1), storage.round(np.array(fp8.maximum)))], axis=1)
    return _rows(groups.astype(np.uint16), 2)


def format_edge(storage: Format, fp8: Fp8) -> np.ndarray:
    """Group maxima at F, half and twice F, each with both neighbours: the scale's and the clamp's edge."""
    edges = storage.round(np.array([fp8.maximum / 2, fp8.maximum, min(2 * fp8.maximum, storage.largest)]))
    maxima = _neighbours(edges)
    return _rows(_groups_below(storage, 'format_edge', maxima[maxima < storage.infinity]), 3)


def powers_of_two(storage: Format, fp8: Fp8) -> np.ndarray:
    """Group maxima at F * 2^k for every k that the storage format reaches, each with both neighbours.

    There the ue8m0 scale is exactly 2^k, or steps to the next power.
    """
    exponents = np.arange(-150, 128)
    exact = fp8.maximum * np.exp2(exponents.astype(np.float64))
    bits = storage.round(exact)
    representable = (storage.decode(bits) == exact) & (bits > 0)
    maxima = _neighbours(bits[representable])
    return _rows(_groups_below(storage, 'powers_of_two', maxima[maxima < storage.infinity]), 16)


def floor(storage: Format, fp8: Fp8) -> np.ndarray:
    """Group maxima at the floor of 1e-6 with four neighbours on both sides, at half and twice it, and the smallest."""
    at = int(storage.round(np.array(float(AMAX_FLOOR))))
    maxima = [max(at + step, 1) for step in range(-4, 5)]
    maxima += storage.round(float(AMAX_FLOOR) * np.array([0.01, 0.5, 2.0, 100.0])).tolist() + [1, 2]
    return _rows(_groups_below(storage, 'floor', np.array(maxima, np.uint16)), 5)


def nan(storage: Format, fp8: Fp8) -> np.ndarray:
    """NaN of both signs, quiet and signalling, with and without payload: one, several, half, and all of a group."""
    quiet = np.uint16(storage.infinity | (1 << (storage.mantissa - 1)))
    signalling = np.uint16(storage.infinity + 1)
    kinds = np.array([quiet, quiet | SIGN, 0x7FFF, 0xFFFF, signalling, signalling | SIGN], np.uint16)
    groups = noise(storage, 'nan', (3 * len(kinds), GROUP))
    for number, kind in enumerate(kinds):
        groups[3 * number, 11] = kind
        groups[3 * number + 1, ::2] = kind
        groups[3 * number + 2] = kind
    return _rows(groups, 3)


def nan_positions(storage: Format, fp8: Fp8) -> np.ndarray:
    """A NaN at each of the 128 positions of a group, signs alternating; the maximum of the others must survive."""
    groups = noise(storage, 'nan_positions', (GROUP, GROUP))
    place = np.arange(GROUP)
    groups[place, place] = np.where(place % 2, np.uint16(0xFFFF), np.uint16(0x7FFF))
    return _rows(groups, 4)


def infinities(storage: Format, fp8: Fp8) -> np.ndarray:
    """Infinities of both signs: one, two, beside NaN and zeros, and a whole group of them."""
    inf = np.uint16(storage.infinity)
    groups = noise(storage, 'infinities', (8, GROUP))
    groups[0, 0], groups[1, 127], groups[2, 64] = inf, inf | SIGN, inf
    groups[3, 3], groups[3, 99] = inf, inf | SIGN
    groups[4], groups[5] = inf, inf | SIGN
    groups[6] = 0
    groups[6, 50] = inf | SIGN
    groups[7, 20], groups[7, 21] = inf, 0x7FFF
    return _rows(groups, 4)


def max_positions(storage: Format, fp8: Fp8) -> np.ndarray:
    """The maximum at each of the 128 positions (by row) in each of a row's four groups."""
    x = noise(storage, 'max_positions', (GROUP, 4 * GROUP), scale=0.125).reshape(GROUP, 4, GROUP)
    place = np.arange(GROUP)
    for slot, largest in enumerate((1.5, -2.5, 3.25, -0.9)):
        x[place, slot, place] = storage.round(np.array(largest))
    return x.reshape(GROUP, -1)


def every_value(storage: Format, fp8: Fp8) -> np.ndarray:
    """Every finite bit pattern once, in an order that mixes magnitudes within a group."""
    bits = np.arange(65536, dtype=np.uint32)
    finite = bits[(bits & 0x7FFF) < storage.infinity].astype(np.uint16)
    order = np.argsort(finite.astype(np.uint32) * 40503 % 65536, kind='stable')
    mixed = finite[order]
    return _rows(np.resize(mixed, -(-len(mixed) // GROUP) * GROUP).reshape(-1, GROUP), 16)
