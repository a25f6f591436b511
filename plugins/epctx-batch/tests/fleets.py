"""What tests of batches share."""

from __future__ import annotations

import time


def wait_until(holds, seconds=60):
    """Wait until a function returns a true value."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
