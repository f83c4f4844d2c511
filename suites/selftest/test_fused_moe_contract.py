"""The whole layer's contract: a right layer passes from outside, and faults are noticed from outside and inside."""
import sys
from types import SimpleNamespace

import pytest
import torch

from harness.contracts import deviations, fused_moe_blocked_fp8, fused_moe_cases, fused_moe_relations, moe_schedule
from harness.contracts import judge as judge_case
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.subjects import taps
from harness.subjects.module import load_module
from suites.selftest.lmdeploy_copy import rewritten
from suites.selftest.right_layer import RightLayer

ON_CPU = {case.id: case for case in fused_moe_blocked_fp8.CASES if 'cpu' in case.lanes}
BROKEN = (Reason.BYTES, Reason.BOUND, Reason.NONDETERMINISTIC)


def judge(case_id: str, subject, stock, device) -> EvidenceLog:
    log = EvidenceLog()
    judge_case(ON_CPU[case_id], subject, Setting(Lane.CPU, device, stock, 'the command'), log)
    return log


@pytest.mark.parametrize('case_id', sorted(ON_CPU))
def test_a_right_layer_passes_every_case_even_where_stock_deviates(case_id, stock, device):
    log = judge(case_id, RightLayer(stock), stock, device)
    assert log.records
    assert all(record.differing == 0 for record in log.records)


def unquantised(self, x, group, dtype):
    """Codes a step off where a value lies between two."""
    codes, scales = RightLayer.quantise(self, x, group, dtype)
    bits = codes.view(torch.uint8)
    bits[::2] ^= 1
    return codes, scales


def quantised_to_powers(self, x, group, dtype):
    return RightLayer.quantise(self, x, group, dtype, 'ue8m0')


def doubled_scale(self, x, group, dtype):
    codes, scales = RightLayer.quantise(self, x, group, dtype)
    return codes, torch.roll(scales, 1, 1)


def first_scale_for_all(self, a, a_scale, *rest):
    return RightLayer.project(self, a, a_scale[:, :1], *rest)


def without_bias(self, a, a_scale, b, b_scale, bias, dtype):
    return RightLayer.project(self, a, a_scale, b, b_scale, None, dtype)


def always_swiglu(self, gate_up, act_func):
    return RightLayer.activate(self, gate_up, None)


def coarse_projection(self, *operands):
    """Three bits fewer than the dtype has."""
    return (RightLayer.project(self, *operands).view(torch.int16) & ~7).view(operands[-1])


def last_choice_lost(self, states, weights):
    return RightLayer.reduce(self, states[:, :-1], weights[:, :-1])


def choices_mixed_up(self, states, weights):
    return RightLayer.reduce(self, states, weights.flip(1))


def summed_in_half(self, states, weights):
    return RightLayer.reduce(self, states, weights).to(torch.float8_e5m2).to(states.dtype)


def never_renormalised(self, weights, ids, renormalize, w1_scale):
    return weights


def local_renormalised(self, weights, ids, renormalize, w1_scale):
    here = torch.where((ids >= 8) & (ids < 12), weights, 0.0)
    return weights / here.sum(-1, keepdim=True).clamp(min=0.1)


# Name -> (step, its replacement, the case that notices).
FAULTS_OUTSIDE = {
    'codes_off_by_one': ('quantise', unquantised, 'bf16-ordinary'),
    'scales_of_another_format': ('quantise', quantised_to_powers, 'bf16-ordinary'),
    'scales_of_another_group': ('quantise', doubled_scale, 'bf16-ordinary'),
    'one_scale_for_all_groups': ('project', first_scale_for_all, 'bf16-ordinary'),
    'no_bias': ('project', without_bias, 'bf16-bias'),
    'no_bias_on_a_slice': ('project', without_bias, 'slice_bias'),
    'activation_ignored': ('activate', always_swiglu, 'fp16-custom'),
    'few_bits_between': ('project', coarse_projection, 'fp16-ordinary'),
    'a_choice_lost': ('reduce', last_choice_lost, 'top_5'),
    'weights_mixed_up': ('reduce', choices_mixed_up, 'bf16-ordinary'),
    'few_bits_at_the_end': ('reduce', summed_in_half, 'fp16-ordinary'),
    'not_renormalised': ('weigh', never_renormalised, 'bf16-renormalised'),
    'renormalised_over_the_slice': ('weigh', local_renormalised, 'slice_middle'),
}


