"""What a contract needs to know about the run that it is judged in."""
from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from harness.evidence.compare import Context
from harness.lanes.lane import Lane
from harness.subjects.protocol import Subject


@dataclass(frozen=True)
class Setting:
    """Where and against whom a case is judged.

    Attributes:
        lane, device: where.
        stock: lmdeploy of the same install, the reference of every bytes-against-stock promise.
        reproduce: the one command that runs the case again.
    """

    lane: Lane
    device: torch.device
    stock: Subject
    reproduce: str

    @property
    def exact_division(self) -> bool:
        """Whether float32 division is correctly rounded here (the interpreter's is, `div.full.f32` is not)."""
        return self.lane is Lane.CPU

    def context(self, group: int | None = None, inputs_at=None) -> Context:
        return Context(self.reproduce, inputs_at or (lambda name, index: []), group)

    def as_on_gpu(self, wanted: bool):
        """Context: where wanted, a dispatch on the cpu lane takes the way that it takes on a GPU."""
        if self.lane is not Lane.CPU or not wanted:
            return contextlib.nullcontext()
        from harness.lanes.cpu_device import tensors_report_cuda
        return tensors_report_cuda()

    def few_sms(self, options: dict):
        """Context: on the cpu lane the device reports `options['sm_count']` SMs, so that small inputs pass one grid."""
        if self.lane is not Lane.CPU or 'sm_count' not in options:
            return contextlib.nullcontext()
        from harness.lanes.cpu_device import reported_sm_count
        return reported_sm_count(options['sm_count'])
