"""Steps of Python, which are the same on any machine, however busy it is."""

from __future__ import annotations

import sys


def steps_of(call):
    """Count the lines of Python that a call runs."""
    count = 0

    def line(_frame, _event, _arg):
        nonlocal count
        count += 1
        return line

    before = sys.gettrace()
    sys.settrace(lambda *_: line)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
