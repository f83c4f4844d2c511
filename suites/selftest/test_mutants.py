"""Planting a fault: the mutant says what was meant, nothing else moves, and what does not fit is no mutant."""
import ast

import pytest

from harness.contracts import catalogue
from harness.mutants.fault import CatalogueInvalid, Fault, built_in, chosen, load
from harness.mutants.rewrite import DoesNotApply, mutated
from harness.mutants.tree import mutant_of, plant, root_of

SOURCE = '''\
"""A text."""


def kernel(a, b):
    # a comment that stays
    offset = (a + b) * 2  # another
    if offset < a:
        store(a,
              mask=offset < b)
    elif offset < b:
        offset = 7
    return offset


class Launcher:

    def run(self, rows):
        return rows // 2
'''


def fault(old: str, new: str, function: str = 'kernel', **more) -> Fault:
    return Fault(id='X1-trial', kind='trial', source='here', subject='stock', file='f.py', function=function, old=old,
                 new=new, guards=('quant_fp8', ), **more)


@pytest.mark.parametrize(('old', 'new', 'line', 'expected'), [
    ('a + b', 'a - b', 6, '    offset = ((a - b)) * 2  # another'),
    ('store(a, mask=offset < b)', 'store(a)', 8, '        store(a)'),
    ('offset = 7', 'offset = 8; a = 9', 11, '        offset = 8; a = 9'),
    ('store(a, mask=offset < b)', '', 8, '        pass'),
    ('return offset', 'return', 12, '    return'),
], ids=['expression', 'shorter', 'two_statements', 'deleted', 'statement'])
def test_a_mutant_differs_where_it_was_meant_to(old, new, line, expected):
    found = mutated(SOURCE, fault(old, new))
    lines, before = found.split('\n'), SOURCE.split('\n')
    assert lines[line - 1].replace('(store(a)', 'store(a)').rstrip() == expected
    assert len(lines) == len(before)
    assert [number for number, (one, other) in enumerate(zip(lines, before, strict=True), 1) if one != other
            and number not in (line, line + 1)] == []


def test_methods_are_found_by_their_class():
    assert 'return (rows // 3)' in mutated(SOURCE, fault('rows // 2', 'rows // 3', 'Launcher.run'))


def test_a_binding_stronger_than_the_new_text_does_not_change_its_meaning():
    tree = ast.parse(mutated(SOURCE, fault('a + b', 'a if b else 0')))
    assert ast.unparse(tree.body[1].body[0]) == 'offset = (a if b else 0) * 2'


@pytest.mark.parametrize(('change', 'words'), [
    ({'old': 'a + c'}, 'expected 1 time'),
    ({'old': 'b', 'new': 'a'}, 'expected 1 time'),
    ({'old': 'a +', 'new': 'a'}, 'expected an expression or statements'),
    ({'function': 'other'}, 'expected one other'),
    ({'old': 'offset = 7', 'new': 'offset = 8\noffset = 9'}, 'at most 1 line'),
], ids=['absent', 'too_often', 'no_python', 'no_function', 'too_long'])
def test_what_does_not_fit_is_no_mutant(change, words):
    with pytest.raises(DoesNotApply, match=words):
        mutated(SOURCE, fault(**{'old': 'a + b', 'new': 'a - b'} | change))


@pytest.mark.parametrize(('text', 'words'), [
    ('[[fault]]\nid = "A-1"\n', 'Field required'),
    ('[[fault', 'TOML'),
    ('fault = 3', 'fault'),
], ids=['fields', 'syntax', 'shape'])
def test_a_catalogue_that_is_none_is_refused_by_name(tmp_path, text, words):
    (tmp_path / 'c.toml').write_text(text)
    with pytest.raises(CatalogueInvalid, match=words) as refused:
        load(tmp_path / 'c.toml')
    assert 'c.toml' in str(refused.value)


def test_patterns_that_match_nothing_are_refused(tmp_path):
    (tmp_path / 'c.toml').write_text('[[fault]]\nid="A-1"\nkind="k"\nsource="s"\nsubject="stock"\nfile="f.py"\n'
                                     'function="f"\nold="a"\nnew="b"\nguards=["quant_fp8"]\n')
    loaded = load(tmp_path / 'c.toml')
    assert [found.id for found in chosen(loaded, ('stock', ), ('A-*', ))] == ['A-1']
    assert chosen(loaded, ('candidate', ), ()) == ()
    with pytest.raises(CatalogueInvalid, match='B-'):
        chosen(loaded, ('stock', ), ('B-*', ))


@pytest.mark.parametrize('each', built_in().fault, ids=lambda each: each.id)
def test_every_fault_of_the_catalogue_applies_and_names_cases_that_exist(each):
    mutant_of(each, root_of(each.subject))
    for killer in each.killers:
        operator, _, case_id = killer.partition('/')
        assert case_id in {case.id for case in catalogue(operator)}, killer


def test_a_planted_tree_is_the_original_but_for_one_file(tmp_path):
    each = next(fault for fault in built_in().fault if fault.subject == 'stock')
    root = root_of(each.subject)
    plant(each, root, tmp_path)
    file = tmp_path / 'lmdeploy' / each.file
    assert file.read_text() == mutant_of(each, root)
    assert not file.is_symlink()
    for sibling in ('__init__.py', 'pytorch/kernels/cuda/__init__.py', 'pytorch/kernels/cuda/utils.py'):
        assert (tmp_path / 'lmdeploy' / sibling).samefile(root / 'lmdeploy' / sibling)
