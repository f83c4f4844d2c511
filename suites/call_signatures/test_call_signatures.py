"""Every case of call_signatures; harness/contracts/call_signatures.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'call_signatures'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
