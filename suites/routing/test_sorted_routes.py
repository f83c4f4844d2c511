"""Every case of sorted_routes; harness/contracts/sorted_routes.py says what is promised, and why."""
from harness.contracts import sorted_routes

OPERATOR = sorted_routes.OPERATOR


def test_contract(subject, case, setting, evidence):
    sorted_routes.judge(case, subject, setting, evidence)
