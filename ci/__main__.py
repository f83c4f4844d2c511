"""`python -m ci` is the `bitgate` command, for a checkout that is not installed."""
from __future__ import annotations

import sys

try:
    from ci.cli import main
except ModuleNotFoundError as missing:
    print(f'bitgate: this Python ({sys.executable}) lacks the package {missing.name}; after `tox run -e gate` use '
          '.tox/cpu/bin/python, otherwise `pip install -e .`', file=sys.stderr)
    sys.exit(3)

main()
