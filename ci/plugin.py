"""The pytest plugin: options, fixtures, and who does what in which process. Loaded by the root conftest.

A session has one controller (which also runs the tests if there is no xdist) and, under xdist, workers. The controller
reads options and environment once and hands the result down, so that every process works with the same values.
"""
from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci import newhooks
from ci.alone import Alone, free_gpu_gib
from ci.court import Court, HarnessCourt
from ci.events import RESULTS, LogWriter
from ci.processes import die_with_parent, usable_cores
from ci.recorder import EVIDENCE, Recorder
from ci.session_judge import WHOLE_SESSION, SessionJudge
from ci.settings import Settings, UsageFault, settings_from
from ci.trials import LANE_MARK, Trials
from ci.upstream import UPSTREAM, NoCheckout, expand, require_gpu
from ci.upstream_tests import UpstreamTests
from harness.evidence.log import EvidenceLog
from harness.lanes.lane import Lane, WrongDevice

UNJUDGED_EXIT = 3
_MOST_WORKERS_ON_A_GPU = 12


@dataclass
class _State:
    """What this process knows of the session. `device` is the lane's torch.device once the lane is active."""

    settings: Settings
    lane: Lane
    court: Court
    out: Path
    private_out: bool
    device: Any = None


_TRIALS = 'bitgate-trials'
_STATE = pytest.StashKey[_State]()
_LANE = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup('bitgate')
    group.addoption('--lane', default=None, help='auto (default), cpu or sm90; BITGATE_LANE sets the default')
    group.addoption('--subject', action='append', default=None, metavar='SUBJECT',
                    help='stock, candidate or module:PATH; may be given again (default: stock and candidate)')
    group.addoption('--lmdeploy-src', default=None, metavar='DIR', help='try this checkout of lmdeploy as stock')
    group.addoption('--upstream', default=None, metavar='CHECKOUT',
                    help="run lmdeploy's own kernel tests of this checkout too; they are called upstream/PATH")
    group.addoption('--bitgate-out', default=None, metavar='DIR', help=f'append the result log to DIR/{RESULTS}')
    group.addoption('--bitgate-lock', default=None, metavar='DIR', help=argparse.SUPPRESS)
    group.addoption('--bitgate-parent', default=None, type=int, help=argparse.SUPPRESS)
    group.addoption('--plan-lane', default=None, choices=[lane.value for lane in Lane], metavar='LANE',
                    help='only list the cases of LANE, on whatever device this is')


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(newhooks)


