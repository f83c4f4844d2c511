"""Comparing what a subject gave with what it should have given. Every comparison leaves a record, equal or not."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.evidence.bits import as_bits, describe, to_numpy_bits
from harness.evidence.log import ContractBroken, EvidenceLog, Record
from harness.evidence.pattern import describe_pattern, step_histogram
from harness.evidence.verdicts import Reason


@dataclass(frozen=True)
class Context:
    """What an explanation needs beside the two sides.

    Attributes:
        reproduce: the one command that runs exactly this case again.
        inputs_at: (output name, element index) -> lines that show the inputs of that element.
        group: elements per scale, for outputs whose columns fall into groups; None otherwise.
    """

    reproduce: str
    inputs_at: Callable[[str, tuple[int, ...]], list[str]] = lambda name, index: []
    group: int | None = None


def compare_layout(log: EvidenceLog, what: str, name: str, actual: torch.Tensor, expected_shape: tuple[int, ...],
                   expected_dtype: torch.dtype, context: Context,
                   expected_stride: tuple[int, ...] | None = None) -> None:
    """Shape, dtype and (where given) strides of an output. Raises ContractBroken(BYTES) on a difference.

    The stride of a dimension with one element, or of an empty tensor, says nothing and is not compared.
    """
    found = [tuple(actual.shape), actual.dtype]
    wanted = [tuple(expected_shape), expected_dtype]
    if expected_stride is not None and found[0] == wanted[0] and actual.numel():
        counts = [size > 1 for size in expected_shape]
        found.append(tuple(step if count else None for step, count in zip(actual.stride(), counts, strict=True)))
        wanted.append(tuple(step if count else None for step, count in zip(expected_stride, counts, strict=True)))
    wrong = sum(f != w for f, w in zip(found, wanted, strict=True))
    log.add(Record('layout', f'{name}: {what}', compared=len(wanted), differing=wrong))
    if wrong:
        raise ContractBroken(Reason.BYTES, f'{name}: {what}\nexpected shape, dtype, stride: {wanted}\n'
                             f'found:                         {found}\nreproduce: {context.reproduce}')


def compare_bytes(log: EvidenceLog, what: str, name: str, actual: torch.Tensor, expected: torch.Tensor,
                  context: Context, reason: Reason = Reason.BYTES) -> None:
    """Equality of every bit, NaN and the sign of zero included, between two tensors of one shape and dtype.

    Args:
        what: the two sides in words, for example 'codes: candidate against stock quant_fp8(silu_and_mul(x))'.
        name: the output's name ('codes', 'scales', 'activated').

    Raises:
        ContractBroken: with `reason`; the message shows the first differing element, its inputs, the bits of both
            sides, where the differences lie and how far they go, and the command that reproduces the case.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        compare_layout(log, what, name, actual, tuple(expected.shape), expected.dtype, context)
    if actual.numel() == 0:
        log.add(Record('layout', f'{what} (no elements: shape and dtype only)', compared=2))
        return
    differs = as_bits(actual) != as_bits(expected).to(actual.device)
    differing = int(differs.sum())
    log.add(Record('bytes', what, compared=actual.numel() * actual.element_size(), differing=differing,
                   detail=_census(expected)))
    if differing:
        raise ContractBroken(reason, explain(what, name, actual, expected, context))


def _census(tensor: torch.Tensor) -> dict:
    """How many NaN and negative zeros took part: where there are none, equality says nothing about them."""
    if not tensor.dtype.is_floating_point:
        return {}
    wide = tensor.to(torch.float32)
    return {'nan': int(wide.isnan().sum()), 'negative_zero': int(((wide == 0) & wide.signbit()).sum())}


def explain(what: str, name: str, actual: torch.Tensor, expected: torch.Tensor, context: Context) -> str:
    """The text of a byte mismatch between two matrices of one shape and dtype that differ somewhere."""
    left, right = to_numpy_bits(actual), to_numpy_bits(expected)
    mask = (left != right).reshape(left.shape[0], -1)
    flat = int(mask.reshape(-1).argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), actual.shape))
    lines = [what, f'{name}{list(index)} is the first that differs:',
             f'  found    {describe(actual, index)}', f'  expected {describe(expected, index)}']
    lines += [f'  {line}' for line in context.inputs_at(name, index)]
    lines.append(f'{name} differ in ' + describe_pattern(mask, context.group if name == 'codes' else None))
    steps = ', '.join(f'{count} by {far}' for far, count in step_histogram(left, right).items())
    lines.append(f'distance in representable values: {steps}')
    lines.append(f'reproduce: {context.reproduce}')
    return '\n'.join(lines)
