"""Every case of grouped_gemm_blocks; harness/contracts/grouped_gemm_blocks.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'grouped_gemm_blocks'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
