"""Every case of moe_reduce; harness/contracts/moe_reduce.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'moe_reduce'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
