"""Where judging happens: the lanes, and how one is chosen."""
from __future__ import annotations

from enum import Enum


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
