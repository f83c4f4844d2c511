"""What people and programs read of a verdict, and the log that it is made from."""
from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from junitparser import JUnitXml

from ci.doctor import examine
from ci.doctor import text as doctor_text
from ci.events import Finished, LogWriter, SubjectFacts, parse, plain, read
from ci.judge import Problem, Row, Verdict
from ci.outdir import write_whole
from ci.preflight import Preflight, combinations, supported_combination
from ci.report import as_dict, failures_text, headline, junit, summary
from ci.settings import Settings, SubjectSpec, UsageFault, settings_from
from harness.evidence.verdicts import Outcome, Reason
from harness.lanes.lane import Lane, LaneRequest

STOCK = SubjectFacts(name='stock', spec='stock', offers=('alpha',), provenance={'path': 'p', 'version': '1'})
GREEN = Row('suites/a/test_a.py::test[stock-1]', 'stock', Outcome.PASS, duration=0.25)


def verdict(*rows: Row, lane='cpu', problems=(), partial=None) -> Verdict:
    return Verdict(lane, rows, problems, partial, {'torch': '2|13'}, (STOCK,), (('stock', 'beta'),))


def red(reason: Reason, name: str = 'x', message: str = 'first\nsecond') -> Row:
    return Row(f'suites/a/test_a.py::test[stock-{name}]', 'stock', reason.outcome, reason, message)


def test_the_headline_says_what_a_pass_rests_on():
    assert headline(verdict(GREEN)) == 'PASS[cpu]: source semantics judged, nothing proven on sm90 (1 case, stock)'
    assert 'nothing proven' not in headline(verdict(GREEN, lane='sm90'))
    assert headline(verdict(GREEN, partial='suites quant only')).endswith('(1 case, stock; partial: suites quant only)')


def test_the_headline_names_the_reasons_worst_first():
    rows = [red(Reason.SKIPPED, 'a'), red(Reason.BYTES, 'b'), red(Reason.SKIPPED, 'c')]
    assert headline(verdict(*rows)) == 'BROKEN[cpu]: BYTES 1, SKIPPED 2 (3 cases, stock)'


@pytest.mark.parametrize('reason', list(Reason))
def test_junit_shows_every_outcome(reason: Reason):
    report = JUnitXml.fromstring(junit(verdict(GREEN, red(reason))).encode())
    suite, = report
    green, bad = suite
    assert (green.result, len(bad.result)) == ([], 1)
    assert (suite.errors, suite.failures) == ((1, 0) if reason.outcome is Outcome.UNJUDGED else (0, 1))
    assert bad.result[0].type == f'{reason.outcome.value}/{reason.value}'
    assert (bad.classname, bad.name) == ('suites.a.test_a', 'test[stock-x]')


def test_junit_is_never_empty_and_green():
    empty = verdict(problems=(Problem(Reason.WRONG_DEVICE, 'no GPU'),), lane='auto')
    report = JUnitXml.fromstring(junit(empty).encode())
    assert sum(suite.errors for suite in report) == 1


def test_junit_survives_control_characters():
    text = junit(verdict(red(Reason.CRASH, message='\x1b[31mred\x00 \ud800')))
    assert JUnitXml.fromstring(text.encode())


def test_failures_are_told_worst_first_and_alike_ones_once():
    rows = [red(Reason.SKIPPED, str(number)) for number in range(5)] + [red(Reason.BYTES, 'z', 'element 3')]
    text = failures_text(verdict(*rows), lambda nodeid: f'rerun {nodeid}')
    assert text.index('BROKEN/BYTES') < text.index('UNJUDGED/SKIPPED')
    assert 'and 4 more like it' in text
    assert 'reproduce: rerun suites/a/test_a.py::test[stock-z]' in text
    assert failures_text(verdict(GREEN), str) == ''


def test_a_command_that_the_explanation_already_has_is_not_repeated():
    row = red(Reason.BYTES, message='reproduce: the command')
    assert failures_text(verdict(row), lambda nodeid: 'the command').count('the command') == 1


def test_the_summary_counts_by_suite_and_subject():
    text = summary(verdict(GREEN, red(Reason.BYTES)), str)
    assert '| suites/a/test_a.py | stock | 2 | 1 | 0 | 0 | 1 |' in text
    assert 'stock does not offer beta' in text
    assert '2\\|13' in text


