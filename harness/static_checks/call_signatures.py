"""Calls of kernels against the kernels' signatures, by their text alone: no import, no GPU.

Judged is every call of a function below lmdeploy.pytorch.kernels whose callee the text tells, and every launch
`kernel[grid](...)` of a Triton kernel. A call has to fit every function that its name can stand for.
"""
from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.static_checks.names import OPAQUE, Definition, Module, Place, SourceTree, bindings

PACKAGE = 'lmdeploy'
KERNELS = 'lmdeploy.pytorch.kernels'
# Decorators that leave a function's parameters as they stand.
_TRANSPARENT = frozenset({'lru_cache', 'cache', 'inference_mode', 'no_grad', 'jit', 'autotune', 'heuristics', 'wraps',
                          'contextmanager', 'record_function', 'disable', 'custom_op', 'constexpr_function', 'compile'})
_SUPPLY_ARGUMENTS = frozenset({'autotune', 'heuristics'})
_TRITON = frozenset({'triton', 'gluon', 'jit'})
# What a launch may say beside the kernel's own parameters (fields of Triton's CUDA options, and JITFunction.run's own).
LAUNCH_OPTIONS = frozenset({
    'num_warps', 'num_stages', 'num_ctas', 'maxnreg', 'cluster_dims', 'ptx_version', 'ptx_options', 'ir_override',
    'enable_fp_fusion', 'enable_reflect_ftz', 'launch_cooperative_grid', 'launch_pdl', 'supported_fp8_dtypes',
    'default_dot_input_precision', 'allowed_dot_input_precisions', 'max_num_imprecise_acc_default', 'extern_libs',
    'debug', 'sanitize_overflow', 'arch', 'instrumentation_mode', 'warmup'})


@dataclass(frozen=True)
class Fault:
    """A call that cannot work. `place` is file:line below the tree's root."""

    place: str
    callee: str
    text: str

    def __str__(self) -> str:
        return f'{self.place}: {self.callee}: {self.text}'


@dataclass
class Report:
    """What was looked at.

    Attributes:
        calls: places of calls that were judged; launches: places of launches of Triton kernels that were judged.
        kernels: dotted names of the functions that were called or launched.
        faults: what cannot work.
        not_judged: why -> how many calls it keeps from being judged, wholly or in part.
    """

    calls: list[str] = field(default_factory=list)
    launches: list[str] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    not_judged: Counter = field(default_factory=Counter)


def examine(root: Path, *folders: str) -> Report:
    """Judge every file in `folders`, relative to `root`, the folder that holds the package lmdeploy.

    Raises:
        SyntaxError: a file does not parse.
    """
    tree, report = SourceTree(root, PACKAGE), Report()
    for module in tree.files(*folders):
        for call, place in _calls(module):
            _judge(tree, report, call, place)
    return report


def _calls(module: Module) -> Iterator[tuple[ast.Call, Place]]:
    """Every call of a file with the scopes that its names are looked up in."""
    def within(node: ast.AST, place: Place) -> Iterator[tuple[ast.Call, Place]]:
        for child in ast.iter_child_nodes(node):
            inner = place
            if isinstance(child, ast.ClassDef):
                inner = Place(module, place.functions, child)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inner = Place(module, (bindings(child, module), *place.functions), place.owner)
            if isinstance(child, ast.Call):
                yield child, place
            yield from within(child, inner)
    yield from within(module.tree, Place(module))


def _judge(tree: SourceTree, report: Report, call: ast.Call, place: Place) -> None:
    launch = isinstance(call.func, ast.Subscript)
    found = tree.meaning(call.func.value if launch else call.func, place)
    kernels = [item for item in found if isinstance(item, Definition) and item.node is not None and (
        _is_kernel(item.node) if launch else item.module.startswith(f'{KERNELS}.'))]
    if not kernels:
        return
    where = f'{place.module.path.relative_to(tree.root).as_posix()}:{call.lineno}'
    if OPAQUE in found or len(kernels) != len(found):
        report.not_judged['the name may stand for something else too'] += 1
        return
    if any(isinstance(item.node, ast.ClassDef) for item in kernels):
        report.not_judged['a class'] += 1
        return
    if any(not _decorators(item.node) <= _TRANSPARENT for item in kernels):
        report.not_judged['a decorator that may change the parameters'] += 1
        return
    (report.launches if launch else report.calls).append(where)
    for item in dict.fromkeys(kernels):
        name = f'{item.module.removeprefix(f"{KERNELS}.")}.{item.node.name}'
        report.kernels.add(name)
        report.faults += [Fault(where, name, text) for text in _misfits(call, item.node, launch, report.not_judged)]


def _misfits(call: ast.Call, function: ast.FunctionDef, launch: bool, not_judged: Counter) -> Iterator[str]:
    """Every way in which a call does not fit a signature."""
    arguments = function.args
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    only_positional = {argument.arg for argument in arguments.posonlyargs}
    named = {*positional, *(argument.arg for argument in arguments.kwonlyargs)} - only_positional
    given = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    spread = len(given) < len(call.args)
    keywords = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    unpacked = len(keywords) < len(call.keywords)
    for keyword in keywords:
        if keyword not in named and not (launch and keyword in LAUNCH_OPTIONS) and not arguments.kwarg:
            yield f'no parameter {keyword!r}; it has {", ".join(positional)}' + (
                f', {", ".join(argument.arg for argument in arguments.kwonlyargs)}' if arguments.kwonlyargs else '')
    if len(given) > len(positional) and not arguments.vararg:
        yield f'expected at most {len(positional)} positional arguments, found {len(given)}'
    taken = positional[:len(given)] if not spread else []
    for keyword in keywords:
        if keyword in taken and keyword in named:
            yield f'{keyword!r} is given by position and by name'
    if spread or unpacked:
        not_judged['* or **: whether every parameter is given'] += 1
        return
    if launch and _decorators(function) & _SUPPLY_ARGUMENTS:
        not_judged['autotuned: whether every parameter is given'] += 1
        return
    missing = [name for name in _required(arguments) if name not in taken and name not in keywords]
    if missing:
        yield f'required, but not given: {", ".join(missing)}'


def _required(arguments: ast.arguments) -> list[str]:
    positional = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    without = positional[:len(positional) - len(arguments.defaults)]
    by_name = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return without + [argument.arg for argument, default in by_name if default is None]


def _is_kernel(node: ast.AST) -> bool:
    return bool(_decorators(node) & {'jit'}) and any(
        name in _TRITON for decorator in node.decorator_list for name in _dotted(decorator))


def _decorators(node: ast.AST) -> set[str]:
    """The last names of a function's decorators: 'jit' for triton.jit."""
    return {next(iter(_dotted(decorator)), '') for decorator in node.decorator_list}


def _dotted(node: ast.expr) -> list[str]:
    """The names of a dotted expression, last first, without a call's arguments; [] for anything else."""
    node = node.func if isinstance(node, ast.Call) else node
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [*names, node.id] if isinstance(node, ast.Name) else []
