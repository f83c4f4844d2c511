"""Repairs beside conversions and plain arithmetic: arguments, constants, rounding modes, dot products, aliases."""
from __future__ import annotations

import contextlib
import math
import struct

import numpy as np
import pytest
import torch

from harness.lanes import cpu_device
from harness.lanes.activation import activate
from harness.lanes.interpreter import rebind_builtin_aliases
from harness.lanes.interpreter_floats import to_fp32_odd
from harness.lanes.lane import Lane

N = 16


@pytest.fixture(scope='module')
def probes():
    activate(Lane.CPU)
    from suites.selftest import interpreter_probes
    return interpreter_probes


@pytest.fixture
def bf16() -> torch.Tensor:
    return torch.linspace(-2, 2, N).to(torch.bfloat16)


def test_a_float_argument_is_fp32_and_widens_bf16(probes, bf16):
    out, width = torch.zeros(N, dtype=torch.float32), torch.zeros(1, dtype=torch.int32)
    probes.times_argument[(1, )](bf16, out, width, 0.1, N=N)
    assert width.item() == 32
    assert torch.equal(out, bf16.float() * torch.tensor(0.1, dtype=torch.float32))


def test_a_float_constant_takes_the_type_of_bf16(probes, bf16):
    out, width = torch.zeros(N, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.int32)
    probes.plus_constant[(1, )](bf16, out, width, N=N)
    assert width.item() == 16
    assert torch.equal(out, bf16 + 1.5)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_integers_are_rounded_once(probes, dtype):
    # 2^24 + 2^16 + 1 lies just past a tie of bf16, and fp32 would round it onto that tie
    past_a_tie = (1 << 24) + (1 << 16) + 1
    values = torch.tensor([0, 1, -1, 255, 257, 258, 259, -257, 2049, 2051, 4099, -65519, 65519, past_a_tie, -past_a_tie,
                           100], dtype=torch.int32)
    out = torch.zeros(N, dtype=dtype)
    probes.convert[(1, )](values, out, N=N, ROUNDING=None)
    kept = 8 if dtype is torch.bfloat16 else 11
    expected = [nearest(value, kept) for value in values.tolist()]
    largest = torch.finfo(dtype).max
    assert out.float().tolist() == [e if abs(e) <= largest else math.copysign(math.inf, e) for e in expected]


def nearest(value: int, kept: int) -> float:
    """`value` with `kept` significant bits, half to even, in integer arithmetic."""
    shift = max(abs(value).bit_length() - kept, 0)
    whole, rest = divmod(abs(value), 1 << shift)
    half = 1 << shift >> 1
    whole += shift > 0 and (rest > half or (rest == half and whole % 2 == 1))
    return math.copysign(float(whole << shift), value)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_rounding_toward_zero_never_grows_a_value(probes, dtype):
    values = torch.tensor([1.999, -1.999, 1.0, 0.0, -0.0, 1e-6, -1e-7, 3e-8, 65519.0, -65535.0, 1e-40, 2.0**-24 * 1.5,
                           math.inf, -math.inf, 3.3e38, 1e5], dtype=torch.float32)
    out = torch.zeros(N, dtype=dtype)
    probes.convert[(1, )](values, out, N=N, ROUNDING='rtz')
    found, size = out.double().abs(), values.double().abs()
    above = torch.nextafter(out.abs(), torch.full_like(out, math.inf)).double()
    assert bool((found <= size).all())
    assert bool(((above > size) | size.isinf()).all()), 'a larger value of the format would still fit'
    assert torch.equal(torch.signbit(out), torch.signbit(values))


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_dot_multiplies_numbers_not_bit_patterns(probes, dtype):
    random = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, (N, N), generator=random).float() for _ in range(2))   # all sums are exact
    out = torch.zeros(N, N)
    probes.product[(1, )](a.to(dtype), b.to(dtype), out, N=N)
    assert torch.equal(out, a @ b)


