"""Every case of refusals; harness/contracts/refusals.py says what is promised, and why."""
from harness.contracts import refusals

OPERATOR = refusals.OPERATOR


def test_contract(subject, case, setting, evidence):
    refusals.judge(case, subject, setting, evidence)
