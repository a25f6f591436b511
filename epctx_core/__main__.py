"""`python -m epctx_core`: the command line, for when the command `epctx` is not on the path."""

from __future__ import annotations

import sys

from epctx_core.cli import main

sys.exit(main())
