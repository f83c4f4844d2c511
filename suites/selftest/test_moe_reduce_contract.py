"""The weighted reduce's contract: its oracle against exact arithmetic, its cases against their claims, and faults."""
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from harness.contracts import moe_reduce
from harness.evidence.verdicts import Reason
from harness.oracles import moe_reduce as oracle
from suites.selftest.lmdeploy_copy import judge_copy
from suites.selftest.planted import NOTICED, assert_holds, assert_noticed

CPU = torch.device('cpu')
DIGITS = {'bf16': (8, -133), 'fp16': (11, -24), 'fp32': (24, -149)}
ORDER_FREE = [case for case in moe_reduce.CASES if case.options.get('order_free') and 'cpu' in case.lanes]


def nearest(value: Fraction, name: str) -> Fraction:
    """Round to nearest even in exact arithmetic; the range is not left."""
    digits, smallest = DIGITS[name]
    if value == 0:
        return value
    exponent = 0
    while abs(value) >= Fraction(2)**(exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2)**exponent:
        exponent -= 1
    step = Fraction(2)**max(exponent - digits + 1, smallest)
    return round(value / step) * step


def by_fractions(h: list[Fraction], w: list[Fraction], acc: str, order: str) -> Fraction:
    products = [nearest(a * b, acc) for a, b in zip(h, w, strict=True)]
    if order == 'halves':
        while len(products) > 1:
            half = len(products) // 2
            products = [nearest(a + b, acc) for a, b in zip(products[:half], products[half:], strict=True)]
        return products[0]
    if order == 'chain':
        total = products[0]
        for product in products[1:]:
            total = nearest(total + product, acc)
        return total
    first = 1 if order == 'fused_from_1' else 0
    total = products[first]
    for k in [1 - first, 2, 3]:
        total = nearest(total + h[k] * w[k], acc)
    return total


@pytest.mark.parametrize('order', oracle.ORDERS)
@pytest.mark.parametrize('kind', moe_reduce.EVERY, ids=lambda kind: kind.id)
def test_oracle_agrees_with_exact_arithmetic(kind, order):
    generator = np.random.default_rng(7)
    spread = np.exp2(generator.integers(-12, 3, (1, 4, 60)))
    hidden = oracle.rounded(generator.normal(size=(1, 4, 60)) * spread, kind.storage)
    weights = oracle.rounded(generator.uniform(0.01, 1, (1, 4)), 'fp32')
    found = oracle.reduce(hidden, weights, kind.storage, kind.fp32_acc, order)[0]
    acc = oracle.accumulation(kind.storage, kind.fp32_acc)
    w = [nearest(Fraction(value), acc) for value in weights[0]]
    for column in range(60):
        expected = nearest(by_fractions([Fraction(v) for v in hidden[0, :, column]], w, acc, order), kind.storage)
        assert oracle.to_bits(np.array([float(expected)]), kind.storage)[0] == found[column]


@pytest.mark.parametrize('kind', moe_reduce.EVERY, ids=lambda kind: kind.id)
def test_any_permutation_lies_within_the_bound_and_the_bound_is_no_more_than_ten_times_too_wide(kind):
    hidden, weights = moe_reduce.inputs.noise(kind.storage, 2, 4, 256, positive=True)
    total, magnitude = oracle.exact_sum(hidden, weights, kind.storage, kind.fp32_acc)
    allowed = oracle.error_bound(total, magnitude, 4, kind.storage, kind.fp32_acc)
    worst = 0.0
    for seed in range(6):
        places = np.random.default_rng(seed).permutation(4)
        for order in oracle.ORDERS:
            bits = oracle.reduce(hidden[:, places], weights[:, places], kind.storage, kind.fp32_acc, order)
            worst = max(worst, float((np.abs(as_values(bits, kind.storage) - total) / allowed).max()))
    assert 0.1 < worst <= 1


def as_values(bits: np.ndarray, storage: str) -> np.ndarray:
    signed = torch.from_numpy(bits.view(f'i{bits.dtype.itemsize}'))
    return signed.view(moe_reduce.TORCH[storage]).to(torch.float64).numpy()


@pytest.mark.parametrize('case', ORDER_FREE, ids=lambda case: case.id)
def test_the_order_does_not_decide_where_the_case_says_so(case):
    routed = case.build(CPU)
    hidden, weights = routed.hidden.double().numpy(), routed.weights.double().numpy()
    results = [oracle.reduce(hidden, weights, case.options['storage'], case.options['fp32_acc'], order)
               for order in oracle.ORDERS]
    assert all(np.array_equal(a, b) for a, b in pairwise(results))


@pytest.mark.parametrize('storage', ['bf16', 'fp16'])
@pytest.mark.parametrize('experts', [3, 8])
def test_every_step_tells_the_accumulations_apart_in_every_element(storage, experts):
    hidden, weights = moe_reduce.inputs.rounded_every_step(storage, experts)
    found = [oracle.reduce(hidden, weights, storage, fp32_acc, 'chain') for fp32_acc in (False, True)]
    assert (found[0] != found[1]).all()


