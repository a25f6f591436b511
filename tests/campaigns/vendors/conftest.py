"""Environment of the tests with real vendors' EPs."""

from __future__ import annotations

import os

# Vendors' libraries print in the programs that tests start; C's buffer for a pipe would
# put that behind the last line, which tests read.
os.environ["PYTHONUNBUFFERED"] = "1"
