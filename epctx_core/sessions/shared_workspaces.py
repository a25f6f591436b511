"""Workspaces with several users, and which loads meet in one (`ep.share_ep_contexts=1`).

A shared workspace lives as long as anybody uses it. Which users meet is said by whoever makes the key.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.scratch import PrivateWorkspace
from epctx_core.errors import InvalidArgument
from epctx_core.options import Isolation
from epctx_core.registry.forking import PerProcess
from epctx_core.sessions.providers import private_workspace

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.options import SessionConfig
    from epctx_core.sessions.providers import ProviderChoice


class SharedWorkspace(PrivateWorkspace):
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
            super().close()


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


class LoadSharing:
    """Finds the workspaces of one session with `ep.share_ep_contexts=1`.

    Args:
        nodes: EP type to its nodes.
        folder: where their binaries lie.
        config: the session's options.
        manifest: what the model says about its payloads, if it does.
    """

    def __init__(
        self,
        nodes: Mapping[str, Sequence[ContextNodeRecord]],
        folder: ModelFolder | None,
        config: SessionConfig,
        manifest: Manifest | None,
    ) -> None:
        self._nodes = nodes
        self._folder = folder
        # A host that gives payloads itself, or wants its own copy, shares none.
        self._shares = config.data_reader is None and config.map_binaries
        self._verification = config.verification
        self._manifest = manifest

    def workspace_of(self, choice: ProviderChoice) -> PrivateWorkspace | SharedWorkspace:
        """Return the workspace of an EP: shared if all its payloads are files."""
        binaries = self._binaries(choice.name) if self._shares else None
        if not binaries:
            return private_workspace(choice)
        # What one session opened was verified as that one asked for.
        return loaded_workspaces.get().join((fingerprint([choice]), self._verification, binaries))

    def _binaries(self, ep: str) -> frozenset[Hashable] | None:
        """Return what tells an EP's binaries from all others; None if one is no file or is not there."""
        if self._folder is None:
            return None
        found: dict[str, Hashable] = {}
        for record in self._nodes.get(ep, ()):
            name = record.file_name
            if not record.main_context or name in found:
                continue
            identity = None
            if name is not None:
                identity = self._folder.identity(name, what="the context binary", node=record.name)
            if name is None or identity is None:
                return None
            found[name] = identity, self._digest(name)
        return frozenset(found.values())

    def _digest(self, name: str) -> str | None:
        """Return what the model says that a binary is: one that says otherwise has to look for itself."""
        if self._manifest is None:
            return None
        if self._manifest.is_pending(name):
            return "pending"
        entry = self._manifest.entry(name, embedded=False)
        return entry.root if entry is not None else None


def refuse_isolated(config: SessionConfig) -> None:
    """Raise InvalidArgument if EPs of a share group were to work in processes of their own."""
    if config.isolation is not Isolation.NONE:
        raise InvalidArgument(
            f"ep.isolate={config.isolation.value} and a share group (ep.share_ep_contexts=1, ShareGroup) contradict "
            "each other: what an EP shares lies in one process.",
            hint="Leave one of the two out.",
        )


def fingerprint(choices: Sequence[ProviderChoice]) -> tuple[tuple[str, str, str], ...]:
    """Return what tells apart the EPs of two compiles or loads: EP type, distribution, and all their options.

    Secret options count, so this never leaves the process.
    """
    return tuple((c.name, f"{c.record.distribution} {c.record.version}", _digest(c)) for c in choices)


def _digest(choice: ProviderChoice) -> str:
    text = json.dumps(dict(choice.options), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
