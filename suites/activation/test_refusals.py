"""Every case of refusals; harness/contracts/refusals.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'refusals'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
