"""What the operator suites share: the setting that a contract is judged in."""
from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.contracts.setting import Setting


@pytest.fixture
def setting(lane, device, stock, reproduce) -> Iterator[Setting]:
    """Where this case is judged, and the stock lmdeploy that it is compared with."""
    stock.require_pristine()
    yield Setting(lane, device, stock, reproduce)
    stock.require_pristine()
