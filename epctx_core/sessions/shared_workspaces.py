"""Workspaces with several users, and which loads meet in one (`ep.share_ep_contexts=1`).

A shared workspace lives as long as anybody uses it. Which users meet is said by whoever makes the key.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from epctx_core.context.scratch import PrivateWorkspace
from epctx_core.errors import InvalidArgument
from epctx_core.graph.mapping import identify_file
from epctx_core.options import Isolation, SessionConfig
from epctx_core.registry.forking import PerProcess
from epctx_core.sessions.providers import ProviderChoice, WorkspaceOf, private_workspace

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder


class SharedWorkspace(PrivateWorkspace):
    """A workspace with several users; implements `epctx_core.plugin.Workspace`. Made by `SharedWorkspaces`.

    Args:
        leave: takes one user off; gives whether it was the last.
    """

    def __init__(self, leave: Callable[[], bool]) -> None:
        super().__init__()
        self.users = 0
        self._leave = leave

    def close(self) -> None:
        """Leave; each user calls it once. The last one closes all objects."""
        if self._leave():
            super().close()


class SharedWorkspaces:
    """Workspaces by key, each as long as it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[Hashable, SharedWorkspace] = {}

    def join(self, key: Hashable) -> SharedWorkspace:
        """Return the workspace under a key; its `close` has to be called once for each call of this."""
        with self._lock:
            if key not in self._found:
                self._found[key] = SharedWorkspace(partial(self._leave, key))
            self._found[key].users += 1
            return self._found[key]

    def _leave(self, key: Hashable) -> bool:
        with self._lock:
            self._found[key].users -= 1
            # Whoever comes after the last one gets a new workspace.
            return not self._found[key].users and bool(self._found.pop(key))


loaded_workspaces = PerProcess(SharedWorkspaces)
"""Of all sessions of one process that load context models with `ep.share_ep_contexts=1`."""


def load_workspaces(
    nodes: Mapping[str, Sequence[ContextNodeRecord]],
    folder: ModelFolder | None,
    config: SessionConfig,
    manifest: Manifest | None,
) -> WorkspaceOf:
    """Return what gives the workspaces of one session with `ep.share_ep_contexts=1`: shared if all payloads are files.

    Args:
        nodes: EP type to its nodes.
        folder: where their binaries lie.
        config: the session's options.
        manifest: what the model says about its payloads, if it does.
    """
    # A host that gives payloads itself, or wants its own copy, shares none.
    if folder is None or config.data_reader is not None or not config.map_binaries:
        return private_workspace

    def workspace_of(choice: ProviderChoice) -> PrivateWorkspace:
        binaries = _binaries(nodes.get(choice.name, ()), folder, manifest)
        if not binaries:
            return private_workspace(choice)
        # What one session opened was verified as that one asked for.
        return loaded_workspaces.get().join((fingerprint([choice]), config.verification, binaries))

    return workspace_of


def _binaries(
    records: Sequence[ContextNodeRecord], folder: ModelFolder, manifest: Manifest | None
) -> frozenset[Hashable] | None:
    """Return what tells an EP's binaries from all others; None if one is no file or is not there.

    What the model says that a binary is counts, too: a session of which the model says otherwise has to look for itself.
    """
    found: dict[str, Hashable] = {}
    for record in records:
        name = record.file_name
        if not record.main_context or name in found:
            continue
        status = None if name is None else folder.status(name, what="the context binary", node=record.name)
        if name is None or status is None:
            return None
        digest = None
        if manifest is not None:
            entry = manifest.find_entry(name, embedded=False)
            digest = "pending" if manifest.is_pending(name) else entry and entry.root
        found[name] = identify_file(status), digest
    return frozenset(found.values())


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
    texts = [json.dumps(dict(choice.options), sort_keys=True, default=str) for choice in choices]
    return tuple(
        (c.name, f"{c.record.distribution} {c.record.version}", hashlib.sha256(text.encode()).hexdigest())
        for c, text in zip(choices, texts, strict=True)
    )
