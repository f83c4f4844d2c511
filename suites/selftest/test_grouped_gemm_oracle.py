"""The grouped GEMM's oracle: its sums in exact arithmetic, its instructions by hand, its bound against both."""
from fractions import Fraction

import pytest
import torch

from harness.contracts.expert_batches import batches
from harness.oracles import grouped_gemm as oracle
from harness.oracles import tensor_core
from harness.oracles.grouped_gemm import FLOAT32, MMA, WGMMA

INSTRUCTIONS = (WGMMA, MMA, FLOAT32)
ONE_STEP = tensor_core.Instruction('one step', 32, 13, 13, 5)


def codes(seed: int, *shape: int, positive: bool = False) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 24
    return (values.abs() if positive else values).to(torch.float8_e4m3fn).double()


def problem(m: int = 3, n: int = 256, k: int = 384, positive: bool = False):
    random = torch.Generator().manual_seed(9)
    powers = [torch.randint(-3, 4, shape, generator=random) for shape in ((m, k // 128), (n // 128, k // 128))]
    return (codes(1, m, k, positive=positive), 2.0**powers[0].double(), codes(2, n, k, positive=positive),
            2.0**powers[1].double())


def test_sums_are_those_of_exact_arithmetic():
    a, a_scale, b, b_scale = problem()
    bias = torch.arange(256).double()
    found = oracle.exact(a, a_scale, b, b_scale, bias)
    for row, column in ((0, 0), (2, 127), (1, 128), (2, 255)):
        terms = [Fraction(a[row, k].item()) * Fraction(b[column, k].item()) * Fraction(a_scale[row, k // 128].item())
                 * Fraction(b_scale[column // 128, k // 128].item()) for k in range(384)]
        assert Fraction(found[row, column].item()) == sum(terms) + column


@pytest.mark.parametrize(('small', 'kept'), [(2.0**-13, True), (2.0**-14, False)])
def test_a_step_keeps_thirteen_bits_under_its_largest_product(small, kept):
    a, b = torch.zeros(1, 32).double(), torch.ones(1, 32).double()
    a[0, :3] = torch.tensor([1.0, small, -1.0])
    found = tensor_core.dot(a, b, torch.zeros(1, 1).double(), ONE_STEP, -20)
    assert found.item() == (small if kept else 0.0)


def test_a_step_takes_the_exponents_sum_for_a_products_exponent():
    """1.5 * 1.5 = 2.25 counts as 2^0, so that a bit at 2^-13 stays; and an accumulator takes part in the maximum."""
    a, b = torch.zeros(1, 32).double(), torch.ones(1, 32).double()
    a[0, :2], b[0, 0] = torch.tensor([1.5, 2.0**-13]), 1.5
    accumulator = torch.tensor([[-2.25]]).double()
    assert tensor_core.dot(a, b, torch.zeros(1, 1).double(), ONE_STEP, -20).item() == 2.25, 'cut by the output'
    assert tensor_core.dot(a, b, accumulator, ONE_STEP, -20).item() == 0.0, 'the accumulator\'s exponent is 1'


def test_cuts_go_toward_zero():
    a, b = torch.zeros(2, 32).double(), torch.ones(1, 32).double()
    a[:, 0], a[:, 1] = torch.tensor([1.0, -1.0]), torch.tensor([2.0**-14 * 1.5, -2.0**-14 * 1.5])
    assert tensor_core.dot(a, b, torch.zeros(2, 1).double(), ONE_STEP, -20).flatten().tolist() == [1.0, -1.0]


def test_mma_sync_adds_pairs_of_neighbours_first():
    order = MMA.in_order(torch.arange(64)[None])[0].tolist()
    assert order[:16] == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29]
    assert order[32] == 32
    assert sorted(order) == list(range(64))


@pytest.mark.parametrize('positive', [False, True])
@pytest.mark.parametrize('instruction', INSTRUCTIONS, ids=lambda instruction: instruction.name)
def test_emulated_sums_lie_within_the_bound_and_come_near_it(instruction, positive):
    operands = problem(m=4, positive=positive)
    exact = oracle.exact(*operands)
    allowed = oracle.error_bound(*operands, instruction, 'fp32')
    ratio = ((oracle.emulate(*operands, instruction, -6) - exact).abs() / allowed).max()
    assert ratio <= 1
    assert ratio >= 0.1, 'a bound that nothing comes near judges nothing'


@pytest.mark.parametrize('instruction', INSTRUCTIONS, ids=lambda instruction: instruction.name)
def test_an_accumulator_for_each_group_lies_within_the_bound(instruction):
    operands = problem(m=4)
    a, a_scale, b, b_scale = operands
    total = torch.zeros(4, 256)
    for g in range(3):
        part = slice(128 * g, 128 * (g + 1))
        one = (a[:, part], torch.ones(4, 1).double(), b[:, part], torch.ones(2, 1).double())
        partial = oracle.emulate(*one, instruction, -6).float()
        total += partial * a_scale[:, g:g + 1].float() * b_scale[:, g].float().repeat_interleave(128)
    outside = (total.double() - oracle.exact(*operands)).abs() > oracle.error_bound(*operands, instruction, 'fp32')
    assert not outside.any()


@pytest.mark.parametrize(('out', 'dtype'), [('bf16', torch.bfloat16), ('fp16', torch.float16)])
def test_the_outputs_rounding_is_part_of_the_bound(out, dtype):
    a, a_scale, b, b_scale = problem(m=16)
    operands = (a, a_scale / 64, b, b_scale / 64)
    exact = oracle.exact(*operands)
    distance = (exact.to(dtype).double() - exact).abs()
    assert (distance <= oracle.error_bound(*operands, FLOAT32, out)).all()
    assert (distance > oracle.error_bound(*operands, FLOAT32, 'fp32')).any()


def test_the_floor_of_the_product_of_scales_is_part_of_the_bound_but_not_in_the_first_group():
    a, _, b, _ = problem(m=2, k=256)
    tiny, one = torch.full((2, 1), 1e-14).double(), torch.ones(2, 1).double()
    for a_scale, floored in ((torch.cat([one, tiny], 1), True), (torch.cat([tiny, one], 1), False)):
        operands = (a, a_scale, b, torch.ones(2, 2).double())
        allowed = oracle.error_bound(*operands, FLOAT32, 'fp32')
        effect = 1e-12 * (a[:, 128:] @ b[:, 128:].T).abs() if floored else 0 * allowed
        group = slice(0, 128) if floored else slice(128, 256)
        rounding = 16 * oracle.UNIT * (a[:, group] @ b[:, group].T).abs() + 2.0**-40
        assert (allowed >= effect * 0.98).all()
        assert (allowed <= effect + rounding + 16 * oracle.UNIT * oracle.exact(*operands).abs()).all()


def test_a_nan_stays_in_its_row_and_column():
    a, a_scale, b, b_scale = problem()
    a[1, 5], b[7, 9] = torch.nan, torch.nan
    for found in (oracle.exact(a, a_scale, b, b_scale), oracle.error_bound(a, a_scale, b, b_scale, WGMMA, 'fp32')):
        expected = torch.zeros(3, 256, dtype=torch.bool)
        expected[1], expected[:, 7] = True, True
        assert torch.equal(found.isnan(), expected)


@pytest.mark.parametrize('instruction', INSTRUCTIONS, ids=lambda instruction: instruction.name)
def test_experts_together_are_experts_one_by_one(instruction):
    experts = [problem(m=2), problem(m=2, positive=True)]
    together = tuple(torch.stack(operand) for operand in zip(*experts, strict=True))
    bias = torch.arange(512).double().reshape(2, 1, 256)
    for function, more in ((oracle.exact, (bias, )), (oracle.error_bound, (instruction, 'bf16', -6, bias)),
                           (oracle.emulate, (instruction, -6))):
        one_by_one = torch.stack([function(*operands, *(part[at] if part is bias else part for part in more))
                                  for at, operands in enumerate(experts)])
        # A batched float64 product may add in another order.
        assert torch.allclose(function(*together, *more), one_by_one, rtol=2.0**-40, atol=2.0**-200)


def test_batches_have_every_row_of_every_expert_in_little_room():
    rows = [torch.arange(first, first + count) for first, count in ((0, 3), (3, 900), (903, 1), (904, 900), (1804, 3))]
    found = list(batches(rows, columns=256))
    assert sorted(place for batch, _ in found for place in batch) == list(range(len(rows)))
    for batch, positions in found:
        for place, own in zip(batch, positions, strict=True):
            assert set(own.tolist()) == set(rows[place].tolist())
    assert [len(batch) for batch, _ in found] == [3, 1, 1], 'small ones together, large ones alone'
    assert list(batches([], columns=256)) == []
