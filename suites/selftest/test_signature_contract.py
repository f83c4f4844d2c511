"""call_signatures: every way in which a call can fail to fit is found, in made-up sources and in a copy of the real."""
from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.contracts import call_signatures
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog
from harness.evidence.verdicts import Reason
from harness.lanes.lane import Lane
from harness.static_checks.call_signatures import Report, examine

BACK_ENDS, KERNELS = 'lmdeploy/pytorch/backends/cuda', 'lmdeploy/pytorch/kernels/cuda'
KERNEL_FILE = '''
import functools
import triton
import triton.language as tl
from somewhere import strange

@triton.jit
def _gemm_kernel(a, b, out, m, BLOCK: tl.constexpr, GROUPS: tl.constexpr = 1):
    pass

@triton.autotune(configs=[triton.Config({'BLOCK': 16})], key=['m'])
@triton.jit
def _tuned_kernel(a, m, BLOCK: tl.constexpr):
    pass

def gemm(a, b, /, scale, out_dtype=None, *, bias, fmt=None):
    _gemm_kernel[(1, )](a, b, a, 4, BLOCK=16, num_warps=4)
    _tuned_kernel[(1, )](a, 4)

def anything(*args, **kwargs):
    pass

@functools.lru_cache
def cached(a):
    pass

@strange
def odd(a):
    pass

class Holder:
    pass
'''


def tree(root: Path, body: str, kernels: str = KERNEL_FILE) -> Path:
    """A source tree with one file of kernels, re-exported by its package, and one back end: `body` stands in it."""
    files = {f'{KERNELS}/gemm.py': kernels, f'{KERNELS}/__init__.py': 'from .gemm import gemm, cached\n',
             f'{BACK_ENDS}/linear.py': body}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def called(root: Path, call: str, imported: str = 'from lmdeploy.pytorch.kernels.cuda.gemm import gemm') -> Report:
    return examine(tree(root, f'{imported}\n\n\ndef forward(x, w, rest, more):\n    return {call}\n'), BACK_ENDS)


@pytest.mark.parametrize('call', [
    'gemm(x, w, 1.0, bias=None)', 'gemm(x, w, scale=1.0, out_dtype=None, bias=None, fmt="ue8m0")',
    'gemm(*rest, bias=None)', 'gemm(x, w, **more)', 'gemm(x, w, 1.0, **more)'])
def test_calls_that_fit(tmp_path: Path, call: str):
    report = called(tmp_path, call)
    assert (report.calls, report.faults) == ([f'{BACK_ENDS}/linear.py:5'], [])
    assert report.kernels == {'cuda.gemm.gemm'}


@pytest.mark.parametrize(('call', 'told'), [
    ('gemm(x, w, 1.0, bias=None, scale_fmt="ue8m0")',
     "no parameter 'scale_fmt'; it has a, b, scale, out_dtype, bias, fmt"),
    ('gemm(x, w, **more, scale_fmt=None)', "no parameter 'scale_fmt'"),
    ('gemm(*rest, scale_fmt=None)', "no parameter 'scale_fmt'"),
    ('gemm(x, w, 1.0, None, None, bias=None)', 'expected at most 4 positional arguments, found 5'),
    ('gemm(x, w, bias=None)', 'required, but not given: scale'),
    ('gemm(x, w, 1.0)', 'required, but not given: bias'),
    ('gemm(x, w, 1.0, bias=None, scale=2.0)', "'scale' is given by position and by name"),
    ('gemm(x, b=w, scale=1.0, bias=None)', "no parameter 'b'"),
])
def test_calls_that_do_not_fit(tmp_path: Path, call: str, told: str):
    report = called(tmp_path, call)
    assert any(told in fault.text for fault in report.faults), report.faults
    assert {fault.place for fault in report.faults} == set(report.calls)


