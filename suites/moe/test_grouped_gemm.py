"""Every case of grouped_gemm; harness/contracts/grouped_gemm.py says what is promised, and why."""
from harness.contracts import grouped_gemm

OPERATOR = grouped_gemm.OPERATOR


def test_contract(subject, case, setting, evidence):
    grouped_gemm.judge(case, subject, setting, evidence)
