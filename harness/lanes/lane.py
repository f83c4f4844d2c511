"""Where judging happens: the lanes, and how one is chosen."""
from __future__ import annotations

from enum import Enum

from harness.lanes.device import DeviceFacts

SM90_CAPABILITY = (9, 0)


class Lane(str, Enum):
    """A place where verdicts are made. A verdict always carries its lane."""

    CPU = 'cpu'
    SM90 = 'sm90'


class LaneRequest(str, Enum):
    """What a user may ask for."""

    AUTO = 'auto'
    CPU = 'cpu'
    SM90 = 'sm90'


class WrongDevice(Exception):
    """The device that the requested lane needs is not usable here. The message says what was found and what to try."""


def resolve(request: LaneRequest, facts: DeviceFacts) -> Lane:
    """The lane that `request` means on a machine with these facts.

    `auto` falls back to cpu only where there is no trace of NVIDIA at all: a dead driver, a hidden GPU or another card
    must not turn into a cpu verdict that looks as if it were about the GPU.

    Raises:
        WrongDevice: sm90 was asked for, or auto found something of NVIDIA's, and the visible devices are not sm90.
    """
    if request is LaneRequest.CPU:
        return Lane.CPU
    obstacle = _sm90_obstacle(facts)
    if obstacle is None:
        return Lane.SM90
    if request is LaneRequest.AUTO and not facts.has_nvidia:
        return Lane.CPU
    raise WrongDevice(f'--lane {request.value}: expected visible CUDA devices of compute capability exactly 9.0, '
                      f'found {obstacle}; to judge source semantics without the GPU: --lane cpu')


def _sm90_obstacle(facts: DeviceFacts) -> str | None:
    """Why the visible devices cannot serve the sm90 lane, in plain words; None if they can."""
    if facts.cuda_available and facts.devices:
        others = [f'{d.name} ({d.capability[0]}.{d.capability[1]})' for d in facts.devices
                  if d.capability != SM90_CAPABILITY]
        if not others:
            return None
        mixed = len(others) < len(facts.devices)
        return ', '.join(others) + (' beside an sm90 device (leave it out of CUDA_VISIBLE_DEVICES)' if mixed else '')
    trace = _trace(facts)
    if facts.torch_version is None:
        return f'no torch ({facts.error or "not importable"}) and {trace}'
    hidden = facts.cuda_visible_devices is not None and facts.has_nvidia
    mask = f' with CUDA_VISIBLE_DEVICES={facts.cuda_visible_devices!r}' if hidden else ''
    return f'no usable device{mask}{f" ({facts.error})" if facts.error else ""} and {trace}'


def _trace(facts: DeviceFacts) -> str:
    seen = []
    if facts.nvidia_pci:
        seen.append(f'NVIDIA PCI device {", ".join(facts.nvidia_pci)}')
    if facts.nvidia_nodes:
        seen.append(f'{", ".join(facts.nvidia_nodes)}')
    if facts.driver_version is not None:
        seen.append(f'NVIDIA driver {facts.driver_version or "of unknown version"}')
    if not seen:
        return 'nothing of NVIDIA on this machine'
    cpu_build = facts.torch_version is not None and '+cpu' in facts.torch_version
    return ' and '.join(seen) + (f' (torch {facts.torch_version} is built without CUDA)' if cpu_build else '')
