"""A stand-in for the GPU on the cpu lane: what launchers ask of torch.cuda and of Triton, answered like an H200.

Only questions are answered; nothing runs on a device. A real GPU in the machine is hidden, so that no code path takes
it by accident.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

CAPABILITY = (9, 0)
SM_COUNT = 132
DEVICE = torch.device('cpu')


@dataclass(frozen=True)
class DeviceProperties:
    """The answer of torch.cuda.get_device_properties, with an H200's figures (bytes, counts)."""

    name: str = 'bitgate cpu lane (answers like an NVIDIA H200)'
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = SM_COUNT
    total_memory: int = 141 * 2**30
    warp_size: int = 32
    max_threads_per_block: int = 1024
    max_threads_per_multi_processor: int = 2048
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    L2_cache_size: int = 60 * 2**20
    is_integrated: int = 0
    uuid: str = ''


class StandInDriver:
    """A Triton driver without a device. The target is not 'cuda', so launchers take no TMA and no dependent launch."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget
        return GPUTarget('cpu', 0, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return DEVICE

    def get_device_interface(self):
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., list[float]]:
        # every configuration is equally fast, so an autotuner takes its first one, always the same
        return lambda fn, quantiles=None, **options: [1.0, 1.0, 1.0]

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass


_properties: DeviceProperties | None = None
_listeners: list[Callable[[], None]] = []


def install() -> None:
    """Puts the stand-in in place, once per process. Triton must be imported already, in interpreter mode."""
    global _properties
    if _properties is not None:
        return
    import triton
    _properties = DeviceProperties()
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda device=None: _properties
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    torch.cuda.get_device_name = lambda device=None: _properties.name
    triton.runtime.driver.set_active(StandInDriver())


def when_sm_count_changes(listener: Callable[[], None]) -> None:
    """Has `listener` called whenever the reported SM count changes: launchers cache device properties (lru_cache)."""
    _listeners.append(listener)


@contextmanager
def reported_sm_count(count: int) -> Iterator[None]:
    """Reports `count` SMs instead of 132 for its duration, so that a few rows reach a launcher's row loop.

    Raises:
        ValueError: `count` is not positive.
        RuntimeError: the cpu lane is not active; a real device's SM count cannot be changed.
    """
    if count < 1:
        raise ValueError(f'reported_sm_count: expected a positive number of SMs, found {count}')
    if _properties is None:
        raise RuntimeError('reported_sm_count: expected an active cpu lane, found none')
    before = _properties
    _report(replace(before, multi_processor_count=count))
    try:
        yield
    finally:
        _report(before)


@contextmanager
def tensors_report_cuda() -> Iterator[None]:
    """Has every tensor say that it lies on a GPU: a dispatch that asks takes the way that it takes there.

    Raises:
        RuntimeError: the cpu lane is not active.
    """
    if _properties is None:
        raise RuntimeError('tensors_report_cuda: expected an active cpu lane, found none')
    torch.Tensor.is_cuda = property(lambda tensor: True)  # shadows what torch.Tensor inherits
    try:
        yield
    finally:
        del torch.Tensor.is_cuda


def _report(properties: DeviceProperties) -> None:
    global _properties
    _properties = properties
    for listener in _listeners:
        listener()
