"""Faults planted in copies of lmdeploy's routing kernels, each noticed by a case of the contract."""
import pytest

from harness.evidence.log import EvidenceLog
from suites.selftest.lmdeploy_copy import rewritten
from suites.selftest.planted import assert_holds, assert_noticed, judge_text

# The preparations under the names and arguments of the operators.
OPERATORS = '''

def sorted_routes(topk_ids, num_experts, preparation):
    return {None: _get_sorted_idx, 'parallel': _get_sorted_idx_triton,
            'single_cta': _get_sorted_idx_single_cta}[preparation](topk_ids, num_experts)


def route_blocks(topk_ids, num_experts, local_experts, expert_offset, block_m, preparation):
    if preparation == 'single_cta':
        return _get_sorted_idx_blocks_single_cta(topk_ids, num_experts, block_m)
    by_shape = _get_sorted_idx_blocks if preparation is None else _get_sorted_idx_blocks_parallel
    return by_shape(topk_ids, num_experts, local_experts, expert_offset, block_m)
'''

# Name -> (text, its replacement, the operator and case that notice).
FAULTS = {
    'start_one_late': ('exp_end - counts, mask', 'exp_end - counts + 1, mask', 'sorted_routes', 'parallel-top_4_of_60'),
    'end_is_start': ('ExpEnd + expert_offsets, exp_end, mask', 'ExpEnd + expert_offsets, exp_end - counts, mask',
                     'sorted_routes', 'parallel-empty_ends'),
    'positions_of_other_routes': ('sorted_packed % BLOCK_R', 'lane', 'sorted_routes', 'parallel-empty_ends'),
    'counts_from_one': ('counts = torch.zeros(', 'counts = torch.ones(', 'sorted_routes', 'parallel-one_expert'),
    'choice_major_routes': ('topk_ids.flatten()', 'topk_ids.T.flatten()', 'sorted_routes', 'single_cta-empty_ends'),
    'strides_ignored': ('topk_ids.flatten()', 'topk_ids', 'sorted_routes', 'single_cta-columns'),
    'pitch_ignored': ('topk_ids.flatten()', 'topk_ids', 'sorted_routes', 'parallel-columns'),
    'cursors_not_cleared': ('tl.store(Cursors + expert_offsets, 0,', 'tl.store(Cursors + expert_offsets, 1,',
                            'sorted_routes', 'single_cta-duplicates'),
    'only_full_blocks': ('(local_counts + BLOCK_SIZE_M - 1)', '(local_counts)', 'route_blocks',
                         'parallel-block_edges_16'),
    'slice_counts_from_zero': ('Counts + expert_offset + local', 'Counts + local', 'route_blocks',
                               'parallel-slice_last'),
    'slice_starts_from_zero': ('actual_expert = pid + expert_offset', 'actual_expert = pid', 'route_blocks',
                               'parallel-slice_middle'),
    'global_expert_of_block': ('block_base + block_offsets, pid,', 'block_base + block_offsets, actual_expert,',
                               'route_blocks', 'parallel-slice_last'),
    'offset_within_expert': ('exp_start + block_offsets * BLOCK_SIZE_M', 'block_offsets * BLOCK_SIZE_M',
                             'route_blocks', 'parallel-empty_ends'),
    'blocks_overlap': ('exp_start + block_offsets * BLOCK_SIZE_M', 'exp_start + block_offsets * (BLOCK_SIZE_M - 1)',
                       'route_blocks', 'parallel-block_edges_16'),
    'little_room': ('triton.cdiv(num_routes, block_m) + local_num_experts', 'triton.cdiv(num_routes, block_m)',
                    'route_blocks', 'parallel-one_expert'),
    'room_of_experts': ('min(num_routes, triton', 'min(num_experts, triton', 'route_blocks', 'single_cta-routes_2048'),
    'programs_of_experts_only': ('max(num_route_blocks, local_num_experts)', 'local_num_experts', 'route_blocks',
                                 'parallel-slice_of_one'),
    'programs_of_routes_only': ('max(num_route_blocks, local_num_experts)', 'num_route_blocks', 'route_blocks',
                                'parallel-top_8_of_128'),
    'first_block_only': ('local_pos % BLOCK_SIZE_M == 0', 'local_pos == 0', 'route_blocks',
                         'single_cta-block_edges_16'),
    'block_after_a_full_one': ('block_counts = (counts + BLOCK_SIZE_M - 1)', 'block_counts = (counts + BLOCK_SIZE_M)',
                               'route_blocks', 'single_cta-block_edges_32'),
    'single_cta_for_a_slice': (' and local_num_experts == num_experts and expert_offset == 0', '', 'route_blocks',
                               'dispatch-slice_last'),
    'blocks_of_the_next_expert': ('BlockEnd + expert_ids - 1', 'BlockEnd + expert_ids', 'route_blocks',
                                  'single_cta-top_6_of_96'),
}
# Texts that stand in more than one kernel or launcher, and are replaced in all of them.
TIMES = {'end_is_start': 2, 'choice_major_routes': 4, 'strides_ignored': 4, 'pitch_ignored': 4}


def judge_copy(folder, changes, operator: str, case_id: str, stock, device, times: int = 1) -> EvidenceLog:
    """Judge a rewritten copy of lmdeploy's routing on one case."""
    text = rewritten('moe.fused_moe', changes, times=times) + OPERATORS
    return judge_text(folder, text, operator, case_id, stock, device)


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, tmp_path, stock, device):
    old, new, *target = FAULTS[name]
    assert_noticed(lambda: judge_copy(tmp_path, [(old, new)], *target, stock, device, TIMES.get(name, 1)))


@pytest.mark.parametrize('target', sorted({fault[2:] for fault in FAULTS.values()}), ids='-'.join)
def test_unchanged_copy_passes_where_faults_are_noticed(target, tmp_path, stock, device):
    assert_holds(judge_copy(tmp_path, [], *target, stock, device))