@pytest.mark.parametrize('experts', moe_reduce.TOP_K[1:])
def test_swapping_the_weights_of_any_two_experts_shows_in_every_row(experts):
    hidden, weights = moe_reduce.inputs.distinct_gains('bf16', 2, experts, 72)
    expected = oracle.reduce(hidden, weights, 'bf16', True, 'chain')
    for one in range(experts):
        for other in range(one):
            swapped = weights.copy()
            swapped[:, [one, other]] = weights[:, [other, one]]
            assert (oracle.reduce(hidden, swapped, 'bf16', True, 'chain') != expected).any(axis=1).all()


# Name -> (text, its replacement, the case that notices, the reasons it may give).
LOAD_W = 'w = tl.load(weights_ptrs, mask=mask_k, other=0.0)\n\n    if fp32_acc:'
FAULTS = {
    'experts_reversed': ('mid * stride_wm + offs_k * stride_wk', 'mid * stride_wm + (K - 1 - offs_k) * stride_wk',
                         'bf16-storageacc-experts_k5', NOTICED),
    'fp32_acc_ignored': ('    if fp32_acc:\n', '    if False:\n', 'bf16-fp32acc-past_storage', NOTICED),
    'always_float32': ('    if fp32_acc:\n', '    if True:\n', 'bf16-storageacc-every_step_k3', NOTICED),
    'weight_not_rounded': ('        w = w.to(h.dtype)\n', '        w = w\n', 'fp16-storageacc-one_expert', NOTICED),
    'weight_rounded_early': (LOAD_W, LOAD_W.replace('other=0.0)', 'other=0.0).to(h.dtype)'),
                             'bf16-fp32acc-one_expert', NOTICED),
    'weights_unmasked': (LOAD_W, LOAD_W.replace('mask=mask_k, other=0.0', ''), 'bf16-storageacc-experts_k3', NOTICED),
    'states_of_more_experts': ('mask_h = mask_k[:, None] & mask_n[None, :]', 'mask_h = mask_n[None, :]',
                               'bf16-storageacc-experts_k3', NOTICED),
    'last_column_missing': ('mask_n = offs_n < N ', 'mask_n = offs_n < N - 1 ', 'bf16-storageacc-shape_2x8x257',
                            NOTICED),
    'tail_unmasked': ('tl.store(o_ptrs, o, mask=mask_n)', 'tl.store(o_ptrs, o)', 'bf16-storageacc-shape_1x8x1',
                      NOTICED),
    'one_block_a_token': ('grid = (M * triton.cdiv(N, BLOCK_N), )', 'grid = (M, )', 'bf16-storageacc-shape_2x6x600',
                          NOTICED),
    'weight_pitch_from_shape': ('mid * stride_wm', 'mid * K', 'bf16-storageacc-pitched_tokens', NOTICED),
    'expert_pitch_from_shape': ('offs_k[:, None] * stride_hk', 'offs_k[:, None] * N', 'bf16-storageacc-pitched_experts',
                                NOTICED),
    'sign_lost': ('h * w[:, None]', 'h * tl.abs(w)[:, None]', 'bf16-storageacc-negative_weights', NOTICED),
    'sum_from_plus_zero': ('o = wh.sum(axis=0)', 'o = wh.sum(axis=0) + 0.0', 'bf16-storageacc-signed_zeros_k4',
                           NOTICED),
    'subnormals_flushed': ('o = wh.sum(axis=0)', 'o = wh.sum(axis=0)\n    o = tl.where(tl.abs(o) < 1.2e-38, 0.0, o)',
                           'bf16-storageacc-subnormals', NOTICED),
    'zero_weights_skipped': ('wh = h * w[:, None]', 'wh = tl.where(w[:, None] == 0, 0.0, h * w[:, None])',
                             'bf16-storageacc-nonfinite', (Reason.NONFINITE_TABLE, )),
    'half_the_digits': ('wh = h * w[:, None]', 'wh = (h.to(tl.float8e5) * w[:, None]).to(h.dtype)',
                        'bf16-storageacc-ordinary_k8', (Reason.BOUND, )),
    'another_order': ('o = wh.sum(axis=0)', 'o = wh.reshape(2, BLOCK_K // 2, BLOCK_N).sum(axis=1).sum(axis=0)',
                      'bf16-storageacc-ordinary_k8', (Reason.WORSE_WITHIN_BOUND, )),
}


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, tmp_path, stock, device):
    old, new, case_id, reasons = FAULTS[name]
    assert_noticed(lambda: judge_copy(tmp_path, 'moe.fused_moe', [(old, new)], 'moe_reduce', case_id, stock, device),
                   reasons)


@pytest.mark.parametrize('case_id', sorted({case for _, _, case, _ in FAULTS.values()}))
def test_unchanged_copy_passes_where_faults_are_noticed(case_id, tmp_path, stock, device):
    assert_holds(judge_copy(tmp_path, 'moe.fused_moe', [], 'moe_reduce', case_id, stock, device))
