"""The candidate: this repository's own kernels."""
from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from harness import kernels
from harness.kernels.activate_and_quant import activate_and_quant
from harness.kernels.silu_and_mul_quant import silu_and_mul_quant
from harness.subjects.protocol import Provenance
from harness.subjects.provenance import source_sha256
from harness.subjects.stock import load_stock


class Candidate:
    """Fused SwiGLU and FP8 quantisation. lmdeploy's quantiser is used after a custom activation only."""

    name = 'candidate'

    def __init__(self, provenance: Provenance, quantise):
        self.provenance = provenance
        self._quantise = quantise

    def offers(self) -> frozenset[str]:
        return frozenset({'silu_and_mul_quant', 'activate_and_quant', 'refusals'})

    def silu_and_mul_quant(self, gate_up, group_size, dtype, trans_scale, scale_fmt, out=None, scales=None):
        return silu_and_mul_quant(gate_up, group_size, dtype=dtype, trans_scale=trans_scale, scale_fmt=scale_fmt,
                                  out=out, scales=scales)

    def activate_and_quant(self, gate_up, activation, group_size, dtype, trans_scale, scale_fmt):
        return activate_and_quant(gate_up, self._quantise, group_size, dtype=dtype, trans_scale=trans_scale,
                                  scale_fmt=scale_fmt, activation=activation)

    def refusals(self, gate_up, **arguments):
        return silu_and_mul_quant(gate_up, **arguments)


@lru_cache(maxsize=1)
def load_candidate(lmdeploy_src: Path | None = None) -> Candidate:
    """The candidate with the quantiser of the lmdeploy that it is plugged into. Raises SubjectRefused."""
    folder = Path(kernels.__file__).parent
    root = folder.parent.parent
    provenance = Provenance('candidate', str(folder), 'this repository', source_sha256(root, folder.rglob('*.py')))
    return Candidate(provenance, load_stock(lmdeploy_src).quant_fp8)
