"""Every case of grouped_gemm; harness/contracts/grouped_gemm.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'grouped_gemm'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
