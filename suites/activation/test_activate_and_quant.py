"""Every case of activate_and_quant; harness/contracts/activate_and_quant.py says what is promised, and why."""
from harness.contracts import activate_and_quant

OPERATOR = activate_and_quant.OPERATOR


def test_contract(subject, case, setting, evidence):
    activate_and_quant.judge(case, subject, setting, evidence)
