"""The pytest plugin that puts upstream's own tests into a session: stable ids, one lmdeploy, evidence of a pass."""
from __future__ import annotations

import hashlib
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from ci.findings import NotJudged
from ci.recorder import EVIDENCE
from ci.trials import Trials
from ci.upstream import is_upstream, stable_id
from harness.evidence.log import EvidenceLog, Record
from harness.evidence.verdicts import Reason

_PACKAGE = 'lmdeploy'


class UpstreamModule(pytest.Module):
    """A file of upstream's tests. Its marks are registered in upstream's own configuration, which is not read here."""

    def collect(self) -> list:
        generator: Any = pytest.mark
        strict, generator._config = generator._config, None    # a mark is looked up while the file is imported
        try:
            return list(super().collect())
        finally:
            generator._config = strict


class UpstreamTests:
    """For each process that collects. lmdeploy is imported before any of upstream's files, as stock always is."""

    def __init__(self, checkout: Path, trials: Trials) -> None:
        self._checkout = checkout
        self._trials = trials
        self._stock: Any = None

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        name = stable_id(module_path, self._checkout)
        if name is None:
            return None
        self._trials.load_all()    # so that the log holds who is on trial, even if no suite of ours is run
        self._stock = self._trials.reference()
        return UpstreamModule.from_parent(parent, path=module_path, nodeid=name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item):
        if is_upstream(item.nodeid):
            self._stock.require_pristine()
            _seed(item.nodeid)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item):
        """What upstream's assertions say is all that is known, so that a pass of theirs is one record."""
        if not is_upstream(item.nodeid):
            return (yield)
        self._require_one_lmdeploy()
        result = yield
        self._require_one_lmdeploy()
        log = item.stash.setdefault(EVIDENCE, EvidenceLog())
        log.add(Record('upstream', "upstream's own assertions hold", 1, detail=self._detail(item)))
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item):
        try:
            return (yield)
        finally:
            torch = sys.modules.get('torch')
            if torch and is_upstream(item.nodeid):
                # a default that stays behind would reach every later test of this process
                torch.set_default_device(None)
                torch.set_default_dtype(torch.float32)

    def _require_one_lmdeploy(self) -> None:
        """Raises NotJudged if any module of lmdeploy comes from elsewhere than stock's: the checkout has one too."""
        root = self._root()
        strays = {name: module.__file__ for name, module in list(sys.modules.items())
                  if name.split('.')[0] == _PACKAGE and getattr(module, '__file__', None)
                  and not Path(module.__file__).is_relative_to(root)}
        if strays or _PACKAGE not in sys.modules:
            found = ', '.join(f'{name} from {file}' for name, file in sorted(strays.items())[:3]) or 'none imported'
            raise NotJudged(Reason.INFRA, f'expected {_PACKAGE} from {root}, found {found}')

    def _root(self) -> str:
        return self._stock.provenance.as_dict()['path']

    def _detail(self, item: pytest.Item) -> dict:
        provenance = self._stock.provenance.as_dict()
        return {'lmdeploy': provenance['path'], 'version': provenance['version'], 'sha256': provenance['sha256'],
                'test_file': str(item.path), 'test_sha256': hashlib.sha256(item.path.read_bytes()).hexdigest()}


def _seed(nodeid: str) -> None:
    """Upstream's inputs are random and mostly unseeded: begin from the test's own name, so that a verdict repeats."""
    seed = zlib.crc32(nodeid.encode())
    random.seed(seed)
    for name, seeded in (('numpy', 'random.seed'), ('torch', 'manual_seed')):
        function = sys.modules.get(name)
        for part in seeded.split('.') if function else ():
            function = getattr(function, part)
        if function:
            function(seed)
