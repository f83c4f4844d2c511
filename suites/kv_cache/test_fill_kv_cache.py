"""Every case of the FP8 KV fill; harness/contracts/fill_kv_cache.py says what is promised, and why."""
from harness.contracts import fill_kv_cache

OPERATOR = fill_kv_cache.OPERATOR


def test_contract(subject, case, setting, evidence):
    fill_kv_cache.judge(case, subject, setting, evidence)