def test_verdict_json_has_the_agreed_keys():
    content = json.loads(json.dumps(as_dict(verdict(GREEN, red(Reason.BYTES))), allow_nan=False))
    assert content['reasons'] == {'BYTES': 1}
    assert content['counts'] == {'cases': 2, 'PASS': 1, 'BROKEN': 1, 'MOVED': 0, 'UNJUDGED': 0}
    assert {'outcome', 'lane', 'environment', 'subjects', 'not_offered', 'partial', 'cases', 'problems'} <= set(content)


def test_the_log_keeps_what_strict_json_cannot(tmp_path: Path):
    record = {'worst': math.inf, 'codes': np.float32(1.5), 'bits': np.arange(2), 'seen': {1, 2}, 'path': Path('p')}
    writer = LogWriter(tmp_path / 'log')
    writer.append(Finished(nodeid='n', outcome=Outcome.PASS, reason=None, duration=1.0, message='', worker='w', pid=1,
                           time=0.0, evidence=(plain(record),)))
    writer.close()
    event, = read(tmp_path / 'log').events
    assert event.evidence == ({'worst': 'inf', 'codes': 1.5, 'bits': [0, 1], 'seen': [1, 2], 'path': 'p'},)


def test_a_torn_or_foreign_line_is_kept_as_unreadable():
    whole = '{"event":"closed","exit_status":0,"worker":"w","pid":1,"time":0,"schema_version":1}'
    log = parse(f'{whole}\n{whole[:30]}\n{whole.replace("closed", "opened")}\n')
    assert (len(log.events), len(log.unreadable)) == (1, 2)
    other_version = parse(whole.replace('"schema_version":1', '"schema_version":2'))
    assert len(other_version.unreadable) == 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path):
    write_whole(tmp_path / 'a', 'first')
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / 'a', 'second \ud800')
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [('a', 'first')]


@pytest.mark.parametrize('text', ['', 'lmdeploy', 'module', 'module:', 'stock:path', 'Stock'])
def test_subjects_of_no_sense(text: str):
    with pytest.raises(UsageFault, match='--subject: expected stock, candidate or module:PATH'):
        SubjectSpec.parse(text)


def test_the_environment_sets_the_default_lane_and_is_named_when_wrong():
    assert settings_from(None, None, None, {'BITGATE_LANE': 'cpu'}).lane is LaneRequest.CPU
    assert settings_from('sm90', None, None, {'BITGATE_LANE': 'cpu'}).lane is LaneRequest.SM90
    assert settings_from(None, None, None, {}) == Settings()
    with pytest.raises(UsageFault, match='BITGATE_LANE: expected auto, cpu or sm90'):
        settings_from(None, None, None, {'BITGATE_LANE': 'gpu'})


def test_the_reproducing_command_carries_what_is_not_default(tmp_path: Path):
    settings = settings_from('cpu', [f'module:{tmp_path / "my kernels.py"}'], str(tmp_path), {})
    assert settings.reproduce('f.py::t[a]').endswith(f"python -m pytest --lane cpu --lmdeploy-src={tmp_path} "
                                                     f"--subject 'module:{tmp_path}/my kernels.py' 'f.py::t[a]'")


def test_known_combinations_are_told_from_others():
    for known in combinations():
        lane = Lane(known['lane'])
        assert known['why'].strip()
        assert supported_combination(lane, known['versions']) == known
        assert supported_combination(lane, known['versions'] | {'torch': f'{known["versions"]["torch"]}+cpu'}) == known
        assert supported_combination(lane, known['versions'] | {'triton': '0.0.1'}) is None
        assert supported_combination(lane, known['versions'] | {'lmdeploy': None}) is None


def test_doctor_tells_of_a_lane_that_cannot_be_activated(tmp_path: Path):
    class Court:
        def activate(self, lane):
            raise RuntimeError('triton 9 is not known')

    report = examine(tmp_path, Settings(), Preflight(Lane.CPU, None, {'python': '3'}), Court())
    assert (report['lane'], report['subjects']) == (None, [])
    assert 'triton 9 is not known' in doctor_text(report)
