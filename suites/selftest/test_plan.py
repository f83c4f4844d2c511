"""Manifests, and the command that keeps them equal to the suites."""
from __future__ import annotations

from pathlib import Path

import pytest
from small_project import STOCK_CASES, SmallProject, case_id
from typer.testing import CliRunner

from ci.cli import app
from ci.manifest import ManifestInvalid, load, parse, render
from harness.lanes.lane import Lane


@pytest.fixture
def project(tmp_path: Path) -> SmallProject:
    return SmallProject.create(tmp_path)


def plan(project: SmallProject, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ['plan', *arguments, '--root', str(project.root)])
    return result.exit_code, result.output


def test_both_lanes_are_planned_without_a_gpu(project: SmallProject):
    code, _ = plan(project, '--write')
    assert code == 0
    assert load(project.root, Lane.CPU, 'stock') == STOCK_CASES
    assert load(project.root, Lane.SM90, 'candidate') == tuple(
        case_id('beta', 'candidate', case) for case in ('large', 'one', 'two'))
    assert len(load(project.root, Lane.SM90, 'module')) == 6
    code, output = plan(project, '--check')
    assert (code, output.splitlines()[-1]) == (0, 'manifests: current')


def test_a_change_of_the_suites_is_shown_and_fails_the_check(project: SmallProject):
    plan(project, '--write')
    project.suite('alpha', test_contract='test_agreement')
    code, output = plan(project, '--check')
    assert code == 1
    assert f'-{case_id("alpha", "stock", "one")}' in output
    assert '+suites/alpha/test_alpha.py::test_agreement[stock-one]' in output
    assert load(project.root, Lane.CPU, 'stock') == STOCK_CASES


def test_suites_that_cannot_be_collected_write_nothing(project: SmallProject):
    project.suite('alpha', OPERATOR='import no_such_module\nOPERATOR')
    code, output = plan(project, '--write')
    assert code == 3
    assert 'no_such_module' in output
    assert load(project.root, Lane.CPU, 'stock') == STOCK_CASES
    assert not (project.root / 'ci/required/sm90-stock.txt').exists()


def test_a_collection_that_ends_early_writes_nothing(project: SmallProject):
    (project.root / 'suites/conftest.py').write_text(
        'def pytest_collection_modifyitems(items):\n    items.clear()\n')
    code, output = plan(project, '--write')
    assert code == 3, output
    assert 'cannot be planned' in output
    assert load(project.root, Lane.CPU, 'stock') == STOCK_CASES


def test_a_lane_mark_keeps_a_test_to_its_lane(project: SmallProject):
    project.suite('alpha', OPERATOR='import pytest\npytestmark = pytest.mark.lane("sm90")\nOPERATOR')
    plan(project, '--write')
    assert load(project.root, Lane.CPU, 'stock') == tuple(case_id('beta', 'stock', case) for case in ('one', 'two'))
    assert case_id('alpha', 'stock', 'one') in load(project.root, Lane.SM90, 'stock')


@pytest.mark.parametrize(('text', 'told'), [
    ('# nothing\n', 'expected at least one node id'),
    ('b\na\n', "found 'a' after 'b'"),
    ('a\na\n', "found 'a' after 'a'"),
])
def test_a_manifest_that_is_not_well_formed(text: str, told: str):
    with pytest.raises(ManifestInvalid, match=told):
        parse(text, 'cpu-stock.txt')


def test_an_absent_manifest_names_the_command_that_makes_it(tmp_path: Path):
    with pytest.raises(ManifestInvalid, match='cpu-stock.txt: no such manifest; `bitgate plan --write`'):
        load(tmp_path, Lane.CPU, 'stock')


def test_what_is_rendered_can_be_parsed():
    nodeids = ('b.py::test[stock-1]', 'a.py::test[stock-1]')
    assert parse(render(Lane.CPU, 'stock', nodeids), 'x') == tuple(sorted(nodeids))


def test_a_manifest_of_another_subject_is_refused(project: SmallProject):
    plan(project, '--write')
    required = project.root / 'ci/required'
    (required / 'cpu-stock.txt').write_text((required / 'cpu-candidate.txt').read_text())
    with pytest.raises(ManifestInvalid, match='expected the first line'):
        load(project.root, Lane.CPU, 'stock')
