"""Every case of silu_and_mul; harness/contracts/silu_and_mul.py says what is promised, and why."""
from harness.contracts import silu_and_mul

OPERATOR = silu_and_mul.OPERATOR


def test_contract(subject, case, setting, evidence):
    silu_and_mul.judge(case, subject, setting, evidence)
