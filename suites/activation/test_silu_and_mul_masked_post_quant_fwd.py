"""Every case of silu_and_mul_masked_post_quant_fwd; the contract of that name says what is promised."""
from harness.contracts import silu_and_mul_masked_post_quant_fwd

OPERATOR = silu_and_mul_masked_post_quant_fwd.OPERATOR


def test_contract(subject, case, setting, evidence):
    silu_and_mul_masked_post_quant_fwd.judge(case, subject, setting, evidence)
