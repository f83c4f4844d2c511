"""Every case of v4_swiglu_and_quant_fp8; its contract in harness/contracts says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'v4_swiglu_and_quant_fp8'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
