"""Every case of route_blocks; harness/contracts/route_blocks.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'route_blocks'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
