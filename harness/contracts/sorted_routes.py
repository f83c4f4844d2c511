"""sorted_routes: topk_ids [M, top_k] -> sorted_idx [M * top_k], exp_start and exp_end [E], all int32.

A route is a pair (token, choice), numbered token * top_k + choice; expert e has the routes
sorted_idx[exp_start[e]:exp_end[e]].

Promise (bytes): exp_start and exp_end. Promise (a set per expert): sorted_idx, whose order inside an expert's range is
decided by atomics; it is sorted there before two calls, a graph replay or the oracle are compared, so that the same
call twice need not give the same bytes of it. Promise (invariants): a permutation of all routes; ranges that are prefix
sums of the experts' counts; only an expert's own routes in its range. An id that is no expert's is refused, or its
route is nobody's; input of another shape or kind is refused. Comparator: the brute-force oracle, for every subject.
The cpu lane runs a kernel's programs one after another and its threads in step: a missing barrier shows on sm90 only.
"""
from __future__ import annotations

from harness.contracts import routing
from harness.contracts.case import Case
from harness.contracts.routing_cases import make_cases
from harness.contracts.setting import Setting
from harness.evidence.log import EvidenceLog
from harness.subjects.protocol import Subject

OPERATOR = 'sorted_routes'
CASES = make_cases(OPERATOR)


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case. Raises ContractBroken."""
    experts, preparation = case.options['experts'], case.options['preparation']

    def operator(inputs):
        with setting.as_on_gpu(preparation is None):
            sorted_idx, exp_start, exp_end = subject.sorted_routes(inputs['topk_ids'], experts, preparation)
        routing.ascending_within_experts(sorted_idx, exp_end)
        return {'sorted_idx': sorted_idx, 'exp_start': exp_start, 'exp_end': exp_end}

    def judge_routed(found, ids, what, context):
        routing.judge_sorted(log, what, found, ids, experts, context)

    routing.judge(case, subject, setting, log, operator, judge_routed)
