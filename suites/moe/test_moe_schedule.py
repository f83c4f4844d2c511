"""Every case of moe_schedule; harness/contracts/moe_schedule.py says what is promised, and why."""
from harness.contracts import moe_schedule

OPERATOR = moe_schedule.OPERATOR


def test_contract(subject, case, setting, evidence):
    moe_schedule.judge(case, subject, setting, evidence)
