"""The hook that this plugin adds to pytest."""
from __future__ import annotations

import pytest

from ci.court import Court


@pytest.hookspec(firstresult=True)
def pytest_bitgate_court(config: pytest.Config) -> Court:
    """The court that this session tries its cases in. Asked once in every process; the first answer counts."""
