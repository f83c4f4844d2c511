"""From a source text and a fault to the mutant's text: found by meaning, cut by position, checked by meaning.

The standard library's syntax trees know where every node stands, and nothing else of the file may change: not a
comment, and not the number of a line, for Triton's caches know a kernel by the line on which it begins.
"""
from __future__ import annotations

import ast
import copy
import textwrap
from collections.abc import Iterator, Sequence

from harness.mutants.fault import Fault


class DoesNotApply(ValueError):
    """The rewrite of a fault does not fit the source. Such a mutant has not survived: it does not exist."""


def mutated(source: str, fault: Fault) -> str:
    """The text of the mutant, with as many lines as `source`, each function where it was.

    Raises:
        DoesNotApply: the function or the old text is not there as often as the fault says, or the new one does not fit.
    """
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    old, new = _parsed(fault)
    statements = isinstance(old[0], ast.stmt)
    function = _function(ast.parse(source), fault)
    places = list(_places(function, old, starts))
    if len(places) != fault.times:
        raise DoesNotApply(f'{fault.id}: old: expected {fault.times} time(s) in {fault.file}, {fault.function}, '
                           f'found {len(places)}: {fault.old.strip()}')
    for start, end in reversed(places):
        data = data[:start] + _fitted(fault, data, start, end, statements) + data[end:]
    result = data.decode()
    _check(fault, source, result, old, new)
    return result


def _parsed(fault: Fault) -> tuple[list[ast.AST], list[ast.AST]]:
    """Old and new, as an expression each if both are one, else as statements; no text is no statement."""
    try:
        return tuple([ast.parse(text.strip(), mode='eval').body] for text in (fault.old, fault.new))
    except SyntaxError:
        pass
    parsed = []
    for name, text in (('old', fault.old), ('new', _new_statements(fault))):
        try:
            parsed.append(ast.parse(_dedented(text)).body)
        except SyntaxError as error:
            raise DoesNotApply(f'{fault.id}: {name}: expected an expression or statements, found {error}') from None
    return tuple(parsed)


def _new_statements(fault: Fault) -> str:
    return fault.new if fault.new.strip() else 'pass'


def _dedented(text: str) -> str:
    return textwrap.dedent(text).strip()


def _function(tree: ast.Module, fault: Fault) -> ast.AST:
    node: ast.AST = tree
    for name in fault.function.split('.'):
        found = [child for child in node.body if getattr(child, 'name', None) == name]
        if len(found) != 1:
            raise DoesNotApply(f'{fault.id}: function: expected one {fault.function} in {fault.file}, '
                               f'found {len(found)}')
        node = found[0]
    return node


def _places(function: ast.AST, old: list[ast.AST], starts: list[int]) -> Iterator[tuple[int, int]]:
    """From where to where `old` stands, in bytes, in the order of the text; `starts` of the lines."""
    wanted = [ast.dump(node) for node in old]
    for nodes in _runs(function, len(old), isinstance(old[0], ast.stmt)):
        if [ast.dump(_as_loaded(node)) for node in nodes] == wanted:
            first, last = nodes[0], nodes[-1]
            yield starts[first.lineno - 1] + first.col_offset, starts[last.end_lineno - 1] + last.end_col_offset


def _runs(function: ast.AST, length: int, statements: bool) -> list[Sequence[ast.AST]]:
    """Every run of as many neighbours that could be meant, in the order of the text."""
    found = []
    for node in ast.walk(function):
        if statements:
            for block in ('body', 'orelse', 'finalbody'):
                inner = getattr(node, block, None)
                if isinstance(inner, list):
                    found += [inner[at:at + length] for at in range(len(inner) - length + 1)]
        elif isinstance(node, ast.expr):
            found.append([node])
    return sorted(found, key=lambda run: (run[0].lineno, run[0].col_offset))


def _as_loaded(node: ast.AST) -> ast.AST:
    """A name or element that is assigned to, as the same text reads on its own."""
    if isinstance(getattr(node, 'ctx', None), ast.Store):
        node = copy.copy(node)
        node.ctx = ast.Load()
    return node


def _fitted(fault: Fault, data: bytes, start: int, end: int, statements: bool) -> bytes:
    """The new text in the place of the old, as many lines long."""
    lines = data[start:end].count(b'\n')
    text = _dedented(_new_statements(fault))
    if statements:
        text = text.replace('\n', '\n' + data[data.rfind(b'\n', 0, start) + 1:start].decode())
    spare = lines - text.count('\n')
    if spare < 0:
        raise DoesNotApply(f'{fault.id}: new: expected at most {lines + 1} line(s), found {text.count(chr(10)) + 1}; '
                           "a ';' puts two statements on one")
    blank = '\n' * spare
    return (text + blank if statements else f'({text}{blank})').encode()


def _check(fault: Fault, source: str, result: str, old: list[ast.AST], new: list[ast.AST]) -> None:
    """That the mutant says what was meant, and nothing else moved."""
    try:
        tree = ast.parse(result)
    except SyntaxError as error:
        raise DoesNotApply(f'{fault.id}: new: expected Python in its place, found {error}') from None
    function = _function(tree, fault)
    before = _function(ast.parse(source), fault)
    if (function.lineno, function.end_lineno) != (before.lineno, before.end_lineno):
        raise DoesNotApply(f'{fault.id}: new: expected {fault.function} to stay on its lines')
    wanted = ast.dump(_Exchange(old, new).visit(before))
    if ast.dump(function) != wanted:
        raise DoesNotApply(f'{fault.id}: new: expected a text that means the same wherever old stands')


class _Exchange(ast.NodeTransformer):
    """The exchange as a change of the tree."""

    def __init__(self, old: list[ast.AST], new: list[ast.AST]) -> None:
        self._old, self._new = [ast.dump(node) for node in old], new
        self._statements = isinstance(old[0], ast.stmt)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._statements:
            for block in ('body', 'orelse', 'finalbody'):
                if isinstance(getattr(node, block, None), list):
                    setattr(node, block, self._exchanged(getattr(node, block)))
        return super().generic_visit(node)

    def visit(self, node: ast.AST) -> ast.AST:
        if not self._statements and isinstance(node, ast.expr) and [ast.dump(_as_loaded(node))] == self._old:
            return copy.deepcopy(self._new[0])
        return super().visit(node)

    def _exchanged(self, block: list) -> list:
        result, at = [], 0
        while at < len(block):
            run = block[at:at + len(self._old)]
            if [ast.dump(node) for node in run] == self._old:
                result += copy.deepcopy(self._new)
                at += len(run)
            else:
                result.append(block[at])
                at += 1
        return result
