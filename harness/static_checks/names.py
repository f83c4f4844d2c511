"""What a name stands for in a source tree, by its text alone: imports, re-exports, aliases and attributes of self.

Nothing is imported or run. A name that is bound in several ways stands for all of them; as soon as one of those ways is
not a plain import, definition or alias, it stands for nothing that could be judged.
"""
from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_DEPTH = 12


@dataclass(frozen=True)
class Definition:
    """A function or class, or a module (`node` is None), in the module of that dotted name."""

    module: str
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None = None


@dataclass(frozen=True)
class _Opaque:
    """Bound to something that the text does not tell."""


OPAQUE = _Opaque()


@dataclass(frozen=True)
class _Imported:
    """`from module import name`, or `import module` where `name` is None."""

    module: str
    name: str | None = None


@dataclass
class Module:
    """One file of the tree. `name` is dotted; `package` is what its relative imports start from."""

    name: str
    path: Path
    is_package: bool
    tree: ast.Module = field(repr=False)

    @cached_property
    def bindings(self) -> dict[str, list]:
        return bindings(self.tree, self)

    def absolute(self, level: int, module: str | None) -> str:
        """The module that `from ..module import` means here."""
        if not level:
            return module or ''
        parts = self.name.split('.') if self.is_package else self.name.split('.')[:-1]
        return '.'.join([*parts[:len(parts) - (level - 1)], *([module] if module else [])])


@dataclass(frozen=True)
class Place:
    """Where a name is looked up: a module, the bindings of the functions around (inner first), the class around."""

    module: Module
    functions: tuple[dict[str, list], ...] = ()
    owner: ast.ClassDef | None = None


class SourceTree:
    """The Python files below `root`/`package`, each parsed when it is first asked for.

    Raises SyntaxError from any of its methods for a file that does not parse.
    """

    def __init__(self, root: Path, package: str) -> None:
        self.root, self.package = root, package
        self._modules: dict[str, Module | None] = {}
        self._kept: dict[ast.ClassDef, dict[str, list]] = {}

    def files(self, *folders: str) -> list[Module]:
        """Every module in these folders (relative to `root`) and below, in order of their names."""
        paths = {path for folder in folders for path in (self.root / folder).rglob('*.py')}
        return [self._parse(path) for path in sorted(paths)]

    def module(self, name: str) -> Module | None:
        if name not in self._modules:
            base = self.root.joinpath(*name.split('.'))
            candidates = (base / '__init__.py', base.with_suffix('.py')) if name.split('.')[0] == self.package else ()
            self._modules[name] = next((self._read(path, name) for path in candidates if path.is_file()), None)
        return self._modules[name]

    def _parse(self, path: Path) -> Module:
        parts = path.relative_to(self.root).with_suffix('').parts
        module = self.module('.'.join(parts[:-1] if parts[-1] == '__init__' else parts))
        assert module is not None
        return module

    @staticmethod
    def _read(path: Path, name: str) -> Module:
        return Module(name, path, path.name == '__init__.py', ast.parse(path.read_bytes(), str(path)))

    def meaning(self, expression: ast.expr, place: Place, depth: int = 0) -> list:
        """Every Definition (and OPAQUE) that a name, an attribute of a module or of self stands for; [] if unknown."""
        if depth > _DEPTH:
            return [OPAQUE]
        if isinstance(expression, ast.Name):
            for scope in (*place.functions, place.module.bindings):
                if expression.id in scope:
                    return self._all(scope[expression.id], place, depth)
            return []
        if isinstance(expression, ast.Attribute):
            if isinstance(expression.value, ast.Name) and expression.value.id == 'self' and place.owner:
                return self._of_self(expression.attr, place, place.owner, depth)
            found = self.meaning(expression.value, place, depth + 1)
            return [item for definition in found if isinstance(definition, Definition) and definition.node is None
                    for item in self._member(definition.module, expression.attr, depth)]
        if isinstance(expression, ast.IfExp):
            return (self.meaning(expression.body, place, depth + 1) or [OPAQUE]) + (
                self.meaning(expression.orelse, place, depth + 1) or [OPAQUE])
        return []

    def _all(self, bound: Iterable, place: Place, depth: int) -> list:
        found: list = []
        for item in bound:
            if isinstance(item, _Imported):
                found += self._imported(item, depth)
            elif isinstance(item, ast.expr):
                found += self.meaning(item, place, depth + 1) or [OPAQUE]
            else:
                found.append(item)
        return found

    def _imported(self, item: _Imported, depth: int) -> list:
        if item.name is None:
            return [Definition(item.module)]
        return self._member(item.module, item.name, depth)

    def _member(self, module: str, name: str, depth: int) -> list:
        holder = self.module(module)
        if holder is not None and name in holder.bindings and depth < _DEPTH:
            return self._all(holder.bindings[name], Place(holder), depth + 1)
        below = f'{module}.{name}'
        is_module = self.module(below) is not None or self.root.joinpath(*below.split('.')).is_dir()
        return [Definition(below)] if is_module else []

    def _of_self(self, name: str, place: Place, owner: ast.ClassDef, depth: int) -> list:
        """What the methods of a class, or of its bases, keep under `self.name`."""
        if owner not in self._kept:
            self._kept[owner] = _kept(owner)
        kept = self._kept[owner].get(name)
        if kept is not None:
            found: list = []
            for value, method in kept:
                inside = Place(place.module, (bindings(method, place.module),) if method else (), owner)
                found += (self.meaning(value, inside, depth + 1) if value is not None else []) or [OPAQUE]
            return found
        found = []
        for base in owner.bases:
            for definition in self.meaning(base, Place(place.module), depth + 1):
                if isinstance(definition, Definition) and isinstance(definition.node, ast.ClassDef):
                    holder = self.module(definition.module)
                    found += self._of_self(name, Place(holder), definition.node, depth + 1) if holder else []
        return found


