"""Every case of call_signatures; harness/contracts/call_signatures.py says what is promised, and why."""
from harness.contracts import call_signatures

OPERATOR = call_signatures.OPERATOR


def test_contract(subject, case, setting, evidence):
    call_signatures.judge(case, subject, setting, evidence)
