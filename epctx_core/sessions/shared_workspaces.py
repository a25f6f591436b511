"""Workspaces that loads share (`ep.share_ep_contexts=1`), and the keys under which they
do.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.payload_reader import find_entry
from epctx_core.graph.mapping import identify_file
from epctx_core.sessions.providers import WorkspaceOf, make_private_workspace
from epctx_core.sessions.workspaces import SessionWorkspace, shared_workspaces

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder
    from epctx_core.options import SessionConfig
    from epctx_core.sessions.routing import ProviderChoice


def load_workspaces(
    nodes: Mapping[str, Sequence[ContextNodeRecord]],
    folder: ModelFolder | None,
    config: SessionConfig,
    manifest: Manifest | None,
) -> WorkspaceOf:
    """Return a function for the workspaces of one session with
    `ep.share_ep_contexts=1`: shared if all payloads are files.

    Args:
        nodes: EP name to its nodes.
        folder: the folder of their binaries.
        config: the session's options.
        manifest: the model's record of its payloads, or None.
    """
    # A host that gives payloads itself, or wants its own copy, shares none.
    if folder is None or config.data_reader is not None or not config.map_binaries:
        return make_private_workspace

    def workspace_of(choice: ProviderChoice) -> SessionWorkspace:
        binaries = _identify_binaries(nodes.get(choice.name, ()), folder, manifest)
        if not binaries:
            return make_private_workspace(choice)
        # A binary is verified as the session that opened it asked for.
        return shared_workspaces.get().join(
            (fingerprint_providers([choice]), config.verification, binaries)
        )

    return workspace_of


def _identify_binaries(
    records: Sequence[ContextNodeRecord], folder: ModelFolder, manifest: Manifest | None
) -> frozenset[Hashable] | None:
    """Return a key of an EP's binaries; None if one is not a file or is missing.

    The digest in the model is part of it: a session of a model with another one has to
    check the binary itself.
    """
    states: dict[str, Hashable] = {}
    for record in records:
        name = record.file_name
        if record.main_context and name not in states:
            status = (
                None
                if name is None
                else folder.status(name, what="the context binary", node=record.name)
            )
            if name is None or status is None:
                return None
            entry = find_entry(record, manifest)
            states[name] = identify_file(status), entry and entry.root
    return frozenset(states.values())


def fingerprint_providers(
    choices: Sequence[ProviderChoice],
) -> tuple[tuple[Hashable, ...], ...]:
    """Return a key of EPs: name, distribution, its version, and all options.

    Secret options count, so this never leaves the process.
    """
    return tuple(
        (
            choice.name,
            choice.record.distribution,
            choice.record.version,
            json.dumps(dict(choice.options), sort_keys=True, default=str),
        )
        for choice in choices
    )
