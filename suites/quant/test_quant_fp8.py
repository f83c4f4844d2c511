"""Every case of quant_fp8; harness/contracts/quant_fp8.py says what is promised, and why."""
from harness.contracts import quant_fp8

OPERATOR = quant_fp8.OPERATOR


def test_contract(subject, case, setting, evidence):
    quant_fp8.judge(case, subject, setting, evidence)
