"""Every case of fused_moe_blocked_fp8; harness/contracts/fused_moe_blocked_fp8.py says what is promised, and why."""
from harness.contracts import fused_moe_blocked_fp8

OPERATOR = fused_moe_blocked_fp8.OPERATOR


def test_contract(subject, case, setting, evidence):
    fused_moe_blocked_fp8.judge(case, subject, setting, evidence)
