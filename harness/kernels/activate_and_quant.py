"""The choice between the fused kernel and a custom activation followed by the quantiser."""
from __future__ import annotations

from collections.abc import Callable

import torch

from harness.kernels.silu_and_mul_quant import silu_and_mul_quant


def activate_and_quant(gate_up: torch.Tensor,
                       quantise: Callable[..., tuple[torch.Tensor, torch.Tensor]],
                       group_size: int = 128,
                       dtype: torch.dtype = torch.float8_e4m3fn,
                       trans_scale: bool = False,
                       scale_fmt: str | None = None,
                       activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
                       fused: Callable[..., tuple[torch.Tensor, torch.Tensor]] = silu_and_mul_quant):
    """Activate gate_up [M, 2N] and quantise the result [M, N] in groups.

    Args:
        gate_up, group_size, dtype, trans_scale, scale_fmt: as for `silu_and_mul_quant`.
        quantise: lmdeploy's quant_fp8, called as quantise(activated, group_size, dtype=, trans_scale=, scale_fmt=).
        activation: None for SwiGLU, which is fused; any other callable [M, 2N] -> [M, N] takes the unfused path.
        fused: what stands for SwiGLU and the quantiser together.

    Returns:
        (codes [M, N], scales [M, N // group_size]).
    """
    if activation is None:
        return fused(gate_up, group_size, dtype=dtype, trans_scale=trans_scale, scale_fmt=scale_fmt)
    return quantise(activation(gate_up), group_size, dtype=dtype, trans_scale=trans_scale, scale_fmt=scale_fmt)
