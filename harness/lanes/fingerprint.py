"""The environment of a verdict: versions, device and host, as JSON-compatible values."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
from functools import lru_cache
from pathlib import Path

from harness.lanes.device import DeviceFacts
from harness.lanes.lane import Lane

PACKAGES = ('numpy', 'torch', 'triton', 'ml_dtypes', 'lmdeploy')


def fingerprint(lane: Lane, facts: DeviceFacts) -> dict:
    """What could explain a different result elsewhere. Whatever is absent is None; nothing here needs a GPU.

    Keys: lane, python, one per name of `PACKAGES`, ptxas, cuda_runtime, cuda_driver, device (None on the cpu lane;
    else the first visible one: name, capability, sm_count, uuid, total_memory in bytes), visible_devices, cpu_model,
    cpu_cores (usable by this process), memory (bytes), os, kernel.
    """
    device = facts.devices[0] if lane is Lane.SM90 and facts.devices else None
    return {
        'lane': lane.value,
        'python': platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        'ptxas': ptxas_version(),
        'cuda_runtime': _cuda_runtime(),
        'cuda_driver': facts.driver_version,
        'device': device and {'name': device.name, 'capability': f'{device.capability[0]}.{device.capability[1]}',
                              'sm_count': device.sm_count, 'uuid': device.uuid, 'total_memory': device.total_memory},
        'visible_devices': len(facts.devices),
        'cpu_model': _cpu_model(),
        'cpu_cores': len(os.sched_getaffinity(0)),
        'memory': os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'),
        'os': _os_name(),
        'kernel': platform.release(),
    }


def _version(package: str) -> str | None:
    # metadata only: importing lmdeploy takes seconds, and importing triton would fix the interpreter switch
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@lru_cache
def ptxas_version() -> str | None:
    """Version of the ptxas that the triton wheel carries, for example '12.8.93'; None if there is none."""
    spec = importlib.util.find_spec('triton')
    if spec is None or spec.origin is None:
        return None
    ptxas = Path(spec.origin).parent / 'backends/nvidia/bin/ptxas'
    try:
        text = subprocess.run([ptxas, '--version'], capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'\bV(\d+(?:\.\d+)+)', text)
    return version.group(1) if version else None


def _cuda_runtime() -> str | None:
    try:
        import torch
    except Exception:   # a broken install fails in many ways; doctor reports it from the facts
        return None
    return torch.version.cuda


def _cpu_model() -> str | None:
    try:
        text = Path('/proc/cpuinfo').read_text()
    except OSError:
        return platform.processor() or None
    model = re.search(r'^(?:model name|Model|CPU part)\s*:\s*(.+)$', text, re.MULTILINE)
    return model.group(1).strip() if model else platform.processor() or None


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get('PRETTY_NAME', platform.system())
    except OSError:
        return platform.system()
