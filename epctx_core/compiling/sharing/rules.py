"""What a model of a share group may be and where it may go; which compiles may share at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from epctx_core.errors import InvalidArgument
from epctx_core.options import WeightlessMode
from epctx_core.sessions.providers import refuse_isolated

if TYPE_CHECKING:
    from epctx_core.compiling.writing.destination import Destination
    from epctx_core.options import SessionConfig
    from epctx_core.sessions.source import OpenModel

_FILES_ONLY = "A share group is context models in files with binaries in files beside them."


def check_shared_options(config: SessionConfig, *, embedded: bool, delivered: bool, in_memory: bool) -> None:
    """Raise InvalidArgument for options that leave nothing to share; before a model is read.

    Args:
        config: the session options.
        embedded: whether payloads are stored in the model.
        delivered: whether payloads go to the host's write callback.
        in_memory: whether the model is handed over as bytes or to a stream.
    """
    if embedded:
        raise InvalidArgument(
            "ep.context_embed_mode=1 and ep.share_ep_contexts=1 contradict each other: what is stored in each "
            "model is shared by none.",
            hint="Set ep.context_embed_mode=0 for a share group.",
        )
    if delivered:
        raise InvalidArgument("a share group cannot hand payloads to a write callback.", hint=_FILES_ONLY)
    refuse_isolated(config)
    if in_memory:
        raise InvalidArgument(
            "a model of a share group cannot be compiled to bytes or to a stream.", hint=_FILES_ONLY
        )
    if config.weightless is not WeightlessMode.NONE:
        raise InvalidArgument(
            "ep.enable_weightless_mode and ep.share_ep_contexts=1 contradict each other: without weights in the "
            "binary there is nothing to share.",
            hint="Leave one of the two out.",
        )


def check_grouped_options(config: SessionConfig) -> None:
    """Raise InvalidArgument for options that a model of a `ShareGroup` cannot have.

    Args:
        config: the model's session options.
    """
    check_shared_options(config, embedded=config.embed, delivered=False, in_memory=False)
    if config.stop_sharing:
        raise InvalidArgument(
            "ep.stop_share_ep_contexts=1 ends a group of session options, and a ShareGroup ends with its block or "
            "finish().",
            hint="Leave the option out; ep.share_ep_contexts=1 may stay.",
        )
    if config.context_file_path is not None:
        raise InvalidArgument(
            "ep.context_file_path names one model's output, and a ShareGroup places all of its models.",
            hint="Leave it out; give ShareGroup an output_dir, and compile() a name.",
        )


def check_member(model: OpenModel, wanted: Destination) -> None:
    """Raise for a model that cannot be a member where it shall go.

    Whether binaries may be written is looked at when the group ends and its models are known.

    Raises:
        InvalidArgument: a model that was compiled before: its payloads would not be the group's.
        EpctxError: see `Destination.check`.
    """
    if model.context_nodes:
        node = model.context_nodes[0]
        raise InvalidArgument(
            f"{model.source.where} is a context model already (EPContext node {node.name!r}), and a share group "
            "takes models that are not.",
            path=model.source.path,
            hint="Compile the model that it was made from.",
        )
    wanted.check({})
