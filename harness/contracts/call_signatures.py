"""call_signatures: -> the folder that holds the package lmdeploy, as source.

Promise (every call fits): whatever lmdeploy's CUDA back ends, layers and models pass to a function of its kernels, and
whatever its launchers pass to a Triton kernel, that function takes: every keyword is a parameter (or, at a launch, an
option of Triton's), no parameter is given twice, none that has no default is left out. Comparator: the signature, by
the text alone. It is the class of fault that no test of a kernel can see: the kernel is right, and its caller is not.
What the text does not tell (a class, an unknown decorator, `**kwargs`) is counted as not judged.
"""
from __future__ import annotations

from harness.contracts.case import Case
from harness.contracts.setting import Setting
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.verdicts import Reason
from harness.static_checks.call_signatures import examine
from harness.subjects.protocol import Subject

OPERATOR = 'call_signatures'
_SHOWN = 20
_FOLDERS = {
    'back_ends': ('a back end and its kernel change in different files: it may pass what the kernel does not take', (
        'lmdeploy/pytorch/backends/cuda', 'lmdeploy/pytorch/nn', 'lmdeploy/pytorch/models')),
    'kernels': ('launchers pass every parameter of a Triton kernel by name, dozens at a time', (
        'lmdeploy/pytorch/kernels/cuda',)),
}
CASES = tuple(Case(OPERATOR, name, why, build=lambda device, folders=folders: folders)
              for name, (why, folders) in _FOLDERS.items())


def judge(case: Case, subject: Subject, setting: Setting, log: EvidenceLog) -> None:
    """Judge one case; a source without a single call to judge leaves no evidence. Raises ContractBroken."""
    folders, root = case.build(setting.device), subject.call_signatures()
    try:
        report = examine(root, *folders)
    except SyntaxError as error:
        raise ContractBroken(Reason.CRASH, f'{error.filename}:{error.lineno} does not parse: {error.msg}\n'
                             f'reproduce: {setting.reproduce}') from error
    faulty = {fault.place for fault in report.faults}
    facts = {'kernels': len(report.kernels), 'not_judged': dict(report.not_judged)}
    for what, places in (('calls of kernels', report.calls), ('launches of Triton kernels', report.launches)):
        if places:
            log.add(Record('signature', f'{what} in {", ".join(folders)} against their signatures', len(places),
                           sum(place in faulty for place in places), detail=facts))
    if report.faults:
        told = [f'  {fault}' for fault in report.faults[:_SHOWN]]
        raise ContractBroken(Reason.CRASH, '\n'.join(
            [f'{len(report.faults)} calls of kernels in {root} do not fit:', *told, f'reproduce: {setting.reproduce}']))
