"""Workspaces of sessions: of one alone, or shared by several users.

A shared workspace lives as long as it has users; those with equal keys share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from epctx_core.process import PerProcess

_T = TypeVar("_T")


class SessionWorkspace:
    """Workspace of a session, or of several: objects by key, graphs by name.

    Implements `epctx_core.plugin.Workspace`.

    Args:
        leave: removes one of several users; returns whether it was the last. None for a
            workspace that is not shared.
    """

    def __init__(self, leave: Callable[[], bool] | None = None) -> None:
        self.is_shared = leave is not None
        self.users = 0
        self._leave = leave
        self._lock = threading.RLock()
        self._objects: dict[str, tuple[Any, Callable[[Any], None] | None]] = {}
        self._graphs: dict[str, object] = {}

    def get_or_create(
        self,
        key: str,
        factory: Callable[[], _T],
        close: Callable[[_T], None] | None = None,
    ) -> _T:
        """Return the object under a key, made on the first call; other callers wait for
        it.
        """
        with self._lock:
            if key not in self._objects:
                self._objects[key] = (factory(), close)
            value: _T = self._objects[key][0]
            return value

    def put(self, graph_name: str, obj: object) -> None:
        """Leave a graph."""
        with self._lock:
            self._graphs[graph_name] = obj

    def take(self, graph_name: str) -> object | None:
        """Take a graph; it is gone afterwards."""
        with self._lock:
            return self._graphs.pop(graph_name, None)

    def close(self) -> None:
        """Close all objects, the youngest first; all are closed even if one raises.

        Each user of a shared workspace calls it once, and the last call closes.
        """
        if self._leave is not None and not self._leave():
            return
        with self._lock:
            objects = self._objects
            self._objects = {}
            self._graphs.clear()
        with ExitStack() as stack:
            for obj, close in objects.values():
                if close is not None:
                    stack.callback(close, obj)


class SharedWorkspaces:
    """Workspaces by key, each as long as it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Hashable, SessionWorkspace] = {}

    def join(self, key: Hashable) -> SessionWorkspace:
        """Return the workspace under a key; its `close` has to be called once for each
        call of this.
        """
        with self._lock:
            made = SessionWorkspace(partial(self._leave, key))
            workspace = self._found.setdefault(key, made)
            workspace.users += 1
            return workspace

    def _leave(self, key: Hashable) -> bool:
        with self._lock:
            self._found[key].users -= 1
            # The next user gets a new workspace.
            return not self._found[key].users and bool(self._found.pop(key))


shared_workspaces = PerProcess(SharedWorkspaces)
"""Those of this process: of sessions that load context models with
`ep.share_ep_contexts=1`, and of groups that are compiled.
"""
