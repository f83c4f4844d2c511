"""Every case of silu_and_mul_masked_post_quant_fwd; the contract of that name says what is promised."""
from harness.contracts import judge

OPERATOR = 'silu_and_mul_masked_post_quant_fwd'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
