"""Every case of fused_moe_blocked_fp8; harness/contracts/fused_moe_blocked_fp8.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'fused_moe_blocked_fp8'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
