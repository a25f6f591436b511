"""Whether an EP of this machine runs a compiled model: asked by sessions, and by hosts without one.

The text under `ep_compatibility_info.<EP type>` in the model's metadata is the EP's own; only that EP judges it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from epctx_core.context.metadata import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    all_compatibility_info,
    texts_of,
)
from epctx_core.context.model_head import read_metadata
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, errors_typed
from epctx_core.options import SessionOptions
from epctx_core.plugin import Compatibility
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.guard import ask
from epctx_core.registry.records import means
from epctx_core.sessions.providers import CPU_EP, choose_provider

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.sessions.providers import ProviderChoice

CompiledModelCompatibility = Compatibility
"""The name that hosts know it by."""
UNSUPPORTED_HINT = (
    "Compile the source model again with the EP that is installed here, or give the options that "
    "describe the device it was compiled for."
)


def judge(choice: ProviderChoice, info: str) -> Compatibility:
    """Return an EP's verdict on what it once wrote.

    Raises:
        PluginError: it raised, or gave something else.
    """
    verdict: Compatibility = ask(choice.record, choice.cls, "validate_compatibility", info, choice.options)
    return verdict


def accept(choice: ProviderChoice, info: str) -> Compatibility:
    """Return an EP's verdict on what it once wrote, unless it cannot run that any more.

    Raises:
        InvalidGraph: it cannot.
        PluginError: as `judge`.
    """
    verdict = judge(choice, info)
    if verdict == Compatibility.EP_UNSUPPORTED:
        raise InvalidGraph(
            f"{choice.name} does not support this compiled model: the model was compiled for {info!r}.",
            ep=choice.name,
            hint=UNSUPPORTED_HINT,
        )
    return verdict


def suboptimal(choice: ProviderChoice, info: str) -> Fail:
    """Return the error for a model that an EP would rather compile again."""
    return Fail(
        f"{choice.name} runs this compiled model less well than a new one: the model was compiled for {info!r}.",
        ep=choice.name,
        hint="Compile the source model again.",
    )


def check_compatibility(
    model: ModelProto, choices: Iterable[ProviderChoice], *, fail_on_suboptimal: bool
) -> list[str]:
    """Ask each EP of a session to judge what it once wrote about the model; return warnings.

    Called before any EP instance exists.

    Raises:
        InvalidGraph: an EP says that it cannot run the model any more.
        Fail: an EP would rather compile again, and the host wants that to be an error.
        PluginError: an EP raised, or gave something else than a verdict.
    """
    infos = all_compatibility_info(model)
    warnings = []
    said = ((choice, info) for choice in choices for info in infos.get(choice.name, ()))
    for choice, info in said:
        if accept(choice, info) == Compatibility.EP_SUPPORTED_PREFER_RECOMPILATION:
            error = suboptimal(choice, info)
            if fail_on_suboptimal:
                raise error
            warnings.append(error.message)
    return warnings


@errors_typed("asking for the model's compatibility")
def get_model_compatibility(
    path_or_bytes: str | os.PathLike[str] | bytes,
    ep: str,
    provider_options: Mapping[str, object] | None = None,
    *,
    registry: Registry = default_registry,
) -> CompiledModelCompatibility:
    """Ask an EP whether it runs a compiled model, without a session: no payload is touched.

    Of a file, only the head is read: the graph is stepped over, however large.

    Args:
        path_or_bytes: the model.
        ep: the EP type, or its short name.
        provider_options: the EP's options, as a session would have them.
        registry: where the EP is looked up.

    Returns:
        The EP's verdict, the worst one if it compiled parts at different times; EP_NOT_APPLICABLE for a
        model about which this EP wrote nothing, and for the CPU EP.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is none.
        InvalidArgument: no such EP, or a wrong option.
        PluginError: the EP is broken, or its validator raised.

    Example:
        >>> get_model_compatibility("model_ctx.onnx", "QNN")
        <Compatibility.EP_SUPPORTED_OPTIMAL: 1>
    """
    _check_ep(ep)
    if means(ep, CPU_EP):
        read_metadata(path_or_bytes, lambda _key: False)
        return Compatibility.EP_NOT_APPLICABLE
    choice = choose_provider(registry.resolve(ep), provider_options or {}, SessionOptions(), registry)
    info = get_compatibility_info_from_model(path_or_bytes, choice.name)
    said = read_metadata(path_or_bytes, lambda key: key == EARLIER_PREFIX + choice.name)
    texts = [*([] if info is None else [info]), *texts_of(choice.name, said)]
    # The numbers rise with what speaks against the model.
    return max((judge(choice, text) for text in texts), default=Compatibility.EP_NOT_APPLICABLE)


@errors_typed("reading the model's compatibility")
def get_compatibility_info_from_model(path_or_bytes: str | os.PathLike[str] | bytes, ep: str) -> str | None:
    """Return what an EP wrote about a compiled model, or None; imports no plugin.

    Args:
        path_or_bytes: the model; of a file, only the head is read.
        ep: the EP type, or its short name.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is none.
        InvalidArgument: no text for the EP, or no path nor bytes for the model.
    """
    _check_ep(ep)
    infos = read_metadata(
        path_or_bytes,
        lambda key: (
            key.startswith(COMPATIBILITY_PREFIX) and means(ep, key.removeprefix(COMPATIBILITY_PREFIX))
        ),
    )
    # The EP type as written comes before its short name.
    return infos.get(COMPATIBILITY_PREFIX + ep, next(iter(infos.values()), None))


def _check_ep(ep: object) -> None:
    if not isinstance(ep, str) or not ep:
        raise InvalidArgument(f"an EP is named by a text such as 'QNNExecutionProvider', not {ep!r:.80}.")
