"""What this machine has: facts about NVIDIA devices, gathered once, before anything is decided from them."""
from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_NVIDIA_VENDOR = '0x10de'
_DISPLAY_CLASS = '0x03'   # PCI base class 03: VGA and 3D controllers; an NVIDIA audio function or bridge is no GPU


@dataclass(frozen=True)
class VisibleDevice:
    """A CUDA device that torch can use.

    Attributes:
        name: the SKU, for example 'NVIDIA H200'.
        capability: (major, minor).
        sm_count: number of streaming multiprocessors.
        uuid: the device's UUID, or '' where torch does not tell.
        total_memory: bytes.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    uuid: str
    total_memory: int


@dataclass(frozen=True)
class DeviceFacts:
    """Facts from which a lane is chosen. The defaults describe a machine without any trace of NVIDIA.

    Attributes:
        nvidia_nodes: device nodes under /dev ('/dev/nvidia0', '/dev/nvidiactl', ...).
        nvidia_pci: addresses of NVIDIA display devices on the PCI bus.
        driver_version: version of the loaded kernel driver, '' if loaded but unreadable, None if none is loaded.
        cuda_visible_devices: CUDA_VISIBLE_DEVICES as given, None if unset.
        torch_version: None if torch cannot be imported.
        cuda_available: torch.cuda.is_available().
        devices: the devices that torch sees, in CUDA order.
        error: what torch or CUDA said when it failed, '' if nothing failed.
    """

    nvidia_nodes: tuple[str, ...] = ()
    nvidia_pci: tuple[str, ...] = ()
    driver_version: str | None = None
    cuda_visible_devices: str | None = None
    torch_version: str | None = None
    cuda_available: bool = False
    devices: tuple[VisibleDevice, ...] = ()
    error: str = ''

    @property
    def has_nvidia(self) -> bool:
        """Whether there is any trace of NVIDIA: a node, a PCI device, a driver, or a device that torch sees."""
        return bool(self.nvidia_nodes or self.nvidia_pci or self.driver_version is not None or self.devices)


def probe(environ: Mapping[str, str] = os.environ, root: Path = Path('/')) -> DeviceFacts:
    """Gathers the facts of this machine. Imports torch, never triton; call it before a lane is activated.

    `root` is where /dev, /sys and /proc are looked for.
    """
    torch_version, available, devices, error = _ask_torch()
    return DeviceFacts(nvidia_nodes=_nodes(root), nvidia_pci=_display_devices(root), driver_version=_driver(root),
                       cuda_visible_devices=environ.get('CUDA_VISIBLE_DEVICES'), torch_version=torch_version,
                       cuda_available=available, devices=devices, error=error)


def _nodes(root: Path) -> tuple[str, ...]:
    # /dev/nvidia-caps is a folder of MIG rights, nvidia-uvm and nvidia-modeset exist wherever the driver does
    return tuple(sorted(f'/dev/{node.name}' for node in (root / 'dev').glob('nvidia*')))


def _display_devices(root: Path) -> tuple[str, ...]:
    found = []
    for device in sorted((root / 'sys/bus/pci/devices').glob('*')):
        try:
            vendor, kind = (device / 'vendor').read_text().strip(), (device / 'class').read_text().strip()
        except OSError:   # a device may vanish, or its files may be hidden by a sandbox
            continue
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
            found.append(device.name)
    return tuple(found)


def _driver(root: Path) -> str | None:
    if not (root / 'proc/driver/nvidia').is_dir():
        return None
    try:
        text = (root / 'proc/driver/nvidia/version').read_text()
    except OSError:
        return ''
    version = re.search(r'NVRM version:.*?\s(\d+\.\d+(?:\.\d+)*)\s', text)
    return version.group(1) if version else ''


def _ask_torch() -> tuple[str | None, bool, tuple[VisibleDevice, ...], str]:
    try:
        import torch
    except Exception as error:   # a broken install fails with OSError or RuntimeError as often as with ImportError
        return None, False, (), f'torch: {type(error).__name__}: {error}'
    try:
        with warnings.catch_warnings(record=True) as caught:   # a dead driver is told as a warning, not as an error
            warnings.simplefilter('always')
            if not torch.cuda.is_available():
                return torch.__version__, False, (), '; '.join(str(warning.message) for warning in caught)
            devices = tuple(_visible(torch, index) for index in range(torch.cuda.device_count()))
    except Exception as error:
        return torch.__version__, False, (), f'CUDA: {type(error).__name__}: {error}'
    return torch.__version__, True, devices, ''


def _visible(torch, index: int) -> VisibleDevice:
    properties = torch.cuda.get_device_properties(index)
    return VisibleDevice(name=properties.name, capability=(properties.major, properties.minor),
                         sm_count=properties.multi_processor_count, uuid=str(getattr(properties, 'uuid', '')),
                         total_memory=properties.total_memory)
