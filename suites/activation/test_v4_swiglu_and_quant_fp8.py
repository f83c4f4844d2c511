"""Every case of v4_swiglu_and_quant_fp8; its contract in harness/contracts says what is promised, and why."""
from harness.contracts import v4_swiglu_and_quant_fp8

OPERATOR = v4_swiglu_and_quant_fp8.OPERATOR


def test_contract(subject, case, setting, evidence):
    v4_swiglu_and_quant_fp8.judge(case, subject, setting, evidence)
