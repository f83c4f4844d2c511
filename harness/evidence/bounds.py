"""Comparing what a subject gave with a float64 oracle, within a bound per element. Every comparison leaves a record."""
from __future__ import annotations

import torch

from harness.evidence.bits import describe
from harness.evidence.compare import Context, compare_layout
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.pattern import describe_pattern
from harness.evidence.verdicts import Reason


def compare_bound(log: EvidenceLog, what: str, name: str, actual: torch.Tensor, exact: torch.Tensor,
                  allowed: torch.Tensor, context: Context) -> float:
    """|actual - exact| <= allowed in every element of matrices [M, N]; NaN lies outside.

    Args:
        exact, allowed: float64.

    Returns:
        The largest observed / allowed, which the record keeps as `worst`.

    Raises:
        ContractBroken: BOUND; the message shows the element that is furthest outside, its inputs, where the others lie,
            and the command that reproduces the case.
    """
    if actual.shape != exact.shape:
        compare_layout(log, what, name, actual, tuple(exact.shape), actual.dtype, context)
    if actual.numel() == 0:
        log.add(Record('layout', f'{what} (no elements: shape only)', compared=1))
        return 0.0
    distance = (actual.to(torch.float64) - exact).abs()
    ratio = torch.where(distance == 0, 0.0, distance / allowed)
    outside = ~(ratio <= 1)
    worst = float(ratio.nan_to_num(nan=torch.inf).max())
    log.add(Record('bound', what, actual.numel(), int(outside.sum()), worst, {'unit': 'observed / allowed'}))
    if outside.any():
        raise ContractBroken(Reason.BOUND, _explain(what, name, actual, exact, allowed, ratio, outside, context))
    return worst


def _explain(what, name, actual, exact, allowed, ratio, outside, context: Context) -> str:
    flat = int(ratio.nan_to_num(nan=torch.inf).reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), actual.shape))
    lines = [what, f'{name}{list(index)} is the furthest outside:', f'  found    {describe(actual, index)}',
             f'  exact    {float(exact[index])!r}, give or take {float(allowed[index]):.3e}: found is '
             f'{float(ratio[index]):.3g} times as far off']
    lines += [f'  {line}' for line in context.inputs_at(name, index)]
    lines += [f'{name} lie outside in {describe_pattern(outside.cpu().numpy())}', f'reproduce: {context.reproduce}']
    return '\n'.join(lines)