@pytest.mark.parametrize('name', FAULTS_OUTSIDE)
def test_a_fault_is_noticed_from_outside(name, stock, device):
    step, wrong, case_id = FAULTS_OUTSIDE[name]
    subject = type('Wrong', (RightLayer, ), {step: wrong, 'name': 'wrong'})(stock)
    with pytest.raises(ContractBroken) as broken:
        judge(case_id, subject, stock, device)
    assert broken.value.reason in BROKEN
    assert 'reproduce: the command' in str(broken.value)


def by_position(weights, ids, w1_scale):
    return weights * (1 + torch.arange(len(weights))[:, None] % 2)


# Relation -> a dependence that it must notice: (weights, ids, w1_scale) -> weights.
DEPENDENCES = {
    'permuted_tokens': by_position,
    'duplicated_token': by_position,
    'relabelled_experts': lambda weights, ids, w1_scale: weights * (1 + ids % 2),
    'scaled_weights': lambda weights, ids, w1_scale: weights.clamp(max=1.0),
    'more_experts': lambda weights, ids, w1_scale: weights * len(w1_scale),
    'idle_weights': lambda weights, ids, w1_scale: weights * (1 + w1_scale.isnan().any()),
    'zero_weight': lambda weights, ids, w1_scale: weights + 2.0**-9,
}


@pytest.mark.parametrize('relation', fused_moe_relations.RELATIONS)
def test_a_relation_notices_what_it_is_about(relation, stock, device):
    depends = DEPENDENCES[relation]

    class Depending(RightLayer):

        def weigh(self, weights, ids, renormalize, w1_scale):
            return depends(weights, ids, w1_scale)

    with pytest.raises(ContractBroken) as broken:
        judge(f'dense-{relation}', Depending(stock), stock, device)
    assert broken.value.reason is Reason.BYTES


def test_a_refusal_is_right_where_the_contract_says_so_and_nowhere_else(stock, device):

    class Refusing(RightLayer):

        def fused_moe_blocked_fp8(self, *tensors, **options):
            raise ValueError('hidden_scale: expected groups of 128')

    log = judge('hidden_groups_64', Refusing(stock), stock, device)
    assert [record.kind for record in log.records] == ['refusal']
    with pytest.raises(ValueError, match='hidden_scale'):
        judge('bf16-ordinary', Refusing(stock), stock, device)


LAYER = 'def fused_moe_blocked_fp8('  # from here on the launcher's own text
# Name -> (text, its replacement, from where on, case, reasons, what the message says).
FAULTS_INSIDE = {
    'another_scale_format': ('quant_fp8(gate_cache, group_size, dtype=input.dtype)',
                             "quant_fp8(gate_cache, group_size, dtype=input.dtype, scale_fmt='ue8m0')", LAYER,
                             'bf16-bias', (Reason.BYTES, ), 'against stock quant_fp8'),
    'activation_of_its_own': ('gate_cache = silu_and_mul(intermediate_cache1)',
                              'gate, up = intermediate_cache1.chunk(2, -1)\n'
                              '        gate_cache = torch.nn.functional.silu(gate) * up', LAYER, 'one_token',
                              (Reason.BYTES, ), 'the stages are'),
    'something_in_between': ('    del intermediate_cache1\n', '    del intermediate_cache1\n    gate_cache += 0.125\n',
                             LAYER, 'one_token', (Reason.BYTES, ), 'what is quantised is what the activation gave'),
    'routes_of_other_ids': ('_get_sorted_idx(topk_ids, num_experts)', '_get_sorted_idx(topk_ids.flip(0), num_experts)',
                            LAYER, 'top_1', (Reason.BYTES, ), 'those that are sorted are the router'),
    'weights_changed': ('moe_reduce(intermediate_cache2, topk_weights)',
                        'moe_reduce(intermediate_cache2, topk_weights * 1.001)', LAYER, 'top_1', (Reason.BYTES, ),
                        'those of the reduce'),
    'foreign_rows_left': ('intermediate_cache2 = _make_intermediate((M, topk, w2.shape[1]), dtype=out_dtype, '
                          'device=device, zeros=not full_exp)',
                          'intermediate_cache2 = torch.ones((M, topk, w2.shape[1]), dtype=out_dtype)', LAYER,
                          'slice_idle', (Reason.BYTES, ), 'rows of experts that are not here'),
    'another_tile': ('    if avg_routes <= 16:\n        return 16\n', '', 'def _blocked_fp8_block_m', 'one_token',
                     (Reason.LATENT, ), 'down is launched in another way'),
    'few_bits_kept': ('\n        accumulator = tl.dot(a, b, acc=accumulator)\n',
                      '\n        accumulator = tl.dot(a, b, acc=accumulator).to(tl.float16).to(tl.float32)\n', '',
                      'fp16-slice_last', (Reason.BOUND, ), 'gate_up: '),
}


