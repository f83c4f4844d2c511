"""Every case of activate_and_quant; harness/contracts/activate_and_quant.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'activate_and_quant'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
