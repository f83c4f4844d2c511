"""Repairs of Triton's interpreter for the cpu lane.

Stock 3.7.1 rounds conversions to FP8 half up, loses the carry into the exponent and truncates subnormals; it truncates
fp32 -> bf16, computes bf16 on raw bit patterns, and lets numpy decide about NaN, infinity and signed zeros. The repairs
replace those operations by `interpreter_arithmetic`, whose rules follow a table recorded on an H200
(`h200_semantics.json`); exp, logarithms and division stay numpy's. Products and sums are not contracted into one
rounding, as the GPU's compiler does: only an explicit fma is one.
"""
from __future__ import annotations

import functools
import importlib.metadata
import sys

import numpy as np

from harness.lanes import interpreter_arithmetic as arithmetic
from harness.lanes.interpreter_floats import NUMPY_TYPES, WIDENED_BF16_NAN, canonical_nan, convert, decode, encode

KNOWN_TRITON = ('3.7.1',)   # the versions whose interpreter these repairs fit; ci/supported.toml gives the reasons
_CONSTANT = 'bitgate.constant'
_FROM_BF16 = 'bitgate.from_bf16'
_installed = False


class UnsupportedTriton(Exception):
    """The installed Triton's interpreter is not one that the repairs are known to fit."""


def check_version() -> None:
    """Raises UnsupportedTriton unless the installed Triton is one of `KNOWN_TRITON`. Imports nothing."""
    try:
        found = importlib.metadata.version('triton')
    except importlib.metadata.PackageNotFoundError:
        found = 'none'
    if found not in KNOWN_TRITON:
        raise UnsupportedTriton(f'cpu lane: expected triton {" or ".join(KNOWN_TRITON)}, whose interpreter the repairs '
                                f'fit, found {found}; ci/supported.toml lists the combinations that work')


def install() -> None:
    """Repairs the interpreter of the imported Triton, once per process."""
    global _installed
    if _installed:
        return
    from triton.runtime import interpreter as stock
    _repair_conversions(stock)
    _repair_constants(stock)
    _repair_elementwise(stock)
    _repair_reductions(stock)
    _repair_launch(stock)
    _installed = True


def rebind_builtin_aliases(module_prefix: str) -> int:
    """Makes module-level aliases of Triton builtins (`fast_exp = tl.math.exp`) usable in the interpreter.

    The interpreter patches `triton.language` while a kernel runs; a name bound at import time misses that. Looks at
    modules already imported, named `module_prefix` or below it; call again after further imports. Returns how many
    aliases were bound anew.
    """
    from triton.runtime import interpreter as stock
    bound = 0
    for name, module in list(sys.modules.items()):
        if module is None or not (name == module_prefix or name.startswith(module_prefix + '.')):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and getattr(value, '__triton_builtin__', False):
                setattr(module, attribute, functools.partial(value, _semantic=stock.interpreter_semantic))
                bound += 1
    return bound


def _is_float(dtype) -> bool:
    return dtype.scalar.name in NUMPY_TYPES


def _repair_conversions(stock) -> None:
    builder, handle = stock.InterpreterBuilder, stock.TensorHandle
    stock_convert, stock_cast = stock._convert_float, builder.cast_impl
    toward_zero = stock._ir.ROUNDING_MODE.RTZ

    def convert_float(data, source, target, rounding_mode=None):
        if source.name not in NUMPY_TYPES or target.name not in NUMPY_TYPES:
            return stock_convert(data, source, target, rounding_mode)
        converted = convert(data, source.name, target.name, rounding_mode == toward_zero)
        return converted.view(f'uint{target.primitive_bitwidth}')

    def cast(self, source, target):
        if _is_float(source.dtype) and _is_float(target):
            out = handle(convert(source.data, source.dtype.scalar.name, target.scalar.name), target.scalar)
            if source.dtype.scalar.name == 'bf16':
                out.set_attr(_FROM_BF16, True)
            return out
        if _is_float(target):
            # float64 holds every integer up to 2^53; fp16 and bf16 must not be reached through a rounded fp32
            return handle(encode(source.data.astype(np.float64), target.scalar.name), target.scalar)
        if _is_float(source.dtype):
            source = handle(decode(source.data, source.dtype.scalar.name), stock.tl.float32)
        return stock_cast(self, source, target)

    stock._convert_float = convert_float
    builder.cast_impl = cast


def _repair_constants(stock) -> None:
    builder, handle = stock.InterpreterBuilder, stock.TensorHandle

    def constant(data, dtype):
        return handle(data, dtype, {_CONSTANT: True})

    builder.get_bf16 = lambda self, value: constant(encode(np.array([value], np.float64), 'bf16'), stock.tl.bfloat16)
    builder.get_fp16 = lambda self, value: constant(np.array([value], np.float16), stock.tl.float16)
    builder.get_fp32 = lambda self, value: constant(np.array([value], np.float32), stock.tl.float32)

    stock_splat = builder.create_splat

    def splat(self, block_type, value):
        out = stock_splat(self, block_type, value)
        if value.attr.get(_CONSTANT):
            out.set_attr(_CONSTANT, True)
        return out

    builder.create_splat = splat


