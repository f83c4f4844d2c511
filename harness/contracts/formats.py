"""The formats in which the quantisers run, and the names under which cases and suites know them."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.oracles.fp8 import FP8_FORMATS, Fp8
from harness.oracles.storage import FORMATS, Format

TORCH_STORAGE = {'bf16': torch.bfloat16, 'fp16': torch.float16}
TORCH_CODES = {'e4m3fn': torch.float8_e4m3fn, 'e5m2': torch.float8_e5m2}


def code_values(codes: str, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The float64 values of FP8 codes [R, ...] at `rows`, int64 of any shape [...] -> [..., ...]."""
    table = torch.from_numpy(FP8_FORMATS[codes].decode(np.arange(256))).to(tensor.device)
    return table[tensor.view(torch.uint8)[rows].long()]  # through bytes: not every device gathers FP8


@dataclass(frozen=True)
class QuantFormat:
    """One combination of what a quantiser can be asked for.

    Attributes:
        storage: 'bf16' or 'fp16', of the input. codes: 'e4m3fn' or 'e5m2'. scale_fmt: None or 'ue8m0'.
        column_major: whether the scales are stored by column, with the pitch padded to 16 bytes.
    """

    storage: str
    codes: str
    scale_fmt: str | None
    column_major: bool = False

    @property
    def id(self) -> str:
        return f'{self.storage}-{self.codes}-{self.scale_fmt or "none"}-{"col" if self.column_major else "row"}'

    @property
    def storage_format(self) -> Format:
        return FORMATS[self.storage]

    @property
    def fp8_format(self) -> Fp8:
        return FP8_FORMATS[self.codes]

    def options(self) -> dict:
        return {'storage': self.storage, 'codes': self.codes, 'scale_fmt': self.scale_fmt,
                'column_major': self.column_major}


EVERY_FORMAT = tuple(QuantFormat(storage, codes, scale_fmt) for storage in FORMATS for codes in FP8_FORMATS
                     for scale_fmt in (None, 'ue8m0'))
# Where only geometry is at stake, two formats that differ in everything stand for all.
TWO_FORMATS = (QuantFormat('bf16', 'e4m3fn', None), QuantFormat('fp16', 'e5m2', 'ue8m0'))
COLUMN_MAJOR = tuple(QuantFormat(f.storage, f.codes, f.scale_fmt, column_major=True) for f in EVERY_FORMAT)
