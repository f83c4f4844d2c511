"""`bitgate mutate` on small catalogues: what becomes of a fault that is noticed, and of every other kind."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ci.mutate import sampled
from ci.mutation import suites_of
from ci.settings import CHECKOUT
from harness.mutants.fault import built_in
from harness.subjects.protocol import OPERATORS

HEAD = '''
[[fault]]
id = "{id}"
kind = "trial"
source = "made for this test"
subject = "stock"
file = "pytorch/kernels/cuda/moe/blocked_fp8.py"
function = "{function}"
old = "{old}"
new = "{new}"
guards = ["moe_schedule"]
{more}
'''
TILE = '_blocked_fp8_block_m_from_avg_routes'
COMPACT = '_compact_blocked_fp8_moe_config'
DICT = 'dict(block_m=block_m, block_n=128, num_warps=4, num_stages=3)'
WARPS = DICT.replace('num_warps=4', 'num_warps=8')  # which the table of the schedule does not hold
# id -> (function, old, new, further fields, state, words of the message)
FAULTS = {
    'noticed': (TILE, 'avg_routes <= 16', 'avg_routes <= 15', 'killers = ["moe_schedule/dense-a16"]', 'killed',
                'block_m'),
    'unnoticed': (COMPACT, DICT, WARPS, '', 'survived', ''),
    'argued': (COMPACT, DICT, WARPS, 'equivalent = "the table does not hold it"', 'equivalent', 'the table'),
    'argued-wrongly': (TILE, 'avg_routes <= 16', 'avg_routes <= 15', 'equivalent = "no"', 'invalid', 'a case notices'),
    'crashes': (TILE, 'return 16', "import os; os.kill(os.getpid(), 11)", '', 'killed', 'died'),
    'hangs': (TILE, 'return 16', 'while True: pass', '', 'killed', 'limit'),
    'leaves': (TILE, 'return 16', 'import os; os._exit(0)', '', 'killed', 'died'),
    'import': ('fused_moe_blocked_fp8_kernel_launcher', 'int', 'undefined_name', 'times = 7', 'invalid',
               'does not import'),
    'absent': (TILE, 'avg_routes <= 17', 'avg_routes', '', 'invalid', 'expected 1 time'),
    'elsewhere': (TILE, 'avg_routes <= 16', 'avg_routes <= 15', 'lanes = ["sm90"]', 'not expressible here', ''),
}


def mutate(folder: Path, catalogue: str, *options: str) -> tuple[subprocess.CompletedProcess, dict]:
    (folder / 'faults.toml').write_text(catalogue)
    command = [sys.executable, '-m', 'ci', 'mutate', '--lane', 'cpu', '--catalogue', str(folder / 'faults.toml'),
               '--json', str(folder / 'found.json'), *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=500)
    found = json.loads((folder / 'found.json').read_text()) if (folder / 'found.json').exists() else {}
    return done, {result['id']: result for result in found.get('results', ())}


def text(fault_id: str) -> str:
    function, old, new, more, *_ = FAULTS[fault_id]
    return HEAD.format(id=fault_id, function=function, old=old, new=new, more=more)


@pytest.fixture(scope='module')
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp('mutation')
    done, results = mutate(folder, ''.join(map(text, FAULTS)), '--timeout', '10', '--out', str(folder / 'out'))
    assert results, done.stdout + done.stderr
    return done, results, folder


@pytest.mark.parametrize('fault_id', FAULTS)
def test_every_kind_of_end_has_its_state(ran, fault_id):
    result = ran[1][fault_id]
    *_, state, words = FAULTS[fault_id]
    assert result['state'] == state, result
    assert words in result['message'], result


def test_a_killer_is_asked_first_and_named(ran):
    assert ran[1]['noticed']['case'].endswith('[stock-dense-a16]')


def test_the_trees_of_those_that_were_noticed_are_gone_and_a_survivors_can_be_tried_again(ran):
    _, _, folder = ran
    assert not (folder / 'out/noticed/tree').exists()
    again = [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '--lane', 'cpu', '--subject', 'stock',
             f'--lmdeploy-src={folder / "out/unnoticed/tree"}', 'suites/moe/test_moe_schedule.py']
    assert (folder / 'out/unnoticed/tree/lmdeploy/pytorch/kernels/cuda/moe/blocked_fp8.py').is_file()
    assert subprocess.run(again, cwd=CHECKOUT, capture_output=True, timeout=300).returncode == 0


def test_a_survivor_is_red_and_named_at_the_end(ran):
    done = ran[0]
    assert done.returncode == 1
    assert done.stdout.strip().splitlines()[-1].startswith('BROKEN[cpu]: 4 of 5 faults noticed, ')
    assert 'survived  unnoticed' in done.stdout.rsplit('operator', 1)[1]


def test_all_noticed_is_green_and_what_depends_on_timing_is_run_often(tmp_path):
    racing = text('noticed').replace('id = "noticed"', 'id = "racing"\nrace = true')
    done, results = mutate(tmp_path, text('noticed') + racing)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (results['racing']['kills'], results['racing']['runs']) == (20, 20)
    assert done.stdout.strip().splitlines()[-1].startswith('PASS[cpu]: 2 of 2 faults noticed')


def test_a_case_that_fails_without_the_fault_says_nothing(tmp_path):
    """The original is broken, too: nothing that its suite says is evidence against a mutant."""
    from harness.mutants.fault import load
    from harness.mutants.tree import plant, root_of
    (tmp_path / 'broken.toml').write_text(text('noticed'))
    (broken, ) = load(tmp_path / 'broken.toml').fault
    plant(broken, root_of('stock'), tmp_path / 'original')
    other = text('unnoticed').replace('moe_schedule"]', 'moe_schedule"]\nkillers = ["moe_schedule/dense-a16"]')
    done, results = mutate(tmp_path, other, '--lmdeploy-src', str(tmp_path / 'original'))
    assert results['unnoticed']['state'] == 'invalid'
    assert 'fails without any fault' in results['unnoticed']['message']
    assert done.returncode == 3


@pytest.mark.parametrize(('options', 'words'), [
    (('--ids', 'Z*'), 'Z*'), (('--subject', 'candidate'), 'found none'), (('--subject', 'module:x.py'), 'module'),
    (('--out', '.'), 'absent or empty'), (('--upstream', '.'), 'checkout of lmdeploy'), (('--sample', '0'), 'sample'),
], ids=lambda value: value[0].strip('-') if isinstance(value, tuple) else '')
def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path, options, words):
    done, results = mutate(tmp_path, text('noticed'), *options)
    assert (done.returncode, results) == (2, {})
    assert words in done.stderr


def test_every_operator_has_a_suite_that_can_be_asked():
    suites = suites_of(CHECKOUT)
    assert set(suites) == set(OPERATORS)
    assert all((CHECKOUT / file).is_file() for file in suites.values())


def test_a_sample_is_the_same_whatever_else_is_in_the_catalogue():
    faults = built_in().fault
    few, more = sampled(faults, 10), sampled(faults, 20)
    assert (len(few), len(more)) == (10, 20)
    assert set(few) < set(more)
    assert sampled(faults, len(faults) + 1) == faults
    without = tuple(fault for fault in faults if fault not in few[:1])
    assert set(few[1:]) < set(sampled(without, 10))
