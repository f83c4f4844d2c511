"""One file per operator: what it promises, and its catalogue of cases."""
from __future__ import annotations

from types import ModuleType

from harness.contracts.case import Case
from harness.contracts.setting import Setting
from harness.evidence.log import EvidenceLog
from harness.subjects.protocol import Subject


def contract(operator: str) -> ModuleType:
    """The contract of an operator: OPERATOR, CASES and judge(case, subject, setting, log), which holds stock to its
    promise like anybody else. KeyError if unknown."""
    from harness.contracts import (
        activate_and_quant,
        call_signatures,
        fill_kv_cache,
        fused_moe_blocked_fp8,
        grouped_gemm,
        grouped_gemm_blocks,
        moe_reduce,
        moe_schedule,
        quant_fp8,
        refusals,
        route_blocks,
        silu_and_mul,
        silu_and_mul_masked_post_quant_fwd,
        silu_and_mul_moe_ep,
        silu_and_mul_quant,
        sorted_routes,
        v4_swiglu_and_quant_fp8,
    )
    contracts = (silu_and_mul, quant_fp8, silu_and_mul_quant, activate_and_quant, refusals, sorted_routes, route_blocks,
                 moe_reduce, fill_kv_cache, grouped_gemm, grouped_gemm_blocks, call_signatures, silu_and_mul_moe_ep,
                 silu_and_mul_masked_post_quant_fwd, v4_swiglu_and_quant_fp8, fused_moe_blocked_fp8, moe_schedule)
    return {module.OPERATOR: module for module in contracts}[operator]


def catalogue(operator: str) -> tuple[Case, ...]:
    """Every case of an operator, of all lanes, in a fixed order. Raises KeyError for an unknown operator."""
    return contract(operator).CASES


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case as its contract does, or, where a deviation of stock is recorded for it, require just that.

    Raises:
        ContractBroken: the promise, or the deviation, is not what was found.
    """
    from harness.contracts import deviations
    promise = contract(case.operator).judge
    deviation = deviations.find(case.operator, case.id) if subject is setting.stock else None
    if deviation is None:
        promise(case, subject, setting, log)
        return
    # The deviation is the evidence: records of the promise that stock breaks would say the opposite.
    deviations.assert_deviates(log, deviation, lambda: promise(case, subject, setting, EvidenceLog()),
                               setting.reproduce)
