"""Every case of silu_and_mul_quant; harness/contracts/silu_and_mul_quant.py says what is promised, and why."""
from harness.contracts import silu_and_mul_quant

OPERATOR = silu_and_mul_quant.OPERATOR


def test_contract(subject, case, setting, evidence):
    silu_and_mul_quant.judge(case, subject, setting, evidence)
