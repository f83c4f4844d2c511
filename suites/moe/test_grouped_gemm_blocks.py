"""Every case of grouped_gemm_blocks; harness/contracts/grouped_gemm_blocks.py says what is promised, and why."""
from harness.contracts import grouped_gemm_blocks

OPERATOR = grouped_gemm_blocks.OPERATOR


def test_contract(subject, case, setting, evidence):
    grouped_gemm_blocks.judge(case, subject, setting, evidence)
