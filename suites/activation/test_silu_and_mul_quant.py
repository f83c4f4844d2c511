"""Every case of silu_and_mul_quant; harness/contracts/silu_and_mul_quant.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'silu_and_mul_quant'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
