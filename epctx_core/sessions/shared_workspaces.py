"""Workspaces that loads share (`ep.share_ep_contexts=1`), and the keys under which they
do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.manifest import NO_MANIFEST
from epctx_core.errors import InvalidArgument
from epctx_core.graph.mapping import identify_file
from epctx_core.options import Isolation, SessionConfig
from epctx_core.sessions.providers import (
    ProviderChoice,
    WorkspaceOf,
    make_private_workspace,
)
from epctx_core.sessions.workspaces import PrivateWorkspace, loaded_workspaces

if TYPE_CHECKING:
    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.context.paths import ModelFolder


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

    def workspace_of(choice: ProviderChoice) -> PrivateWorkspace:
        binaries = _identify_binaries(nodes.get(choice.name, ()), folder, manifest)
        if not binaries:
            return make_private_workspace(choice)
        check_not_isolated(config)
        # A binary is verified as the session that opened it asked for.
        return loaded_workspaces.get().join(
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
    stated = manifest or NO_MANIFEST
    for record in records:
        name = record.file_name
        if not record.main_context or name in states:
            continue
        if name is None:
            return None
        status = folder.status(name, what="the context binary", node=record.name)
        if status is None:
            return None
        entry = stated.find_entry(name, embedded=False)
        digest = "pending" if name in stated.pending else entry and entry.root
        states[name] = identify_file(status), digest
    return frozenset(states.values())


def check_not_isolated(config: SessionConfig) -> None:
    """Raise InvalidArgument if EPs of sessions of a share group are to be isolated."""
    if config.isolation is not Isolation.NONE:
        raise InvalidArgument(
            f"ep.isolate={config.isolation.value} and ep.share_ep_contexts=1 "
            "contradict each other in a session: EPs share objects within one process "
            "only.",
            hint="Leave one of the two out.",
        )


def fingerprint_providers(
    choices: Sequence[ProviderChoice],
) -> tuple[tuple[str, str, str], ...]:
    """Return a key of EPs: name, distribution, and a digest of all options.

    Secret options count, so this never leaves the process.
    """
    texts = [
        json.dumps(dict(choice.options), sort_keys=True, default=str)
        for choice in choices
    ]
    return tuple(
        (
            c.name,
            f"{c.record.distribution} {c.record.version}",
            hashlib.sha256(text.encode()).hexdigest(),
        )
        for c, text in zip(choices, texts, strict=True)
    )
