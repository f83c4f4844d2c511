"""The FP8 KV fill's contract: its oracle against independent arithmetic, its cases against their claims, and faults."""
import ml_dtypes
import numpy as np
import pytest
import torch

from harness.contracts import fill_kv_cache as contract
from harness.contracts.formats import EVERY_FORMAT, TWO_FORMATS
from harness.contracts.kv_cache_inputs import Geometry, loud_start, noise, paged
from harness.evidence.bits import storage_numpy
from harness.evidence.verdicts import Reason
from harness.oracles import kv_cache as oracle
from suites.selftest.lmdeploy_copy import judge_copy
from suites.selftest.planted import assert_holds, assert_noticed

CPU = torch.device('cpu')
ML_DTYPES = {'e4m3fn': ml_dtypes.float8_e4m3fn, 'e5m2': ml_dtypes.float8_e5m2}
NOISE = Geometry(((0, 40), ), heads=1, head_dim=256, head_dim_v=None)


def states_of(fmt, geometry=NOISE, make=noise) -> np.ndarray:
    return storage_numpy(paged(fmt, geometry, *make(fmt, geometry), CPU).tensors['k_states'])[:geometry.tokens]


@pytest.mark.parametrize('fmt', EVERY_FORMAT, ids=lambda fmt: fmt.id)
class TestQuantisation:

    def test_codes_agree_with_ml_dtypes_on_torch_division(self, fmt):
        x, how = states_of(fmt), oracle.Quantisation(fmt.codes, fmt.scale_fmt, 128)
        scales = torch.from_numpy(oracle.scales(x, how)).repeat_interleave(128, dim=-1)
        quotient = (torch.from_numpy(x) / scales).clamp(-float(how.largest), float(how.largest))
        assert np.array_equal(quotient.numpy().astype(ML_DTYPES[fmt.codes]).view(np.uint8), oracle.codes(x, how))

    def test_scales_hold_the_group_in_range_and_no_smaller_one_would(self, fmt):
        x, how = states_of(fmt), oracle.Quantisation(fmt.codes, fmt.scale_fmt, 128)
        scales = oracle.scales(x, how).astype(np.float64)
        amax = np.abs(x).reshape(*scales.shape, 128).max(axis=-1).astype(np.float64)
        used = amax / scales / float(how.largest)
        assert (used <= 1 + 2.0**-22).all()
        assert (used > (0.5 if fmt.scale_fmt else 1 - 2.0**-22)).all()

    def test_only_codes_within_the_error_of_division_are_explained(self, fmt):
        x, how = states_of(fmt), oracle.Quantisation(fmt.codes, fmt.scale_fmt, 128)
        codes = oracle.codes(x, how)
        for ulps in range(-2, 3):
            assert oracle.explained(oracle.codes(x, how, ulps), x, how, 2).all()
        assert oracle.explained(codes, x, how, 0).all()
        assert not oracle.explained(codes + np.uint8(1), x, how, 0).any()
        if fmt.scale_fmt is None:  # with a power of two for a scale ties are common, and no error is allowed
            assert oracle.explained(codes + np.uint8(1), x, how, 2).mean() < 0.01

    def test_neighbours_wrap_into_the_last_group_only(self, fmt):
        x = states_of(fmt, Geometry(((0, 20), ), heads=1, head_dim=192, head_dim_v=None), loud_start)
        own, wrapped = (oracle.scales(x, oracle.Quantisation(fmt.codes, fmt.scale_fmt, 128, wraps))
                        for wraps in (False, True))
        assert np.array_equal(own[..., 0], wrapped[..., 0])
        assert (own[..., 1] * 2 <= wrapped[..., 1]).all()


def test_the_maximum_survives_signalling_and_quiet_nan_at_every_place():
    x = np.full((128, 128), 0.5, np.float32)
    x[:, 5] = 3.0
    for row, pattern in enumerate(np.resize(np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001]), 128)):
        x.view(np.uint32)[row, [row, (row + 64) % 128]] = pattern
    x = np.delete(x, [5, 69], axis=0)  # where NaN took the maximum's place
    how = oracle.Quantisation('e4m3fn', None, 128)
    assert (oracle.scales(x, how) == np.float32(3) * np.float32(1 / 448)).all()


def test_slots_are_those_of_a_cache_that_is_filled_sequence_by_sequence():
    geometry = contract._BATCHES['mixed'][1]
    tensors = paged(TWO_FORMATS[0], geometry, *noise(TWO_FORMATS[0], geometry), CPU).tensors
    table = tensors['block_offsets'].numpy()
    found = oracle.owned_slots(tensors['cu_seqlen_q'].numpy(), tensors['kv_seqlens'].numpy(), table, geometry.block)
    expected, token = [], 0
    for sequence, (history, tokens) in enumerate(geometry.lengths):
        every_slot = [(page, slot) for page in table[sequence] for slot in range(geometry.block)]
        for page, slot in every_slot[history:history + tokens]:
            expected.append((token, page, slot))
            token += 1
    assert list(zip(found.token.tolist(), found.page.tolist(), found.slot.tolist(), strict=True)) == expected


@pytest.mark.parametrize('case', [c for c in contract.CASES if 'cpu' in c.lanes], ids=lambda case: case.id)
def test_no_slot_is_owned_twice_and_pages_are_in_no_order(case):
    geometry, tensors = contract.geometry_of(case), case.build(CPU).tensors
    numbers = [tensors[name].numpy() for name in ('cu_seqlen_q', 'kv_seqlens', 'block_offsets')]
    slots = oracle.owned_slots(*numbers, geometry.block)
    owned = set(zip(slots.page.tolist(), slots.slot.tolist(), strict=True))
    assert len(owned) == len(slots.token)
    assert len(owned) == sum(tokens for history, tokens in geometry.lengths if history + tokens > 0)
    assert all(0 <= page < geometry.pages for page, _ in owned)
    if len(set(slots.page.tolist())) > 3:
        assert (np.diff(slots.page) < 0).any()


