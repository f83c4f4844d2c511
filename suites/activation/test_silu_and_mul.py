"""Every case of silu_and_mul; harness/contracts/silu_and_mul.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'silu_and_mul'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
