"""Every case of moe_reduce; harness/contracts/moe_reduce.py says what is promised, and why."""
from harness.contracts import moe_reduce

OPERATOR = moe_reduce.OPERATOR


def test_contract(subject, case, setting, evidence):
    moe_reduce.judge(case, subject, setting, evidence)
