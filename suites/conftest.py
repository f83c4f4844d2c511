"""What the operator suites share: the setting that a contract is judged in."""
from __future__ import annotations

import pytest

from harness.contracts.setting import Setting


@pytest.fixture
def setting(lane, device, stock, reproduce) -> Setting:
    """Where this case is judged, and the stock lmdeploy that it is compared with."""
    return Setting(lane, device, stock, reproduce)
