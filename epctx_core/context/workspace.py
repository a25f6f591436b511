"""What an EP keeps beside its instance: in a workspace of one session's own, or of several.

A shared workspace lives as long as any session uses it. Which sessions meet is said by whoever makes the key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any, TypeVar

from epctx_core.registry.forking import PerProcess

T = TypeVar("T")


class _Objects:
    """Objects by key and graphs by name."""

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

    def _clear(self) -> None:
        """Close all objects, the youngest first; one that raises keeps no other from being closed."""
        with self._lock:
            objects, self._objects = self._objects, {}
            self._graphs.clear()
        with ExitStack() as stack:
            for obj, close in objects.values():
                if close is not None:
                    stack.callback(close, obj)


class PrivateWorkspace(_Objects):
    """The workspace of a session that shares nothing; implements `epctx_core.plugin.Workspace`."""

    def close(self) -> None:
        """Close all objects, the youngest first."""
        self._clear()


class SharedWorkspace(_Objects):
    """A workspace with several users; implements `epctx_core.plugin.Workspace`. Made by `SharedWorkspaces`.

    Args:
        release: told that one user left; gives whether it was the last.
    """

    def __init__(self, release: Callable[[SharedWorkspace], bool]) -> None:
        super().__init__()
        self._release = release

    def close(self) -> None:
        """Leave; each user calls it once. The last one closes all objects."""
        if self._release(self):
            self._clear()


class SharedWorkspaces:
    """Workspaces by key, each as long as it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Hashable, SharedWorkspace] = {}
        self._users: dict[SharedWorkspace, tuple[Hashable, int]] = {}

    def join(self, key: Hashable) -> SharedWorkspace:
        """Return the workspace under a key; its `close` has to be called once for each call of this."""
        with self._lock:
            workspace = self._found.get(key)
            if workspace is None:
                workspace = self._found[key] = SharedWorkspace(self._leave)
            users = self._users.get(workspace, (key, 0))[1]
            self._users[workspace] = key, users + 1
            return workspace

    def __len__(self) -> int:
        """How many workspaces have users."""
        with self._lock:
            return len(self._found)

    def _leave(self, workspace: SharedWorkspace) -> bool:
        with self._lock:
            key, users = self._users[workspace]
            if users > 1:
                self._users[workspace] = key, users - 1
                return False
            # Whoever comes now gets a new one.
            del self._users[workspace], self._found[key]
            return True


loaded_workspaces = PerProcess(SharedWorkspaces)
"""Of all sessions of one process that load context models with `ep.share_ep_contexts=1`."""