ALL_BLOCKED = 'def fast_log2_ceil'
NONE, UE8M0 = 'bf16-e4m3fn-none', 'fp16-e5m2-ue8m0'
# Name -> (text, its replacement, the case that notices).
FAULTS = {
    'reciprocal': ('out = x / scale', 'out = x * (1.0 / scale)', 'fp16-e4m3fn-none-division_edges'),
    'reciprocal_of_quant_fp8': ('out = x / scale', 'out = x * (fp8_max / amax)', f'{NONE}-division_edges'),
    'lower_floor': ('keep_dims=True), 1e-6)', 'keep_dims=True), 1e-8)', f'{NONE}-zero_groups'),
    'signed_maximum': ('tl.max(tl.abs(x), axis=2', 'tl.max(x, axis=2', f'{NONE}-max_positions'),
    'scale_fmt_ignored': ("ROUND_SCALE = 1 if scale_fmt == 'ue8m0' else 0", 'ROUND_SCALE = 0',
                          f'{UE8M0}-history_0_prefill'),
    'scale_rounded_down': ('tl.where(man_bits != 0, 1, 0)', '0', f'{UE8M0}-history_0_prefill'),
    'scale_always_up': ('tl.where(man_bits != 0, 1, 0)', '1', 'bf16-e4m3fn-ue8m0-powers_of_two'),
    'not_clamped': ('    out = tl.clamp(out, fp8_min, fp8_max)\n', '', f'{NONE}-nan'),
    'page_of_the_launch': ('stride_boff + kv_block_id)', 'stride_boff + block_id)', f'{NONE}-history_17_decode'),
    'table_pitch_from_shape': ('stride_boff=block_offsets.stride(0)', 'stride_boff=1', f'{NONE}-decode'),
    'history_overwritten': ('(kv_offs >= history_seqlen) & (kv_offs < kv_seqlen)', 'kv_offs < kv_seqlen',
                            f'{NONE}-history_15_prefill'),
    'past_the_end': ('(kv_offs >= history_seqlen) & (kv_offs < kv_seqlen)', 'kv_offs >= history_seqlen',
                     f'{NONE}-history_1_prefill'),
    'slot_after': ('tl.full((1, ), history_seqlen % BLOCK', 'tl.full((1, ), (history_seqlen + 1) % BLOCK',
                   f'{NONE}-history_15_decode'),
    'a_block_too_few': ('triton.cdiv(max_q_seqlen, block_size) + 1', 'triton.cdiv(max_q_seqlen, block_size)',
                        f'{NONE}-history_15_prefill'),
    'value_scales_of_keys': ('tl.store(vsc_ptrs, vcs,', 'tl.store(vsc_ptrs, kcs,', f'{NONE}-decode'),
    'value_groups_of_keys': ('tl.cdiv(head_dim_v, GROUP_SIZE)', 'tl.cdiv(head_dim, GROUP_SIZE)',
                             f'{NONE}-head_dim_v_256'),
    'value_pitch_of_keys': ('stride_vss=v_states.stride(-3)', 'stride_vss=k_states.stride(-3)',
                            f'{NONE}-head_dim_v_256'),
    'shared_values_written': ('if k_caches.data_ptr() == v_caches.data_ptr() and head_dim_v <= head_dim:', 'if False:',
                              f'{NONE}-shared_v'),
    'scale_pitch_from_shape': ('stride_kscb=ks_caches.stride(s_dim)',
                               'stride_kscb=ks_caches.size(h_dim) * ks_caches.size(d_dim)', f'{NONE}-packed'),
    'codes_unmasked': ('tl.store(kc_ptrs, kc, mask=mask_kc)', 'tl.store(kc_ptrs, kc)', f'{NONE}-history_15_prefill'),
    'heads_mixed_up': ('KCaches + block_off * stride_kcn + head_id', 'KCaches + block_off * stride_kcn + (1 - head_id)',
                       f'{NONE}-decode_bhsd'),
}
# What F20 asks of lmdeploy: lanes past the head dimension load nothing.
REPAIRED = [('k = tl.load(ks_ptrs, mask=mask_ks)', 'k = tl.load(ks_ptrs, mask=mask_kc, other=0.0)'),
            ('v = tl.load(vs_ptrs, mask=mask_vs)', 'v = tl.load(vs_ptrs, mask=mask_vc, other=0.0)')]
OFF_GROUP = [case.id for case in contract.CASES if case.id.endswith('-off_group')]


@pytest.fixture
def judge(tmp_path, stock, device):
    """(changes, case id) -> judge a rewritten copy of lmdeploy's fill on that case."""
    return lambda changes, case_id: judge_copy(tmp_path, 'fill_kv_cache', changes, contract.OPERATOR, case_id, stock,
                                               device, since=ALL_BLOCKED)


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, judge):
    old, new, case_id = FAULTS[name]
    assert_noticed(lambda: judge([(old, new)], case_id))


@pytest.mark.parametrize('case_id', sorted({case for _, _, case in FAULTS.values()}))
def test_unchanged_copy_passes_where_faults_are_noticed(case_id, judge):
    assert_holds(judge([], case_id))


@pytest.mark.parametrize('case_id', OFF_GROUP)
def test_the_deviation_is_a_breach_for_others_and_a_copy_without_it_passes(case_id, judge):
    assert_noticed(lambda: judge([], case_id), (Reason.BYTES, ))
    assert_holds(judge(REPAIRED, case_id))