@pytest.mark.parametrize(('imported', 'callee'), [
    ('from lmdeploy.pytorch.kernels.cuda import gemm', 'gemm'),
    ('from lmdeploy.pytorch.kernels.cuda import gemm as product', 'product'),
    ('from ...kernels.cuda.gemm import gemm', 'gemm'),
    ('import lmdeploy.pytorch.kernels.cuda as module', 'module.gemm'),
    ('import lmdeploy.pytorch.kernels.cuda', 'lmdeploy.pytorch.kernels.cuda.gemm'),
    ('from lmdeploy.pytorch.kernels import cuda', 'cuda.gemm'),
    ('from lmdeploy.pytorch.kernels.cuda import gemm\nalias = gemm', 'alias'),
    ('from lmdeploy.pytorch.kernels.cuda.gemm import gemm, anything\nchosen = gemm if 1 else anything', 'chosen'),
    ('try:\n    from lmdeploy.pytorch.kernels.cuda import gemm\nexcept ImportError:\n    gemm = None', 'gemm'),
])
def test_however_a_kernel_is_named(tmp_path: Path, imported: str, callee: str):
    report = called(tmp_path, f'{callee}(x, w, 1.0, bias=0, wrong=1)', imported)
    assert [fault.text.split(';')[0] for fault in report.faults] == ["no parameter 'wrong'"]


IN_A_CLASS = '''
class Base:
    def __init__(self):
        from lmdeploy.pytorch.kernels.cuda import gemm
        self.gemm = gemm


class Linear(Base):
    def forward(self, x):
        return self.gemm(x, x, 1.0, bias=None, wrong=1)
'''


def test_a_kernel_that_an_object_keeps(tmp_path: Path):
    report = examine(tree(tmp_path, IN_A_CLASS), BACK_ENDS)
    assert [str(fault).split(';')[0] for fault in report.faults] == [
        f"{BACK_ENDS}/linear.py:10: cuda.gemm.gemm: no parameter 'wrong'"]


@pytest.mark.parametrize(('body', 'judged'), [
    ('def forward(gemm):\n    gemm(wrong=1)', 0),
    ('def gemm():\n    pass\n\ngemm(wrong=1)', 0),
    ('from torch import gemm\ngemm(wrong=1)', 0),
    ('from lmdeploy.pytorch.kernels.cuda import gemm\ndef forward(x):\n    gemm = x.gemm\n    gemm(wrong=1)', 0),
])
def test_a_name_that_is_something_else_is_left_alone(tmp_path: Path, body: str, judged: int):
    report = examine(tree(tmp_path, f'{body}\n'), BACK_ENDS)
    assert (len(report.calls), report.faults) == (judged, [])


@pytest.mark.parametrize(('imported', 'call', 'why'), [
    ('from lmdeploy.pytorch.kernels.cuda import gemm\ngemm = wrap(gemm)', 'gemm(wrong=1)', 'something else too'),
    ('from lmdeploy.pytorch.kernels.cuda.gemm import odd', 'odd(wrong=1)', 'a decorator'),
    ('from lmdeploy.pytorch.kernels.cuda.gemm import Holder', 'Holder(wrong=1)', 'a class'),
    ('from lmdeploy.pytorch.kernels.cuda import gemm', 'gemm(x, w, **more)', 'whether every parameter is given'),
])
def test_what_the_text_does_not_tell_is_counted(tmp_path: Path, imported: str, call: str, why: str):
    report = called(tmp_path, call, imported)
    assert report.faults == []
    assert [why in told for told in report.not_judged.elements()] == [True]


def test_a_launch_that_fits(tmp_path: Path):
    report = examine(tree(tmp_path, ''), KERNELS)
    assert (len(report.launches), report.faults) == (2, [])
    assert dict(report.not_judged) == {'autotuned: whether every parameter is given': 1}