def test_dot_rounds_once(probes):
    """A sum in float32 would lose the small products, in an order that is the processor's."""
    large = torch.tensor([256.0, 2.0**-5, 2.0**-5, 2.0**-5, -256.0] + [2.0**-6] * (N - 5))
    a, b = large.repeat(N, 1), torch.full((N, N), 128.0)
    out = torch.zeros(N, N)
    probes.product[(1, )](a.to(torch.float8_e5m2), b.to(torch.float8_e5m2), out, N=N)
    assert torch.equal(out, (a.double() @ b.double()).float())
    tiny = torch.zeros(N, N)
    tiny[:, 0], tiny[:, 1], tiny[:, 2] = 57344.0, 2.0**-14, -57344.0
    probes.product[(1, )](tiny.to(torch.float8_e5m2), torch.ones(N, N).to(torch.float8_e5m2), out, N=N)
    assert torch.equal(out, torch.full((N, N), 2.0**-14))


def test_a_clamp_to_symmetric_arguments_is_no_constant_pattern(probes):
    """Bounds known at run time are a maximum and a minimum: a NaN becomes the lower bound, whatever its sign."""
    values = torch.tensor([math.nan, -math.nan, 5.0, -5.0] * 4)
    out = torch.zeros(N)
    probes.clamp_to_arguments[(1, )](values, out, -2.0, 2.0, N=N)
    assert out.tolist() == [-2.0, -2.0, 2.0, -2.0] * 4


def test_atomic_add_on_bf16_is_refused(probes, bf16):
    with pytest.raises(Exception, match='atomic_add on bf16'):
        probes.accumulate[(1, )](bf16, torch.zeros(N, dtype=torch.bfloat16), N=N)


def test_an_alias_of_a_builtin_works_once_it_is_bound_anew(probes):
    x, out = torch.linspace(-1, 1, N), torch.zeros(N)
    assert rebind_builtin_aliases(probes.__name__) == 1
    probes.through_alias[(1, )](x, out, N=N)
    assert np.array_equal(out.numpy(), np.exp(x.numpy()))
    assert rebind_builtin_aliases(probes.__name__) == 0, 'binding twice finds nothing left to bind'
    assert rebind_builtin_aliases('suites.selftest.interpreter_prob') == 0, 'half a name is no module prefix'


def test_the_stand_in_answers_like_an_h200_and_hides_the_gpu(probes):
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert (properties.major, properties.minor, properties.multi_processor_count) == (9, 0, 132)
    assert torch.cuda.get_device_capability() == (9, 0)
    assert not torch.cuda.is_available()
    assert torch.cuda.device_count() == 0


def test_reported_sm_count_is_put_back_and_told_to_listeners(probes):
    told = []
    cpu_device.when_sm_count_changes(lambda: told.append(torch.cuda.get_device_properties(0).multi_processor_count))
    with cpu_device.reported_sm_count(3), cpu_device.reported_sm_count(1):
        assert torch.cuda.get_device_properties(0).multi_processor_count == 1
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132
    assert told == [3, 1, 3, 132]
    with contextlib.suppress(KeyError), cpu_device.reported_sm_count(3):
        raise KeyError
    assert torch.cuda.get_device_properties(0).multi_processor_count == 132, 'put back after an error, too'
    with pytest.raises(ValueError, match='expected a positive number of SMs, found 0'), cpu_device.reported_sm_count(0):
        pass


def test_rounding_to_odd_keeps_the_side_of_a_tie():
    tie = 1 + 2.0**-24
    values = np.array([tie - 2.0**-50, tie, tie + 2.0**-50, -tie, 1e300, -1e300, 1e-60, -1e-60, 0.0, -0.0, math.inf,
                       1.5])
    found = [struct.unpack('<I', struct.pack('<f', v))[0] for v in to_fp32_odd(values).tolist()]
    one_up, largest = 0x3f800001, 0x7f7fffff
    assert found == [one_up, one_up, one_up, one_up | 1 << 31, largest, largest | 1 << 31, 1, 1 | 1 << 31, 0, 1 << 31,
                     0x7f800000, 0x3fc00000]
