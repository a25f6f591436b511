"""Where the payloads of a model's EPContext nodes are looked for: by loads, and where a model is compiled again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.context.naming import is_folder_name
from epctx_core.context.paths import ModelFolder
from epctx_core.context.payloads.reader import Reading
from epctx_core.context.weightless.weights import SourceWeights
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    from epctx_core.context.manifest import Manifest
    from epctx_core.context.node import ContextNodeRecord
    from epctx_core.options import DataReader, SessionConfig
    from epctx_core.sessions.source import OpenModel

_WEIGHTS_ONLY = (
    " 'session.model_external_initializers_file_folder_path' says where weights are, not context binaries."
)


def context_folder(model: OpenModel, config: SessionConfig) -> ModelFolder | None:
    """Return where a load looks for context binaries: the folder of `ep.context_file_path`, else the model's.

    None for a model from bytes that needs none, or whose payloads the host's callback reads.

    Raises:
        InvalidArgument: a model from bytes that names files, without the option.
    """
    path, option = model.source.path, config.context_file_path
    if option is not None:
        return ModelFolder(Path(option) if is_folder_name(option) else Path(option).parent)
    if path is not None:
        return ModelFolder(path.parent, path)
    for node in model.context_nodes:
        if node.file_name is not None and config.data_reader is None:
            raise InvalidArgument(
                f"the model was given as bytes, and its EPContext node {node.name!r} keeps its payload "
                f"in the file {node.file_name!r}.",
                node=node.name,
                hint="Set the session option 'ep.context_file_path' to the path the model would have."
                + (_WEIGHTS_ONLY if config.external_initializers_folder else ""),
            )
    return None


def source_folder(model: OpenModel, config: SessionConfig) -> ModelFolder | None:
    """Return where a compile looks for them; see `context_folder`.

    There the option says where the new model goes, so that a model out of a file has them beside it. The
    host's callback is for loads.
    """
    path = model.source.path
    if path is not None:
        return ModelFolder(path.parent, path)
    return context_folder(model, replace(config, data_reader=None))


def source_weights(
    records: Iterable[ContextNodeRecord],
    folder: ModelFolder | None,
    config: SessionConfig,
    manifest: Manifest | None,
) -> SourceWeights:
    """Return what finds the weights that payloads left in the source model; nothing is opened yet."""
    return SourceWeights(
        records,
        manifest=manifest,
        folder=folder,
        path=config.source_model_path,
        buffer=config.source_model_buffer,
        weights_folder=config.external_initializers_folder,
    )


def reading_of(model: OpenModel, config: SessionConfig, data_reader: DataReader | None = None) -> Reading:
    """Return how the payloads of a model's nodes are read; without a callback of the host's from files."""
    return Reading(
        map_binaries=config.map_binaries,
        verification=config.verification,
        data_reader=data_reader,
        checks=model.checks,
        model_digest=model.source.digest,
    )