def tappable(folder, changes, since: str):
    """A copy of the layer's module with taps, like stock."""
    path = folder / 'copy.py'
    path.write_text(rewritten('moe.blocked_fp8', changes, since))
    layer = load_module(path).fused_moe_blocked_fp8
    module = sys.modules[layer.__module__]
    return SimpleNamespace(name='copy', fused_moe_blocked_fp8=layer, tapped=lambda: taps.tapped(module))


@pytest.mark.parametrize('name', FAULTS_INSIDE)
def test_a_fault_is_noticed_from_inside(name, tmp_path, stock, device):
    old, new, since, case_id, reasons, words = FAULTS_INSIDE[name]
    with pytest.raises(ContractBroken) as broken:
        judge(case_id, tappable(tmp_path, [(old, new)], since), stock, device)
    assert broken.value.reason in reasons
    assert words in str(broken.value)


def test_an_unchanged_copy_passes_from_inside_and_is_left_as_it_was(tmp_path, stock, device):
    copy = tappable(tmp_path, [], '')
    module = sys.modules[copy.fused_moe_blocked_fp8.__module__]
    before = {name: getattr(module, name) for name in taps.STAGES.values()}
    log = judge('one_token', copy, stock, device)
    assert all(record.differing == 0 for record in log.records)
    assert {name: getattr(module, name) for name in before} == before


def test_stock_deviates_where_it_is_recorded_and_is_pristine_afterwards(stock, device):
    known = {d.case for d in deviations.STOCK_DEVIATIONS if d.operator == 'fused_moe_blocked_fp8'}
    assert known == {'no_tokens', 'more_rows_than_tokens', 'hidden_groups_64'}
    log = judge('no_tokens', stock, stock, device)
    assert [record.kind for record in log.records] == ['deviation']
    stock.require_pristine()


class TestSchedule:

    def judge(self, change, stock, device) -> Reason:
        case = next(case for case in moe_schedule.CASES if case.id == 'narrow-a9')

        def changed(**shape):
            found = stock.moe_schedule(**shape)
            change(found)
            return found

        subject = SimpleNamespace(name='changed', moe_schedule=changed)
        with pytest.raises(ContractBroken) as broken:
            moe_schedule.judge(case, subject, Setting(Lane.CPU, device, stock, 'the command'), EvidenceLog())
        assert 'reproduce: the command' in str(broken.value)
        return broken.value.reason

    @pytest.mark.parametrize(('name', 'value'), [('operator', 'grouped_gemm'), ('block_m', 16), ('block_n', 64),
                                                 ('transpose_mma', False)])
    def test_another_launch_has_moved(self, name, value, stock, device):
        assert self.judge(lambda found: found['gate_up'].update({name: value}), stock, device) is Reason.LATENT

    @pytest.mark.parametrize(('name', 'value'), [('top_k', 1), ('reindex_a', False), ('reindex_c', True)])
    def test_other_rows_are_wrong(self, name, value, stock, device):
        assert self.judge(lambda found: found['gate_up'].update({name: value}), stock, device) is Reason.BYTES

    def test_a_projection_that_is_not_launched_is_noticed(self, stock, device):
        assert self.judge(lambda found: found.pop('down'), stock, device) in (Reason.BYTES, Reason.LATENT)

    def test_the_table_has_both_sides_of_every_boundary(self):
        ids = set(moe_schedule.TABLE)
        pairs = [('dense-tokens_64', 'dense-tokens_65'), ('narrow-tokens_32', 'narrow-tokens_33'),
                 ('down-tokens_511', 'down-tokens_512'), ('narrow-a8', 'narrow-a9'), ('narrow-a16', 'narrow-a17'),
                 ('dense-a32', 'dense-a33'), ('narrow-a48', 'narrow-a49'), ('short-a64', 'short-a65')]
        for below, above in pairs:
            assert {below, above} <= ids
            assert moe_schedule.TABLE[below][2:] != moe_schedule.TABLE[above][2:]


def test_every_case_names_the_path_that_the_dispatch_would_take(stock, device):
    """The large layers run on sm90 alone: here at least their table agrees with stock's own decision."""
    for case in fused_moe_blocked_fp8.CASES:
        layer = fused_moe_cases.layer_of(case)
        if 'path' not in case.options or 'cpu' in case.lanes:
            continue
        tokens, top_k = layer.ids().shape
        found = stock.moe_schedule(tokens, top_k, layer.experts, layer.local_experts, layer.offset,
                                   layer.hidden_size, layer.intermediate, device)
        for projection, expected in case.options['path'].items():
            assert found[projection] == found[projection] | expected, case.id