@pytest.hookimpl(trylast=True)
def pytest_bitgate_court(config: pytest.Config) -> Court:
    return HarnessCourt()


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.plan_lane:
        config.option.collectonly = True


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, 'maxschedchunk', 0) is None:
        # one at a time: no queue may form behind the heaviest cases
        config.option.maxschedchunk = 1
    config.addinivalue_line('markers', f'{LANE_MARK}(*lanes): the test belongs to these lanes only')
    if config.getoption('dist', 'no') == 'loadgroup':
        raise pytest.UsageError('--dist loadgroup: a worker that dies hangs the session for ever; use --dist load')
    if config.option.upstream and config.args_source in WHOLE_SESSION:
        # by name: a path outside would move pytest's rootdir in the workers, which are given these arguments
        config.args.append(UPSTREAM)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before anything is collected, hence before any suite can import triton: choose the lane and activate it."""
    config = session.config
    state = config.stash[_STATE] = _state(config)
    if not _is_controller_of_workers(config):
        state.device = _activate(config, state)
        trials = Trials(state.court, state.settings, state.lane, bool(config.option.plan_lane))
        config.pluginmanager.register(trials, _TRIALS)
        recorder = Recorder(LogWriter(state.out / RESULTS), trials, _worker_id(config), _time_limit(config))
        config.pluginmanager.register(recorder, 'bitgate-recorder')
        if state.lane is Lane.SM90:
            lock = Path(config.option.bitgate_lock or state.out)    # sessions on one GPU may share it
            config.pluginmanager.register(Alone(lock, free_gpu_gib), 'bitgate-alone')
        if state.settings.upstream:
            config.args[:] = expand(config.args, state.settings.upstream)
            config.pluginmanager.register(UpstreamTests(state.settings.upstream, trials), 'bitgate-upstream')
    if not _is_worker(config) and not config.option.collectonly:
        log = LogWriter(state.out / RESULTS)
        judge = SessionJudge(log, state.out / RESULTS, state.settings, state.lane)
        config.pluginmanager.register(judge, 'bitgate-judge')


def pytest_unconfigure(config: pytest.Config) -> None:
    state = config.stash.get(_STATE, None)
    if state and state.private_out:
        shutil.rmtree(state.out, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """On the controller, for every worker and every replacement of one."""
    state = node.config.stash[_STATE]
    node.workerinput['bitgate_lane'] = state.lane.value
    node.workerinput['bitgate_out'] = str(state.out)
    node.workerinput['bitgate_parent'] = os.getpid() if node.gateway.spec.popen else None


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    try:
        return auto_workers(_chosen_lane(config, _settings(config), _court(config)))
    except (WrongDevice, UsageFault):
        return 1    # the session's start will say what is wrong


def auto_workers(lane: Lane) -> int:
    """How many workers suit this machine: all cores; on a GPU a few, so that launches overlap and memory suffices."""
    return usable_cores() if lane is Lane.CPU else min(usable_cores(), _MOST_WORKERS_ON_A_GPU)


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> EvidenceLog:
    """Where this test leaves a record of every comparison that it makes."""
    log = request.node.stash[EVIDENCE] = EvidenceLog()
    return log


@pytest.fixture(scope='session')
def lane(request: pytest.FixtureRequest) -> Lane:
    """The lane that this session judges on."""
    return request.config.stash[_STATE].lane


@pytest.fixture(scope='session')
def device(request: pytest.FixtureRequest) -> Any:
    """The torch.device of the lane."""
    return request.config.stash[_STATE].device


@pytest.fixture
def reproduce(request: pytest.FixtureRequest) -> str:
    """The one command that runs exactly this test again."""
    state = request.config.stash[_STATE]
    return state.settings.on(state.lane).reproduce(request.node.nodeid)


@pytest.fixture(scope='session')
def stock(request: pytest.FixtureRequest) -> Any:
    """lmdeploy of this install, on trial or not: what bytes-against-stock promises refer to."""
    return request.config.pluginmanager.get_plugin(_TRIALS).reference()


def _activate(config: pytest.Config, state: _State) -> Any:
    lane = _active_lane(config, state)
    try:
        return state.court.activate(lane)
    except Exception as error:
        if _is_worker(config):
            raise
        pytest.exit(f'UNJUDGED[{lane.value}]: INFRA: the lane cannot be activated: {error}', returncode=UNJUDGED_EXIT)


def _state(config: pytest.Config) -> _State:
    try:
        settings = _settings(config)
    except UsageFault as fault:
        raise pytest.UsageError(str(fault)) from None
    court = _court(config)
    parent = config.workerinput['bitgate_parent'] if _is_worker(config) else config.option.bitgate_parent
    if parent:
        die_with_parent(parent)
    if _is_worker(config):
        given = config.workerinput
        return _State(settings, Lane(given['bitgate_lane']), court, Path(given['bitgate_out']), private_out=False)
    try:
        lane = Lane(config.option.plan_lane) if config.option.plan_lane else _chosen_lane(config, settings, court)
        if settings.upstream and not config.option.plan_lane:
            require_gpu(lane)
    except NoCheckout as fault:
        raise pytest.UsageError(str(fault)) from None
    except WrongDevice as wrong:
        pytest.exit(f'UNJUDGED[{settings.lane.value}]: WRONG_DEVICE: {wrong}', returncode=UNJUDGED_EXIT)
    given = config.option.bitgate_out
    out = Path(given).resolve() if given else Path(tempfile.mkdtemp(prefix='bitgate-'))
    out.mkdir(parents=True, exist_ok=True)
    if (out / RESULTS).exists():
        # what an earlier session wrote must never speak for this one
        raise pytest.UsageError(f'--bitgate-out: expected a folder without {RESULTS}, found one in {out}')
    return _State(settings, lane, court, out, private_out=not given)


def _settings(config: pytest.Config) -> Settings:
    option = config.option
    return settings_from(option.lane, option.subject, option.lmdeploy_src, os.environ, option.upstream)


def _court(config: pytest.Config) -> Court:
    return config.hook.pytest_bitgate_court(config=config)


def _chosen_lane(config: pytest.Config, settings: Settings, court: Court) -> Lane:
    lane = config.stash.get(_LANE, None)
    if lane is None:
        lane = config.stash[_LANE] = court.choose(settings.lane)
    return lane


def _active_lane(config: pytest.Config, state: _State) -> Lane:
    """The lane to prepare this process for. A plan is made on whatever device this is, and on none as on the CPU."""
    if not config.option.plan_lane:
        return state.lane
    try:
        return _chosen_lane(config, state.settings, state.court)
    except WrongDevice:
        return Lane.CPU


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, 'workerinput')


def _is_controller_of_workers(config: pytest.Config) -> bool:
    distributed = config.getoption('dist', 'no') != 'no' and bool(config.getoption('tx', None))
    return distributed and not _is_worker(config) and not config.option.collectonly


def _worker_id(config: pytest.Config) -> str:
    return config.workerinput['workerid'] if _is_worker(config) else 'main'


def _time_limit(config: pytest.Config) -> float | None:
    """Seconds that pytest-timeout gives every test, from its option or its ini value; None without a limit."""
    if not config.pluginmanager.hasplugin('timeout'):
        return None
    limit = config.getoption('timeout', None) or config.getini('timeout')
    return float(limit) if limit else None
