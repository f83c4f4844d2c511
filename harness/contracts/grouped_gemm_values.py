"""The numbers of a grouped GEMM's problems. Every pattern: (problem, (M, top_k), sorted routes) -> named numpy arrays.

a uint8 [rows, K], a_scale float32 [rows, G], b uint8 [local experts, N, K], b_scale float32
[local experts, N / group_n, G], bias float64 [local experts, N]. Rows that no local expert uses, and experts without
routes, are NaN. The same on every machine.
"""
from __future__ import annotations

import numpy as np

from harness.contracts.values import raw
from harness.oracles.fp8 import FP8_FORMATS

NAN_CODE = 0x7F


def _normal(seed: str, shape: tuple[int, ...], deviation: float = 1.0) -> np.ndarray:
    """Bell-shaped values: the sum of four uniforms."""
    uniform = raw(seed, 4 * int(np.prod(shape))).astype(np.float64).reshape(4, *shape)
    return (uniform.sum(axis=0) - 2 * 65535) / 37837.0 * deviation


def _powers(seed: str, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """2^low to 2^high, both included."""
    exponents = low + raw(seed, int(np.prod(shape))).reshape(shape).astype(np.int64) % (high - low + 1)
    return np.ldexp(1.0, exponents)


def _uneven(seed: str, shape: tuple[int, ...]) -> np.ndarray:
    """Factors in [1, 2) with all their digits."""
    return 1 + raw(seed, int(np.prod(shape))).reshape(shape) / 65536.0


class _Shapes:
    """Shapes of the numbers that a problem uses, and a seed that names all of them. Weights are made for the local
    experts that have routes only: a layer's may be larger than this machine can make."""

    def __init__(self, problem, ids_shape, by_expert):
        tokens, top_k = ids_shape
        experts = range(problem.offset, problem.offset + problem.local_experts)
        self.rows_of = [by_expert.of(e) // top_k if problem.gate_up else np.arange(by_expert.start[e], by_expert.end[e])
                        for e in experts]
        self.active = np.array([e for e, rows in enumerate(self.rows_of) if len(rows)], np.int64)
        self.rows = tokens if problem.gate_up else tokens * top_k
        groups = problem.k // problem.group_k
        self.a, self.a_scale = (self.rows, problem.k), (self.rows, groups // problem.groups_to_a_scale)
        self.b = (len(self.active), problem.n, problem.k)
        self.b_scale = (len(self.active), problem.n // problem.group_n, groups)
        self.bias = (len(self.active), problem.n)
        self.seed = f'gemm/{problem.values}/{self.a}{self.b}{problem.seed}'


def _among_nan(values: np.ndarray, active: np.ndarray, experts: int) -> np.ndarray:
    """Numbers of the active experts among NaN (or the code of NaN) for all others."""
    nan = NAN_CODE if values.dtype == np.uint8 else np.nan
    whole = np.full((experts, *values.shape[1:]), nan, values.dtype)
    whole[active] = values
    return whole


def _made(make):
    """A pattern from (shapes, problem) -> a, a_scale, b, b_scale, codes being uint8 or numbers yet to be encoded."""

    def pattern(problem, ids_shape, by_expert) -> dict[str, np.ndarray]:
        shapes = _Shapes(problem, ids_shape, by_expert)
        a, a_scale, b, b_scale = make(shapes, problem)
        encode = FP8_FORMATS[problem.codes].encode
        a, b = (x if x.dtype == np.uint8 else encode(x) for x in (a, b))
        unused = np.ones(shapes.rows, bool)
        for rows in shapes.rows_of:
            unused[rows] = False
        a_scale = a_scale.astype(np.float32)
        a[unused], a_scale[unused] = NAN_CODE, np.nan
        found = {'a': a, 'a_scale': a_scale}
        weights = {'b': b, 'b_scale': b_scale.astype(np.float32)}
        if problem.bias:
            weights['bias'] = np.round(_normal(shapes.seed + 'bias', shapes.bias) * 1024) / 256
        return found | {name: _among_nan(values, shapes.active, problem.local_experts)
                        for name, values in weights.items()}

    return pattern


def _exact(s: _Shapes, problem):
    """Sparse codes of 0 and +-1 under powers of two: every partial sum fits 13 bits, whatever the order."""
    a, b = (np.array([0, 0, 1, -1])[raw(s.seed + x, int(np.prod(shape))).reshape(shape) % 4].astype(np.float64)
            for x, shape in (('a', s.a), ('b', s.b)))
    return a, _powers(s.seed + 'as', s.a_scale, -1, 1), b, _powers(s.seed + 'bs', s.b_scale, -1, 1)


def _ordinary(s: _Shapes, problem):
    """Bell-shaped codes; scales with all their digits."""
    return (_normal(s.seed + 'a', s.a) * 24, _uneven(s.seed + 'as', s.a_scale) / 64, _normal(s.seed + 'b', s.b) * 24,
            _uneven(s.seed + 'bs', s.b_scale) / 512)


def _coherent(s: _Shapes, problem):
    """All terms positive: every cut goes the same way."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    return np.abs(a), a_scale, np.abs(b), b_scale


def _apart(s: _Shapes, problem):
    """Scales that differ by up to 2^24 from one K group to the next."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    return (a, a_scale * _powers(s.seed + 'far', s.a_scale, -6, 6), b,
            b_scale * _powers(s.seed + 'farb', s.b_scale, -6, 6))


def _tiny_scales(s: _Shapes, problem):
    """Products of scales on both sides of 1e-12, which the kernels take instead of a smaller one."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    return (a, a_scale * _powers(s.seed + 'far', s.a_scale, -16, -12), b,
            b_scale * _powers(s.seed + 'farb', s.b_scale, -18, -10))


def _zero_scales(s: _Shapes, problem):
    """A group of zeros under a scale of 0, as other quantisers store it: the last or the second of a row of a, the
    first of b, which then meet or do not."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    second = slice(problem.group_k, 2 * problem.group_k)
    a_scale[::2, -1], a_scale[1::2, 1] = 0, 0
    a[::2, -problem.group_k:], a[1::2, second] = 0, 0
    b_scale[:, 0, 0] = 0
    b[:, :problem.group_n, :problem.group_k] = 0
    return a, a_scale, b, b_scale


def _cancelling(s: _Shapes, problem):
    """The second half of K takes back what the first half gave, but for a remainder in b's last bits."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    half = problem.k // 2
    a[:, half:], b[:, :, half:] = a[:, :half], -b[:, :, :half]
    b[:, :, half::7] *= 1.25
    groups = a_scale.shape[1] // 2
    a_scale[:, groups:], b_scale[:, :, groups:] = a_scale[:, :groups], b_scale[:, :, :groups]
    return a, a_scale, b, b_scale


def _one_hot(s: _Shapes, problem):
    """Row r of a is 1 at k = r % K alone: every element of b comes out as it is. b holds every finite code."""
    fp8 = FP8_FORMATS[problem.codes]
    finite = np.concatenate([np.arange(fp8.last_finite + 1), 0x80 + np.arange(fp8.last_finite + 1)]).astype(np.uint8)
    a = np.eye(problem.k)[np.arange(s.a[0]) % problem.k]
    position = np.arange(problem.n)[:, None] + 3 * np.arange(problem.k)[None] + 5 * np.arange(s.b[0])[:, None, None]
    return (a, _powers(s.seed + 'as', s.a_scale, -1, 1), finite[position % len(finite)],
            _powers(s.seed + 'bs', s.b_scale, -1, 1))


def _bits(s: _Shapes, problem, make):
    """Other codes under scales that are powers of two."""
    a, _, b, _ = make(s, problem)
    return a, _powers(s.seed + 'as', s.a_scale, -2, 2), b, _powers(s.seed + 'bs', s.b_scale, -2, 2)


def _every_code(s: _Shapes, problem):
    """Every finite code against every other, all magnitudes in one step."""
    finite = FP8_FORMATS[problem.codes].last_finite + 1
    a, b = (raw(s.seed + x, int(np.prod(shape))).reshape(shape) for x, shape in (('a', s.a), ('b', s.b)))
    a, b = ((x % finite + 0x80 * (x >> 15)).astype(np.uint8) for x in (a, b))
    return a, np.ones(s.a_scale), b, np.ones(s.b_scale)


def _probe(s: _Shapes, problem):
    """What an accumulator keeps beside 2^16: s = 2^(15 - r) for every r up to 28, by row and column.

    In the first K group 2^16, s and -2^16 fall into one step; what is left is s where a step keeps that bit. In the
    second, which odd columns have alone, 2^16 and 2s are added to it, and -2^16 comes steps later: 3s has to outlast
    the accumulator's output.
    """
    rows, columns = np.arange(s.a[0]) % 15, np.arange(problem.n) % 15
    a, b = np.zeros(s.a), np.zeros(s.b)
    for first, last, small in ((0, 4, 128.0), (problem.group_k, problem.group_k + 64, 256.0)):
        a[:, first], a[:, first + 1], a[:, last] = 256.0, np.ldexp(small, -rows), 256.0
        b[:, :, first], b[:, :, first + 1], b[:, :, last] = 256.0, np.ldexp(256.0, -columns), -256.0
    b[:, ::2, problem.group_k:] = 0
    return a, np.ones(s.a_scale), b, np.ones(s.b_scale)


def _nan_codes(s: _Shapes, problem):
    """A NaN in one row of a and one column of one expert's b: nothing else may be touched by it."""
    a, a_scale, b, b_scale = _ordinary(s, problem)
    a, b = (FP8_FORMATS[problem.codes].encode(x) for x in (a, b))
    a[s.rows_of[s.active[0]][0], 5], b[-1, 7, -3] = NAN_CODE, NAN_CODE | 0x80
    return a, a_scale, b, b_scale


PATTERNS = {
    'exact': _made(_exact),
    'ordinary': _made(_ordinary),
    'coherent': _made(_coherent),
    'apart': _made(_apart),
    'tiny_scales': _made(_tiny_scales),
    'zero_scales': _made(_zero_scales),
    'cancelling': _made(_cancelling),
    'one_hot': _made(_one_hot),
    'probe': _made(_probe),
    'bits_ordinary': _made(lambda s, p: _bits(s, p, _ordinary)),
    'bits_coherent': _made(lambda s, p: _bits(s, p, _coherent)),
    'bits_every_code': _made(_every_code),
    'nan_codes': _made(_nan_codes),
}
