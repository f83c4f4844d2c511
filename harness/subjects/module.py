"""A module path: anybody's file of operators, on trial under the same contracts."""
from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import lru_cache
from pathlib import Path

from harness.lanes import interpreter
from harness.lanes.activation import active_lane
from harness.lanes.lane import Lane
from harness.subjects.protocol import OPERATORS, Provenance, SubjectRefused


class ModuleSubject:
    """Offers every function of the module that is named like an operator and takes that operator's arguments."""

    name = 'module'

    def __init__(self, provenance: Provenance, functions: dict):
        self.provenance = provenance
        self._functions = functions

    def offers(self) -> frozenset[str]:
        return frozenset(self._functions)

    def __getattr__(self, name: str):
        try:
            return self.__dict__['_functions'][name]
        except KeyError:
            raise AttributeError(f'{self.provenance.path} has no function {name!r}') from None


@lru_cache(maxsize=1)
def load_module(path: Path) -> ModuleSubject:
    """Import the file at `path` under a name of its own.

    Raises:
        SubjectRefused: no such file, it does not import, or it has no function named like an operator.
    """
    path = path.resolve()
    if path.suffix != '.py' or not path.is_file():
        raise SubjectRefused(f'module: expected the path of a Python file, found {path}')
    source = path.read_bytes()
    digest = hashlib.sha256(source).hexdigest()
    name = f'bitgate_subject_{digest[:12]}'
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Triton looks a kernel's module up by its name
    try:
        # The bytes that were hashed, never cached bytecode of earlier ones.
        exec(compile(source, str(path), 'exec'), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise SubjectRefused(f'module: {path} does not import: {type(error).__name__}: {error}') from error
    if active_lane() is Lane.CPU:
        interpreter.rebind_builtin_aliases(name)
    functions = {name: getattr(module, name) for name in OPERATORS if callable(getattr(module, name, None))}
    if not functions:
        raise SubjectRefused(f'module: expected a function named like one of {", ".join(OPERATORS)} in {path}, '
                             'found none')
    version = str(getattr(module, '__version__', 'unversioned'))
    return ModuleSubject(Provenance('module', str(path), version, digest), functions)
