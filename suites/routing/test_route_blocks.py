"""Every case of route_blocks; harness/contracts/route_blocks.py says what is promised, and why."""
from harness.contracts import route_blocks

OPERATOR = route_blocks.OPERATOR


def test_contract(subject, case, setting, evidence):
    route_blocks.judge(case, subject, setting, evidence)
