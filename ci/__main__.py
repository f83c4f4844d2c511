"""`python -m ci` is the `bitgate` command, for a checkout that is not installed."""
from __future__ import annotations

from ci.cli import main

main()
