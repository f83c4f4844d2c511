"""The reference stays what it was: a subject that changes lmdeploy under the judge's hands is refused, not believed."""
import pytest
import torch

from harness.contracts import contract
from harness.contracts.setting import Setting
from harness.contracts.silu_and_mul import CASES, trusted_table, wrong_gates
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.oracles import swiglu
from harness.subjects import SubjectRefused, load

PLUG_IN = '''import torch
import lmdeploy.pytorch.kernels.cuda.{module} as patched
original = patched.{name}
patched.{name} = lambda *arguments, **options: original(*arguments, **options)

def silu_and_mul_quant(*arguments, **options):
    raise RuntimeError
'''


@pytest.mark.parametrize(('module', 'name'), [('activation', 'silu_and_mul'), ('blocked_gemm_fp8', 'quant_fp8'),
                                              ('blocked_gemm_fp8', '_quant_fp8_launcher'),
                                              ('activation', '_silu_and_mul_kernel')])
def test_a_module_that_patches_lmdeploy_is_refused(tmp_path, stock, monkeypatch, module, name):
    import importlib
    kernels = importlib.import_module(f'lmdeploy.pytorch.kernels.cuda.{module}')
    monkeypatch.setattr(kernels, name, getattr(kernels, name))  # restores what the module replaces
    path = tmp_path / 'plug_in.py'
    path.write_text(PLUG_IN.format(module=module, name=name))
    with pytest.raises(SubjectRefused, match=f'{name} replaced'):
        load(f'module:{path}')
    monkeypatch.undo()
    stock.require_pristine()


class _Relu:
    name = 'stock'

    def silu_and_mul(self, gate_up, out=None):
        gate, up = gate_up.chunk(2, dim=-1)
        return gate.clamp(min=0) * up


def test_a_reference_whose_silu_is_none_is_broken(device):
    with pytest.raises(ContractBroken, match='the reference is wrong'):
        trusted_table(_Relu(), 'bf16', device)


def test_silu_is_judged_once_for_all_cases_of_a_subject(stock, lane, device, monkeypatch):
    judged = []
    original = swiglu.wrong_silus
    monkeypatch.setattr(swiglu, 'wrong_silus', lambda *bits: judged.append(bits) or original(*bits))
    wrong_gates.cache_clear()
    trusted_table(stock, 'bf16', device)
    (case, ) = [case for case in CASES if case.id == 'bf16-table']
    contract('silu_and_mul').judge(case, stock, Setting(lane, device, stock, 'the command'), EvidenceLog())
    assert len(judged) == 1


def test_a_subject_whose_silu_is_none_is_broken_even_where_the_reference_agrees(stock, lane, device):
    class HalfTheGate:
        name = 'module'

        def silu_and_mul(self, gate_up, out=None):
            gate, up = gate_up.chunk(2, dim=-1)
            return stock.silu_and_mul(torch.cat([gate / 2, up], dim=-1))

    (case, ) = [case for case in CASES if case.id == 'bf16-table']
    setting = Setting(lane, device, HalfTheGate(), 'the command')
    with pytest.raises(ContractBroken) as broken:
        contract('silu_and_mul').judge(case, HalfTheGate(), setting, EvidenceLog())
    assert broken.value.reason is Reason.BOUND


def test_a_tensor_subclass_is_no_output(stock, lane, device):
    class Quiet(torch.Tensor):
        pass

    class Subject:
        name = 'module'

        def silu_and_mul(self, gate_up, out=None):
            return stock.silu_and_mul(gate_up).as_subclass(Quiet)

    operator = contract('silu_and_mul')
    (case,) = [case for case in operator.CASES if case.id == 'bf16-shape_1x128']
    with pytest.raises(ContractBroken, match='plain torch.Tensor'):
        operator.judge(case, Subject(), Setting(lane, device, stock, 'the command'), EvidenceLog())
