"""Cases of a process of their own: each is a function that returns facts as JSON has
them.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any


class Cases:
    """Functions under their names."""

    def __init__(self) -> None:
        self._cases: dict[str, Callable[[], Any]] = {}

    def add(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Add a function, as a decorator."""
        self._cases[function.__name__] = function
        return function

    def add_as(self, name: str, function: Callable[[], Any]) -> None:
        """Add a function under another name."""
        self._cases[name] = function

    def report(self) -> None:
        """Print what each case found; of one that raised, its traceback."""
        found: dict[str, Any] = {}
        for name, function in self._cases.items():
            try:
                found[name] = function()
            except Exception:  # noqa: BLE001 - the test that asks for it fails
                found[name] = traceback.format_exc()
        print(json.dumps(found))  # noqa: T201 - read by the tests