@pytest.mark.parametrize(('launch', 'told'), [
    ('_gemm_kernel[(1, )](a, b, a, 4, BLOCK=16, SPLIT=2)', "no parameter 'SPLIT'"),
    ('_gemm_kernel[(1, )](a, b, a, 4)', 'required, but not given: BLOCK'),
    ('_gemm_kernel[(1, )](a, b, a, 4, 16, 1, 2)', 'expected at most 6 positional arguments, found 7'),
    ('_gemm_kernel[(1, )](a, b, a, 4, 16, m=4)', "'m' is given by position and by name"),
    ('_gemm_kernel[(1, )](a, b, a, 4, 16, num_warp=4)', "no parameter 'num_warp'"),
    ('_tuned_kernel[(1, )](a, 4, num_wraps=4)', "no parameter 'num_wraps'"),
])
def test_launches_that_do_not_fit(tmp_path: Path, launch: str, told: str):
    kernels = f'{KERNEL_FILE}\n\ndef launch(a, b):\n    grid = {launch}\n'
    report = examine(tree(tmp_path, '', kernels), KERNELS)
    assert [told in fault.text for fault in report.faults] == [True], report.faults


def judged(root: Path, case: str) -> tuple[EvidenceLog, ContractBroken | None]:
    log, broken = EvidenceLog(), None
    chosen, = (item for item in call_signatures.CASES if item.id == case)
    subject = SimpleNamespace(name='stock', call_signatures=lambda: root)
    try:
        call_signatures.judge(chosen, subject, Setting(Lane.CPU, None, subject, 'python -m pytest X'), log)
    except ContractBroken as error:
        broken = error
    return log, broken


def test_the_contract_says_how_much_it_looked_at(tmp_path: Path):
    log, broken = judged(tree(tmp_path, 'from lmdeploy.pytorch.kernels.cuda import cached\ncached(1)\n'), 'back_ends')
    record, = log.records
    assert (broken, record.kind, record.compared, record.differing) == (None, 'signature', 1, 0)
    assert record.detail == {'kernels': 1, 'not_judged': {}}


def test_a_source_without_calls_leaves_no_evidence(tmp_path: Path):
    log, broken = judged(tree(tmp_path, ''), 'back_ends')
    assert (log.records, broken) == ([], None)


def test_a_file_that_does_not_parse_is_broken(tmp_path: Path):
    _, broken = judged(tree(tmp_path, 'def forward(:\n'), 'back_ends')
    assert broken.reason is Reason.CRASH
    assert f'{BACK_ENDS}/linear.py:1 does not parse' in broken.explanation


@pytest.fixture(scope='module')
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the installed lmdeploy's back ends and kernels, as source."""
    import importlib.util
    installed = Path(importlib.util.find_spec('lmdeploy').origin).parent
    root = tmp_path_factory.mktemp('real')
    for folder in (BACK_ENDS, 'lmdeploy/pytorch/kernels'):
        shutil.copytree(installed.parent / folder, root / folder, ignore=shutil.ignore_patterns('__pycache__'))
    return root


@pytest.mark.parametrize(('case', 'file', 'before', 'after', 'told'), [
    ('back_ends', f'{BACK_ENDS}/blockedf8_modules.py', 'scale.t(), out_dtype=x.dtype)',
     "scale.t(), out_dtype=x.dtype, scale_fmt='ue8m0')", "no parameter 'scale_fmt'"),
    ('kernels', f'{KERNELS}/activation.py', 'num_warps=', 'num_warp=', "no parameter 'num_warp'"),
])
def test_a_fault_in_the_real_source(real: Path, case: str, file: str, before: str, after: str, told: str):
    path = real / file
    source = path.read_text()
    assert before in source
    log, broken = judged(real, case)
    assert broken is None
    path.write_text(source.replace(before, after, 1))
    try:
        log, broken = judged(real, case)
    finally:
        path.write_text(source)
    assert broken.reason is Reason.CRASH
    assert (file in broken.explanation, told in broken.explanation) == (True, True), broken.explanation
    assert any(record.differing for record in log.records)
