"""Every case of quant_fp8; harness/contracts/quant_fp8.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'quant_fp8'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
