"""Every case of silu_and_mul_moe_ep; its contract in harness/contracts says what is promised, and why."""
from harness.contracts import silu_and_mul_moe_ep

OPERATOR = silu_and_mul_moe_ep.OPERATOR


def test_contract(subject, case, setting, evidence):
    silu_and_mul_moe_ep.judge(case, subject, setting, evidence)
