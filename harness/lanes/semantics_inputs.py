"""Special values, as bit patterns: the inputs of the semantics table. numpy only: a GPU box may have nothing else."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    """A floating-point format. `bits` counts all of it, `mantissa` the stored fraction bits."""

    name: str
    bits: int
    mantissa: int

    @property
    def storage(self) -> np.dtype:
        """The unsigned integer that holds one bit pattern."""
        return np.dtype(f'uint{self.bits}')

    @property
    def sign(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        """Bits of +inf. e4m3fn has none, and no input list below asks for it."""
        return self.sign - (1 << self.mantissa)


FP32 = Format('fp32', 32, 23)
FP16 = Format('fp16', 16, 10)
BF16 = Format('bf16', 16, 7)
E4M3 = Format('fp8e4nv', 8, 3)
E5M2 = Format('fp8e5', 8, 2)
FORMATS = {f.name: f for f in (FP32, FP16, BF16, E4M3, E5M2)}


def bits_of(value: float, fmt: Format) -> int:
    """Bits of `value` in fp32, fp16 or bf16; digits that the format does not have are cut off."""
    if fmt is FP16:
        with np.errstate(over='ignore'):
            return int(np.float16(value).view(np.uint16))
    return int(np.float32(value).view(np.uint32)) >> (32 - fmt.bits)


def value_of(bits: int, fmt: Format) -> float:
    """The number behind fp32, fp16 or bf16 bits."""
    if fmt is FP16:
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << (32 - fmt.bits)).view(np.float32))


def nans(fmt: Format) -> list[int]:
    """Quiet and signalling, smallest and largest payload, both signs."""
    if fmt is E4M3:
        return [0x7f, 0xff]
    quiet = 1 << (fmt.mantissa - 1)
    payloads = sorted({1, quiet - 1, quiet, quiet + quiet // 2 + 1, 2 * quiet - 1} - {0})
    return [sign | fmt.infinity | payload for sign in (0, fmt.sign) for payload in payloads]


def codes(fmt: Format) -> list[int]:
    """FP8 codes where widening may go wrong: zero, subnormals, the first normals, the largest, infinity and NaN."""
    normal = 1 << fmt.mantissa
    positive = [0, *range(1, normal + 2), *range(0x78, 0x80)]
    return positive + [fmt.sign | code for code in positive]


# Where a conversion may go wrong: the target's largest value, its ties and what lies past it; its subnormals' ties.
_EDGES = {
    'fp8e4nv': [448, 456, 464, 472, 480, 496, 512, 2**-6, 7.5 * 2**-9, 6.5 * 2**-9, 2.5 * 2**-9, 1.5 * 2**-9, 2**-9,
                0.5 * 2**-9, 0.75 * 2**-9, 0.25 * 2**-9, 1.0625, 1.1875, 1.9375],
    'fp8e5': [57344, 59392, 61440, 63488, 65504, 65520, 65536, 2**-14, 3.5 * 2**-16, 2.5 * 2**-16, 1.5 * 2**-16, 2**-16,
              0.5 * 2**-16, 0.75 * 2**-16, 0.25 * 2**-16, 1.125, 1.375, 1.875],
    'fp16': [65504, 65512, 65520, 65536, 2**-14, 2**-14 - 2**-25, 2.5 * 2**-24, 1.5 * 2**-24, 2**-24, 2**-25,
             1 + 2**-11, 1 + 3 * 2**-11],
    'bf16': [1 + 2**-8, 1 + 3 * 2**-8, 2 - 2**-8, float.fromhex('0x1.fep127'), float.fromhex('0x1.ffp127'),
             2.0**-133, 2.0**-134, 1.5 * 2**-133, 2.5 * 2**-133, 2.0**-126, 2.0**-126 - 2.0**-134],
    'fp32': [1.0, 2.0**-126, 2.0**-133],
}


def conversion_inputs(source: Format, target: Format) -> list[int]:
    """Bits of `source`: specials, and each edge of `target` with both neighbours, both signs."""
    if source.bits == 8:
        return codes(source)
    chosen = {0, 1, 2, source.infinity - 1, source.infinity}
    for edge in _EDGES[target.name]:
        near = bits_of(edge, source)
        chosen |= {near, near + 1, max(near - 1, 0)}
    positive = sorted(c for c in chosen if c <= source.infinity)
    return positive + [source.sign | c for c in positive] + nans(source)


def operands(fmt: Format) -> list[int]:
    """Operands for pairs: zeros, ones, infinities, NaNs (quiet, negative with payload, signalling), extremes."""
    quiet = 1 << (fmt.mantissa - 1)
    signalling, payload = fmt.infinity | 1, fmt.infinity | quiet | 1
    largest = fmt.infinity - 1
    return [0, fmt.sign, bits_of(1.0, fmt), bits_of(-1.5, fmt), bits_of(2.0, fmt) - 1, fmt.infinity,
            fmt.sign | fmt.infinity, fmt.infinity | quiet, fmt.sign | payload, signalling, largest,
            fmt.sign | largest, 1]


def unary_inputs(fmt: Format) -> list[int]:
    """Operands of a one-operand operation: `operands`, every NaN, and both sides of the bounds that kernels use."""
    chosen = operands(fmt) + nans(fmt)
    for bound in (448.0, 2.0, 1e-6):
        near = bits_of(bound, fmt)
        chosen += [near - 1, near, near + 1, fmt.sign | (near - 1), fmt.sign | near, fmt.sign | (near + 1)]
    return list(dict.fromkeys(chosen))


def exponential_inputs() -> list[int]:
    """fp32 bits: specials, and both sides of where exp overflows and where its result is subnormal or zero."""
    values = [0.5, 1.0, 20.0, 87.0, 88.0, 88.7, 88.8, 89.0, 96.0, 100.0, 104.5, 110.0, 1e4, 3e38]
    numbers = [bits_of(sign * v, FP32) for v in values for sign in (1.0, -1.0)]
    return numbers + [0, FP32.sign, 1, FP32.infinity, FP32.sign | FP32.infinity] + nans(FP32)


def triples(fmt: Format) -> list[tuple[int, int, int]]:
    """Operands (a, b, c) of fma: NaN in each place, inf * 0, inf - inf, overflow, zeros, sums of one rounding."""
    nan, inf, zero, one = fmt.infinity | (1 << (fmt.mantissa - 1)), fmt.infinity, 0, bits_of(1.0, fmt)
    negative, largest, odd, tiny = fmt.sign, fmt.infinity - 1, one + 1, bits_of(2.0**-(fmt.mantissa + 1), fmt)
    return [(nan, one, one), (one, nan, one), (one, one, nan), (negative | nan, one, one), (inf, zero, one),
            (inf, zero, nan), (inf, one, negative | inf), (inf, one, inf), (largest, largest, negative | largest),
            (largest, bits_of(2.0, fmt), negative | largest), (one, negative, zero), (one, negative, negative),
            (one, negative | one, one), (negative | one, one, one), (odd, odd, one), (odd, odd, negative | one),
            (odd, odd, tiny), (odd, one, tiny), (odd, one, tiny + 1), (odd, one, tiny - 1), (one, one, tiny),
            (1, 1, 1), (1, one, negative | 1), (1, bits_of(0.5, fmt), 0), (3, bits_of(0.5, fmt), 0)]


def clamp_triples(fmt: Format) -> list[tuple[int, int, int]]:
    """(value, low, high): bounds that are ordinary, signed zeros, infinite, NaN, and the wrong way round."""
    nan, inf = fmt.infinity | (1 << (fmt.mantissa - 1)), fmt.infinity
    low, high, minus_inf = bits_of(-448.0, fmt), bits_of(448.0, fmt), fmt.sign | inf
    bounds = [(low, high), (bits_of(-2.0, fmt), high), (minus_inf, inf), (nan, high), (low, nan), (0, fmt.sign)]
    values = [0, fmt.sign, bits_of(1.0, fmt), high + 1, fmt.sign | (high + 1), inf, minus_inf, nan, fmt.sign | nan]
    return [(value, low, high) for low, high in bounds for value in values]


def reduction_rows(fmt: Format, width: int = 128) -> list[list[int]]:
    """Rows whose maximum, minimum or sum depends on where NaN, infinity or a signed zero stands. Sums are exact."""
    one, nan, inf = bits_of(1.0, fmt), fmt.infinity | (1 << (fmt.mantissa - 1)), fmt.infinity
    base, zeros, last = [one] * width, [0] * width, width - 1

    def put(row: list[int], **places: int) -> list[int]:
        changed = list(row)
        for place, bits in places.items():
            changed[{'first': 0, 'middle': width // 2 + 5, 'last': last}[place]] = bits
        return changed

    negative = fmt.sign
    return [base, [negative | one] * width, zeros, [negative] * width, put(zeros, first=negative),
            put([negative] * width, middle=0), put(base, first=nan), put(base, middle=nan), put(base, last=nan),
            put(base, first=negative | nan), put(base, last=fmt.infinity | 1), [nan] * width, [negative | nan] * width,
            put([nan] * width, middle=one), put(base, first=inf), put(base, last=negative | inf),
            put(base, first=inf, last=negative | inf), put(base, first=inf, middle=nan), [inf] * width,
            [negative | inf] * width, put(base, middle=inf - 1), put(zeros, last=1), put(zeros, last=negative | 1),
            put(zeros, first=bits_of(1e-6, fmt)), put(zeros, first=bits_of(1e-6, fmt) + 1),
            put(zeros, first=negative | (bits_of(1e-6, fmt) - 1))]
