"""Refusals of bad input: a subject that refuses rightly passes, and every way to do it wrongly is found."""
import pytest
import torch

from harness.contracts import bad_calls, bad_input, catalogue, deviations
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.subjects.protocol import OPERATORS

CPU = torch.device('cpu')
CASES = {case.id: case for case in bad_input.cases('silu_and_mul', bad_calls.SILU_AND_MUL)}
EVERY = [case for operator in OPERATORS for case in catalogue(operator) if bad_input.is_bad(case)]


class Subject:
    name = 'subject'

    def __init__(self, behave):
        self.silu_and_mul = behave


def judge(behave, name: str = 'out_narrow') -> EvidenceLog:
    log = EvidenceLog()
    bad_input.judge(CASES[f'bad-{name}'], Subject(behave), Setting(Lane.CPU, CPU, object(), 'again'), log)
    return log


def refuse(gate_up, out=None):
    raise ValueError(f'out: expected (4, 256), found {tuple(out.shape)}')


def accept(gate_up, out=None):
    return out


def refuse_with_another_name(gate_up, out=None):
    raise ValueError('gate_up: expected something else than out')


def refuse_by_assertion(gate_up, out=None):
    raise AssertionError('out')


def write_and_refuse(gate_up, out=None):
    out[0, 0] = 1
    refuse(gate_up, out)


def write_behind(gate_up, out=None):
    torch.as_strided(out, (1, ), (1, ), out.storage_offset() + out.numel())[0] = 1
    refuse(gate_up, out)


def write_into_the_input(gate_up, out=None):
    gate_up[0, 0] = 7
    refuse(gate_up, out)


def test_a_refusal_that_names_the_argument_passes():
    kinds = [record.kind for record in judge(refuse).records]
    assert kinds == ['guard', 'refusal']


@pytest.mark.parametrize(('behave', 'reason'), [
    (accept, Reason.BYTES), (refuse_with_another_name, Reason.BYTES), (refuse_by_assertion, Reason.CRASH),
    (write_and_refuse, Reason.OUTSIDE_WRITE), (write_behind, Reason.OUTSIDE_WRITE),
    (write_into_the_input, Reason.OUTSIDE_WRITE)], ids=lambda value: getattr(value, '__name__', str(value)))
def test_anything_else_is_found(behave, reason):
    with pytest.raises(ContractBroken) as broken:
        judge(behave)
    assert broken.value.reason is reason
    assert 'reproduce: again' in str(broken.value)


def test_every_bad_input_of_stock_is_a_deviation_and_no_other_is():
    """What stock does with each is recorded, none is accepted unseen."""
    assert {case.operator for case in EVERY} >= {'silu_and_mul', 'quant_fp8', 'moe_reduce', 'grouped_gemm',
                                                 'grouped_gemm_blocks', 'fill_kv_cache_blocked_fp8'}
    for case in EVERY:
        assert deviations.find(case.operator, case.id) is not None, case.id
    known = {(case.operator, case.id) for case in EVERY}
    for deviation in deviations.STOCK_DEVIATIONS:
        if deviation.case.startswith(bad_input.PREFIX):
            assert (deviation.operator, deviation.case) in known
