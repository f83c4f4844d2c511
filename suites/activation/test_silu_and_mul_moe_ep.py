"""Every case of silu_and_mul_moe_ep; its contract in harness/contracts says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'silu_and_mul_moe_ep'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
