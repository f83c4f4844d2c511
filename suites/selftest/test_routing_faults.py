"""Faults planted in copies of lmdeploy's routing kernels, each noticed by a case of the contract."""
import importlib.util
import sys

import pytest

from harness.contracts import contract
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane

NOTICED = (Reason.BYTES, Reason.OUTSIDE_WRITE, Reason.NONDETERMINISTIC)


class Copy:
    """The preparations of a rewritten copy of lmdeploy's module. Its name is not stock's: nothing may deviate."""

    name = 'copy'

    def __init__(self, module):
        self.module = module

    def sorted_routes(self, topk_ids, num_experts, preparation=None):
        suffix = {'parallel': 'triton', 'single_cta': 'single_cta'}[preparation]
        return getattr(self.module, f'_get_sorted_idx_{suffix}')(topk_ids, num_experts)

    def route_blocks(self, topk_ids, num_experts, local_experts, expert_offset, block_m, preparation=None):
        part = () if preparation == 'single_cta' else (local_experts, expert_offset)
        return getattr(self.module, f'_get_sorted_idx_blocks_{preparation}')(topk_ids, num_experts, *part, block_m)


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
    'blocks_of_the_next_expert': ('BlockEnd + expert_ids - 1', 'BlockEnd + expert_ids', 'route_blocks',
                                  'single_cta-top_6_of_96'),
}


@pytest.fixture(scope='module')
def judge_copy(tmp_path_factory, stock, device):
    """(name, text, replacement, operator, case id) -> judge a rewritten copy of lmdeploy's routing on that case."""
    package = 'lmdeploy.pytorch.kernels.cuda.moe'

    def judge(name: str, old: str, new: str, operator: str, case_id: str) -> EvidenceLog:
        with open(sys.modules[f'{package}.fused_moe'].__file__) as source:
            text = source.read()
        assert old in text, f'{name}: lmdeploy no longer contains {old!r}'
        path = tmp_path_factory.mktemp(name) / 'copy.py'
        path.write_text(text.replace(old, new))
        spec = importlib.util.spec_from_file_location(f'{package}.copy_{name}', path)  # below the package: its imports
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        judged = contract(operator)
        (case,) = [case for case in judged.CASES if case.id == case_id]
        log = EvidenceLog()
        judged.judge(case, Copy(module), Setting(Lane.CPU, device, stock, 'the command'), log)
        return log

    return judge


@pytest.mark.parametrize('name', FAULTS)
def test_fault_is_noticed(name, judge_copy):
    with pytest.raises(ContractBroken) as broken:
        judge_copy(name, *FAULTS[name])
    assert broken.value.reason in NOTICED
    assert 'reproduce: the command' in str(broken.value)


@pytest.mark.parametrize('target', sorted({fault[2:] for fault in FAULTS.values()}), ids='-'.join)
def test_unchanged_copy_passes_where_faults_are_noticed(target, judge_copy):
    log = judge_copy('unchanged', '', '', *target)
    assert log.records
    assert all(record.differing == 0 for record in log.records)
