"""The builds that a fused kernel is launched in: its launcher, called with every input of the catalogue."""
from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from harness.contracts import catalogue, silu_and_mul_quant
from harness.machine_code.launches import Launch, record_launches

OPERATOR = 'silu_and_mul_quant'
CANDIDATE = 'harness.kernels.silu_and_mul_quant'


class LauncherAbsent(Exception):
    """No launcher under that name. The message says what was expected and what was found."""


class UnknownCase(Exception):
    """A case id that is not in the catalogue. The message names it."""


def load_launcher(module: str) -> Callable:
    """The function `silu_and_mul_quant` of a module, given by its dotted name or by the path of a Python file.

    Raises:
        LauncherAbsent: no such module, or it has no such function.
    """
    loaded = _from_file(Path(module)) if module.endswith('.py') else _from_name(module)
    launcher = getattr(loaded, OPERATOR, None)
    if not callable(launcher):
        raise LauncherAbsent(f'{module}: expected a function {OPERATOR}, found none')
    return launcher


def _from_name(name: str):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LauncherAbsent(f'expected a module {name}, found none ({error})') from error


def _from_file(path: Path):
    if not path.is_file():
        raise LauncherAbsent(f'expected a Python file {path}, found none')
    # Files of one stem may be loaded beside each other, and Triton looks a kernel's module up by its name.
    name = f'bitgate_launcher_{len(sys.modules)}_{path.stem}'
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def catalogue_launches(launcher: Callable, case_ids: frozenset[str] | None = None) -> dict[str, list[Launch]]:
    """Case id -> launches of `launcher` for that case's input on the CPU; nothing runs.

    Args:
        case_ids: only these cases; None for all of the catalogue, those that run on a GPU alone included.

    Raises:
        UnknownCase: an id of `case_ids` is not in the catalogue.
    """
    cases = {case.id: case for case in catalogue(OPERATOR)}
    unknown = (case_ids or frozenset()) - cases.keys()
    if unknown:
        raise UnknownCase(f'case_ids: expected ids of the catalogue of {OPERATOR}, found {sorted(unknown)}')
    found = {}
    for case_id, case in cases.items():
        if case_ids is None or case_id in case_ids:
            gate_up = case.build(torch.device('cpu'))
            with record_launches() as launches:
                silu_and_mul_quant.call(launcher, case.options, gate_up)
            found[case_id] = launches
    return found
