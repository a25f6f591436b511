"""The workspace of a session that belongs to no share group: private, closed with the session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class PrivateWorkspace:
    """Objects by key and graphs by name; implements `epctx_core.plugin.Workspace`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[Any, Callable[[Any], None] | None]] = {}
        self._graphs: dict[str, object] = {}

    def get_or_create(
        self, key: str, factory: Callable[[], T], close: Callable[[T], None] | None = None
    ) -> T:
        """Return the object under a key, made on the first call."""
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
        """Close all objects, the youngest first."""
        with self._lock:
            objects, self._objects = self._objects, {}
            self._graphs.clear()
        for obj, close in reversed(objects.values()):
            if close is not None:
                close(obj)
