"""Every case of the FP8 KV fill; harness/contracts/fill_kv_cache.py says what is promised, and why."""
from harness.contracts import judge

OPERATOR = 'fill_kv_cache_blocked_fp8'


def test_contract(subject, case, setting, evidence):
    judge(case, subject, setting, evidence)
