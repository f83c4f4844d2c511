"""Lays subjects and cases over the suites: a test for each subject that offers the operator, and each of its cases."""
from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import pytest

from ci.court import Court
from ci.events import SubjectFacts, plain
from ci.settings import Settings, SubjectSpec
from ci.upstream import UPSTREAM, is_upstream
from harness.lanes.lane import Lane

LANE_MARK = 'lane'
_NOT_OFFERED = object()
_ORDINARY_FOLDERS = ('suites/selftest/', 'suites/static/')


def is_judged(nodeid: str) -> bool:
    """Whether a test judges a subject, so that it owes evidence; the harness's own tests do not."""
    return is_upstream(nodeid) or (nodeid.startswith('suites/') and not nodeid.startswith(_ORDINARY_FOLDERS))


@dataclass(frozen=True)
class _Entry:
    facts: SubjectFacts
    subject: Any


@dataclass(frozen=True)
class _AnyModule:
    """Stands for a module that offers everything, where only the plan of a manifest is wanted."""

    offered: frozenset[str]
    name: str = 'module'

    def offers(self) -> frozenset[str]:
        return self.offered


class Trials:
    """A pytest plugin for each process that collects. Subjects are loaded on first need, once.

    Args:
        plan: list the cases of `lane` without being on it, for the subjects asked for and for a module of any content.
    """

    def __init__(self, court: Court, settings: Settings, lane: Lane, plan: bool) -> None:
        self._court = court
        self._settings = settings
        self._plan = plan
        self._entries: tuple[_Entry, ...] | None = None
        self.lane = lane
        self.operators: dict[str, str] = {}

    def facts(self) -> tuple[SubjectFacts, ...]:
        """What is known of the subjects; empty if no suite needed them."""
        return tuple(entry.facts for entry in self._entries or ())

    @staticmethod
    def subject_of(item: pytest.Item) -> str | None:
        """The name of the subject that `item` tries, or None. Upstream's tests try lmdeploy, and are listed apart."""
        if is_upstream(item.nodeid):
            return UPSTREAM
        callspec = getattr(item, 'callspec', None)
        return getattr(callspec.params.get('subject'), 'name', None) if callspec else None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        wants = [name for name in ('subject', 'case') if name in metafunc.fixturenames]
        nodeid = metafunc.definition.nodeid
        if not wants or is_upstream(nodeid) or not is_judged(nodeid):
            return
        operator = self._operator(metafunc)
        subjects = self._offering(operator) if 'subject' in wants else [None]
        cases = self._cases(operator) if 'case' in wants else [None]
        rows = [{'subject': subject, 'case': case} for subject in subjects or [_NOT_OFFERED] for case in cases]
        values = [[row[name] for name in wants] for row in rows]
        metafunc.parametrize(wants, values, ids=[_test_id(**row) for row in rows])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Take out what no subject offers (the plan and the verdict list it) and what belongs to another lane."""
        items[:] = [item for item in items if not self._is_placeholder(item) and self._of_this_lane(item)]

    def _operator(self, metafunc: pytest.Metafunc) -> str:
        operator = getattr(metafunc.module, 'OPERATOR', None)
        known = self._court.operators()
        if operator not in known:
            pytest.fail(f'OPERATOR: expected one of {", ".join(known)}, found {operator!r}', pytrace=False)
        self.operators[metafunc.definition.nodeid.split('::')[0]] = operator
        return operator

    def load_all(self) -> tuple[SubjectFacts, ...]:
        """Load every subject that was asked for, unless that was done already, and tell what is known of them."""
        if self._entries is None:
            self._entries = tuple(self._load(spec) for spec in self._settings.subjects)
            if self._plan:
                self._entries += (self._any_module(),)
        return self.facts()

    def reference(self) -> Any:
        """Stock, on trial or not: what other subjects are compared with. Raises if it cannot be loaded."""
        for entry in self._entries or ():
            if entry.facts.name == 'stock' and entry.subject is not None:
                return entry.subject
        return self._court.load(SubjectSpec('stock'), self._settings.lmdeploy_src)

    def _offering(self, operator: str) -> list[Any]:
        self.load_all()
        return [entry.subject for entry in self._entries or () if operator in entry.facts.offers]

    def _cases(self, operator: str) -> list[Any]:
        cases = [case for case in self._court.catalogue(operator) if self.lane.value in case.lanes]
        if not cases:
            pytest.fail(f'the catalogue of {operator} has no case of lane {self.lane.value}', pytrace=False)
        return cases

    def _load(self, spec: SubjectSpec) -> _Entry:
        """Any exception refuses the subject: whatever the cause, nothing can be said about it."""
        try:
            subject = self._court.load(spec, self._settings.lmdeploy_src)
            offers = tuple(sorted(subject.offers()))
            provenance = plain(subject.provenance.as_dict())
        except Exception as error:
            last = ''.join(traceback.format_exception_only(error)).strip()
            return _Entry(SubjectFacts(name=spec.name, spec=str(spec), refused=last), None)
        return _Entry(SubjectFacts(name=spec.name, spec=str(spec), offers=offers, provenance=provenance), subject)

    def _any_module(self) -> _Entry:
        offered = self._court.operators()
        facts = SubjectFacts(name='module', spec='module', offers=tuple(sorted(offered)))
        return _Entry(facts, _AnyModule(frozenset(offered)))

    @staticmethod
    def _is_placeholder(item: pytest.Item) -> bool:
        callspec = getattr(item, 'callspec', None)
        return callspec is not None and any(value is _NOT_OFFERED for value in callspec.params.values())

    def _of_this_lane(self, item: pytest.Item) -> bool:
        marks = list(item.iter_markers(LANE_MARK))
        return all(self.lane.value in mark.args for mark in marks)


def _test_id(subject: Any, case: Any) -> str:
    return '-'.join(part for part in (getattr(subject, 'name', ''), getattr(case, 'id', '')) if part)
