"""Makes a process work on one lane: the first thing that a judging process does, before kernels are imported."""
from __future__ import annotations

import os
import sys

import torch

from harness.lanes import cpu_device, interpreter
from harness.lanes.lane import SM90_CAPABILITY, Lane, WrongDevice

_SWITCH = 'TRITON_INTERPRET'
_active: tuple[Lane, torch.device] | None = None


def activate(lane: Lane) -> torch.device:
    """Prepares this process for `lane` and returns the device on which its tensors live. Calling it again is free.

    cpu: switches Triton to its interpreter, repairs that, and puts a stand-in for the GPU in place. sm90: the current
    CUDA device. A process serves one lane: Triton decides at import whether kernels are compiled or interpreted.

    Raises:
        RuntimeError: another lane is active, or Triton was imported in the other mode before.
        interpreter.UnsupportedTriton: cpu lane, and the repairs do not fit the installed Triton.
        WrongDevice: sm90 lane, and the current device's capability is not 9.0.
    """
    global _active
    if _active is None:
        _active = lane, _activate_cpu() if lane is Lane.CPU else _activate_sm90()
    elif _active[0] is not lane:
        raise RuntimeError(f'activate: this process already serves lane {_active[0].value}, it cannot serve '
                           f'{lane.value} as well; use another process')
    return _active[1]


def active_lane() -> Lane | None:
    """The lane that this process serves, None before `activate`."""
    return _active[0] if _active else None


def _activate_cpu() -> torch.device:
    interpreter.check_version()
    if _triton_mode() == 'compiled':
        raise RuntimeError('activate: triton was imported before the cpu lane was activated, so its kernels are '
                           'compiled; activate the lane first')
    os.environ[_SWITCH] = '1'
    import triton  # noqa: F401  the switch is read while triton's own library is imported
    interpreter.install()
    cpu_device.install()
    return cpu_device.DEVICE


def _activate_sm90() -> torch.device:
    import triton  # noqa: F401  so that its mode is settled, and can be asked for
    if _triton_mode() == 'interpreted':
        raise RuntimeError(f'activate: {_SWITCH} is set, so the sm90 lane would judge the interpreter; unset it')
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != SM90_CAPABILITY:
        raise WrongDevice('activate: the sm90 lane needs a current CUDA device of compute capability 9.0')
    return torch.device('cuda', torch.cuda.current_device())


def _triton_mode() -> str | None:
    """How triton's own library was imported, 'compiled' or 'interpreted'; None if it was not."""
    library = sys.modules.get('triton.language.standard')
    if library is None:
        return None
    return 'interpreted' if type(library.sum).__name__ == 'InterpretedFunction' else 'compiled'
