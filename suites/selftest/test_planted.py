"""The instrument that plants faults fails where there is nothing to plant, nothing noticed, and nothing judged."""
import pytest

from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from suites.selftest.lmdeploy_copy import rewritten
from suites.selftest.planted import assert_holds, assert_noticed, replaced


@pytest.mark.parametrize(('text', 'times'), [('a', 1), ('b b', 1), ('b', 2), ('', 1)])
def test_a_text_that_does_not_stand_there_as_often_as_said_is_refused(text, times):
    with pytest.raises(AssertionError, match=f"expected 'b' {times} times, found {text.count('b')}"):
        replaced(text, [('b', 'c')], times)


def test_changes_apply_one_after_the_other():
    assert replaced('a b b', [('b', 'c')], times=2) == 'a c c'
    assert replaced('a b', [('b', 'c'), ('a c', 'd')]) == 'd'


def broken(reason: Reason, text: str):
    def judge():
        raise ContractBroken(reason, text)

    return judge


@pytest.mark.parametrize('judge', [broken(Reason.BOUND, 'reproduce: the command'), broken(Reason.BYTES, 'no command')])
def test_another_reason_or_no_command_is_not_noticed(judge):
    with pytest.raises(AssertionError):
        assert_noticed(judge)


def test_a_fault_that_passes_is_not_noticed():
    with pytest.raises(pytest.fail.Exception):
        assert_noticed(EvidenceLog)
    assert_noticed(broken(Reason.BYTES, 'reproduce: the command'))


def test_no_evidence_and_a_difference_do_not_hold():
    log = EvidenceLog()
    with pytest.raises(AssertionError, match='no evidence'):
        assert_holds(log)
    log.add(Record('bytes', 'codes', 4))
    assert_holds(log)
    log.add(Record('bytes', 'codes', 4, differing=1))
    with pytest.raises(AssertionError, match='differing'):
        assert_holds(log)


def test_a_copy_stands_alone_with_imports_inside_functions_too(stock):
    text = rewritten('activation', [])
    assert '    from lmdeploy.pytorch.kernels.cuda.blocked_gemm_fp8 import' in text
    assert '\nfrom .' not in text
    assert ' from .' not in text