def _repair_elementwise(stock) -> None:
    builder, handle = stock.InterpreterBuilder, stock.TensorHandle
    stock_dot = builder.create_dot

    def name_of(operand) -> str:
        return operand.dtype.scalar.name

    def binary(op):
        return lambda self, a, b: handle(arithmetic.binary(a.data, b.data, name_of(a), op), a.dtype.scalar)

    def compare(op):
        return lambda self, a, b: handle(arithmetic.compare(a.data, b.data, name_of(a), op), stock.tl.int1)

    def extremum(largest, keep_nan):
        def run(self, a, b):
            out = arithmetic.extremum(a.data, b.data, name_of(a), largest, keep_nan)
            if a.attr.get(_FROM_BF16) and b.attr.get(_FROM_BF16) and name_of(a) == 'fp32':
                # the compiler takes the extremum of the bf16 values and widens it: bf16's NaN, not fp32's
                out = canonical_nan(out, np.isnan(out), 'fp32', WIDENED_BF16_NAN)
            return handle(out, a.dtype.scalar)
        return run

    def clamp(self, a, low, high, propagate_nan):
        keep_nan = propagate_nan == stock._ir.PROPAGATE_NAN.ALL
        name = name_of(a)
        constant = low.attr.get(_CONSTANT) and high.attr.get(_CONSTANT)
        if constant and not keep_nan and name in ('fp16', 'fp32') and np.array_equal(low.data, -high.data):
            return handle(arithmetic.clamp_symmetric(a.data, high.data, name), a.dtype.scalar)
        return handle(arithmetic.clamp(a.data, low.data, high.data, name, keep_nan), a.dtype.scalar)

    def unary(self, a, op):
        data = arithmetic.unary(a.data, name_of(a), op) if _is_float(a.dtype) else op(a.data)
        return handle(data, a.dtype.scalar)

    def dot(self, a, b, accumulator, input_precision, max_num_imprecise_acc):
        if not _is_float(a.dtype):
            return stock_dot(self, a, b, accumulator, input_precision, max_num_imprecise_acc)
        # Rounded once: float32 sums are BLAS's business, and differ between processors.
        product = np.matmul(*(decode(operand.data, name_of(operand)).astype(np.float64) for operand in (a, b)))
        return handle(arithmetic.binary(encode(product, name_of(accumulator)), accumulator.data, name_of(accumulator),
                                        np.add), accumulator.dtype.scalar)

    for stem, op in (('fadd', np.add), ('fsub', np.subtract), ('fmul', np.multiply), ('fdiv', np.divide),
                     ('precise_divf', np.divide), ('frem', np.fmod)):
        setattr(builder, f'create_{stem}', binary(op))
    for stem, op in (('LT', np.less), ('LE', np.less_equal), ('GT', np.greater), ('GE', np.greater_equal),
                     ('EQ', np.equal), ('NE', np.not_equal)):
        setattr(builder, f'create_fcmpO{stem}', compare(op))
        setattr(builder, f'create_fcmpU{stem}', compare(op))
    for stem, largest, keep_nan in (('maximumf', True, True), ('maxnumf', True, False), ('minimumf', False, True),
                                    ('minnumf', False, False)):
        setattr(builder, f'create_{stem}', extremum(largest, keep_nan))
    builder.create_clampf = clamp
    builder.unary_op = unary
    builder.create_fabs = lambda self, a: handle(arithmetic.absolute(a.data, name_of(a)), a.dtype.scalar)
    builder.create_fma = lambda self, a, b, c: handle(arithmetic.fma(a.data, b.data, c.data, name_of(c)),
                                                      c.dtype.scalar)
    builder.create_dot = dot


def _repair_reductions(stock) -> None:
    operations = stock.ReduceOps
    stock_min_max, stock_sum = operations.min_max, operations.sum

    def min_max(self, inputs, val_reduce_op, idx_reduce_op=None):
        tensor = inputs[0] if isinstance(inputs, tuple) else inputs
        if idx_reduce_op is not None or not _is_float(tensor.dtype):
            return stock_min_max(self, inputs, val_reduce_op, idx_reduce_op)
        largest = val_reduce_op in (np.max, np.nanmax)
        data = arithmetic.reduce_extremum(tensor.handle.data, tensor.dtype.scalar.name, largest, self.axis,
                                          self.keep_dims)
        return self.to_tensor(data, tensor.dtype)

    def total(self, tensor):
        if not _is_float(tensor.dtype):
            return stock_sum(self, tensor)
        data = arithmetic.reduce_sum(tensor.handle.data, tensor.dtype.scalar.name, self.axis, self.keep_dims)
        return self.to_tensor(data, tensor.dtype)

    operations.min_max, operations.sum = min_max, total


def _repair_launch(stock) -> None:
    executor, handle, tl = stock.GridExecutor, stock.TensorHandle, stock.tl
    stock_call, stock_convert_argument = executor.__call__, stock._implicit_cvt
    stock_atomic = stock.InterpreterBuilder.create_atomic_rmw

    def call(self, *arguments, **keywords):
        # infinities and NaN are values that kernels are tried with, not mistakes to warn about
        with np.errstate(all='ignore'):
            return stock_call(self, *arguments, **keywords)

    def convert_argument(argument):
        # a float that a compiled kernel takes at run time is fp32 and widens bf16 operands; left as a Python number it
        # would adapt to them, and would pass for a compile-time constant
        if isinstance(argument, float):
            return tl.tensor(handle(np.array([argument], np.float32), tl.float32), tl.float32)
        return stock_convert_argument(argument)

    def atomic(self, operation, pointer, value, mask, semantic, scope):
        if value.dtype.scalar.name == 'bf16' and operation == stock._ir.ATOMIC_OP.FADD:
            raise NotImplementedError('cpu lane: atomic_add on bf16 would add bit patterns in the interpreter')
        return stock_atomic(self, operation, pointer, value, mask, semantic, scope)

    executor.__call__, stock._implicit_cvt = call, convert_argument
    stock.InterpreterBuilder.create_atomic_rmw = atomic
