"""Every case of moe_schedule; harness/contracts/moe_schedule.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'moe_schedule'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