def _kept(owner: ast.ClassDef) -> dict[str, list]:
    """Name -> every (value, method) that assigns to `self.name` in a class; value None where the text does not tell it.

    A method, or whatever else the class's own body binds, is (None, None) under its name.
    """
    kept: dict[str, list] = {}
    for statement in owner.body:
        if not isinstance(statement, _SCOPES[:2]):
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    kept.setdefault(node.id, []).append((None, None))
            continue
        kept.setdefault(statement.name, []).append((None, None))
        for node in ast.walk(statement):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, 'target', None)]
            for target in targets:
                if isinstance(target, ast.Attribute) and _is_self(target.value):
                    value = getattr(node, 'value', None)
                    if not _is_none(value):
                        plain = isinstance(node, (ast.Assign, ast.AnnAssign))
                        kept.setdefault(target.attr, []).append((value if plain else None, statement))
    return kept


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == 'self'


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, those of functions and classes in it left out (but these themselves are in)."""
    todo = list(scope.body if isinstance(scope.body, list) else [scope.body])
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _SCOPES):
            todo += ast.iter_child_nodes(node)


def bindings(scope: ast.AST, module: Module) -> dict[str, list]:
    """Name -> all that it is bound to in a scope: imports, definitions, expressions that it is an alias of, OPAQUE."""
    found: dict[str, list] = {}
    told: set[int] = set()

    def bind(name: str, item: object) -> None:
        found.setdefault(name, []).append(item)

    if isinstance(scope, _SCOPES[:2]):
        arguments = scope.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg,
                         arguments.kwarg):
            if argument is not None:
                bind(argument.arg, OPAQUE)
    nodes = list(own_nodes(scope))
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bind(alias.asname or alias.name.split('.')[0],
                     _Imported(alias.name if alias.asname else alias.name.split('.')[0]))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                bind(alias.asname or alias.name, _Imported(module.absolute(node.level, node.module), alias.name))
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bind(node.name, Definition(module.name, node))
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            told.add(id(node.targets[0]))
            if not _is_none(node.value):
                alias = isinstance(node.value, (ast.Name, ast.Attribute, ast.IfExp))
                bind(node.targets[0].id, node.value if alias and not _names_itself(node) else OPAQUE)
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)) and id(node) not in told:
            bind(node.id, OPAQUE)
    return found


def _names_itself(node: ast.Assign) -> bool:
    own = node.targets[0].id
    return any(isinstance(part, ast.Name) and part.id == own for part in ast.walk(node.value))
