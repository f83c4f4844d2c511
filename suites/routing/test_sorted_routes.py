"""Every case of sorted_routes; harness/contracts/sorted_routes.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'sorted_routes'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
