"""Workspace of a session: what an EP keeps beside its instance. `sessions/shared_workspaces` has those of several."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, TypeVar

T = TypeVar("T")


class PrivateWorkspace:
    """Workspace of one session that shares nothing: objects by key, graphs by name. Implements `Workspace`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[Any, Callable[[Any], None] | None]] = {}
        self._graphs: dict[str, object] = {}

    def get_or_create(
        self, key: str, factory: Callable[[], T], close: Callable[[T], None] | None = None
    ) -> T:
        """Return the object under a key, made on the first call; other callers wait for it."""
        with self._lock:
            if key not in self._objects:
                self._objects[key] = (factory(), close)
            found: T = self._objects[key][0]
            return found

    def put(self, graph_name: str, obj: object) -> None:
        """Leave a graph."""
        with self._lock:
            self._graphs[graph_name] = obj

    def take(self, graph_name: str) -> object | None:
        """Take a graph; it is gone afterwards."""
        with self._lock:
            return self._graphs.pop(graph_name, None)

    def close(self) -> None:
        """Close all objects, the youngest first; one that raises keeps no other from being closed."""
        with self._lock:
            objects, self._objects = self._objects, {}
            self._graphs.clear()
        with ExitStack() as stack:
            for obj, close in objects.values():
                if close is not None:
                    stack.callback(close, obj)
