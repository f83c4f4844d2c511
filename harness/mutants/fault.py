"""One fault, as data: which text of which function becomes which other text, and what should notice."""
from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.subjects.protocol import OPERATORS

BUILT_IN = Path(__file__).parent / 'catalogue'
Text = Annotated[str, Field(min_length=1)]


class CatalogueInvalid(ValueError):
    """A catalogue is no catalogue. The message names the file, the fault, what was expected and what was found."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra='forbid')


class Fault(_Frozen):
    """One fault.

    Attributes:
        id: for ever; letters, digits and hyphens, beginning with the number of a public fault where there is one.
        kind: what sort of mistake it is, for example 'int-overflow'.
        source: where somebody made it, or what it is made after.
        subject: 'stock' or 'candidate'.
        file: of the subject; below lmdeploy/ for stock, below harness/kernels/ for the candidate.
        function: the function whose text changes, 'Class.method' for a method.
        old, new: an expression, or statements; `old` must occur exactly `times` times in the function, whatever its
            layout, and `new` may not need more lines than `old` has.
        guards: the operators whose suites claim to notice.
        killers: cases, as 'operator/case id', that are asked first; the guards' other cases follow.
        lanes: where the fault changes anything at all.
        race: whether it depends on timing, so that one run says nothing.
        equivalent: why no legal input can tell the mutant from the original, or empty.
    """

    id: Annotated[str, Field(pattern=r'^[A-Za-z0-9]+(-[A-Za-z0-9_]+)*$')]
    kind: Text
    source: Text
    subject: Literal['stock', 'candidate']
    file: Text
    function: Text
    old: Text
    new: str
    times: Annotated[int, Field(ge=1)] = 1
    guards: Annotated[tuple[str, ...], Field(min_length=1)]
    killers: tuple[str, ...] = ()
    lanes: Annotated[tuple[Literal['cpu', 'sm90'], ...], Field(min_length=1)] = ('cpu', 'sm90')
    race: bool = False
    equivalent: str = ''

    @model_validator(mode='after')
    def _consistent(self) -> Fault:
        unknown = [name for name in self.guards if name not in OPERATORS]
        if unknown:
            raise ValueError(f'guards: expected operators, found {", ".join(unknown)}')
        stray = [killer for killer in self.killers if killer.partition('/')[0] not in self.guards]
        if stray:
            raise ValueError(f'killers: expected cases of a guard as operator/case, found {", ".join(stray)}')
        if self.old.strip() == self.new.strip():
            raise ValueError('new: expected another text than old, found the same')
        return self


class Impossible(_Frozen):
    """A public fault that cannot exist in what is on trial, and why."""

    id: Text
    why: Text


class Catalogue(_Frozen):
    """What one TOML file holds."""

    fault: tuple[Fault, ...] = ()
    impossible: tuple[Impossible, ...] = ()


def load(*files: Path) -> Catalogue:
    """The catalogue of several files together. Raises CatalogueInvalid."""
    faults: dict[str, Fault] = {}
    impossible: list[Impossible] = []
    for file in files:
        try:
            found = Catalogue.model_validate(tomllib.loads(file.read_text(encoding='utf-8')))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise CatalogueInvalid(f'{file}: expected a TOML file, found {error}') from None
        except ValidationError as error:
            raise CatalogueInvalid('\n'.join(_line(file, item) for item in error.errors())) from None
        for fault in found.fault:
            if fault.id in faults:
                raise CatalogueInvalid(f'{file}: expected every id once, found {fault.id} twice')
            faults[fault.id] = fault
        impossible += found.impossible
    return Catalogue(fault=tuple(faults.values()), impossible=tuple(impossible))


def built_in() -> Catalogue:
    """The faults of this repository."""
    return load(*sorted(BUILT_IN.glob('*.toml')))


def chosen(catalogue: Catalogue, subjects: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[Fault, ...]:
    """The faults of `subjects` whose id matches one of the shell patterns; all ids if there is none.

    Raises:
        CatalogueInvalid: a pattern matches nothing.
    """
    found = [fault for fault in catalogue.fault if fault.subject in subjects]
    idle = [text for text in patterns if not any(fnmatchcase(fault.id, text) for fault in found)]
    if idle:
        raise CatalogueInvalid(f'--ids: expected patterns of ids, found {", ".join(idle)}, which match(es) none of '
                               f'{len(found)} faults of {", ".join(subjects)}')
    return tuple(fault for fault in found if not patterns or any(fnmatchcase(fault.id, text) for text in patterns))


def _line(file: Path, item: dict) -> str:
    where = '.'.join(map(str, item['loc']))
    return f'{file}: {where}: {item["msg"]}, found {str(item["input"])[:120]!r}'
