"""Verdicts of EPs about compiled models: their declarations, their answer whether they
run a model, and their findings in payloads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from epctx_core.context.metadata import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    read_compatibility_texts,
)
from epctx_core.context.model_head import read_metadata
from epctx_core.errors import InvalidArgument, convert_errors
from epctx_core.options import SessionOptions, WeightlessMode
from epctx_core.options.choices import CPU_EP
from epctx_core.plugin import CONTAINER_CODES, Compatibility, ExecutionProvider, Finding
from epctx_core.registry import Registry, default_registry
from epctx_core.registry.guard import blame, call_class_method, contract_error
from epctx_core.registry.records import is_name_of
from epctx_core.sessions.routing import ProviderChoice, choose_provider

if TYPE_CHECKING:
    from epctx_core.graph.mapping import ModelInput
    from epctx_core.plugin import ContextNode, ContextReader, ProviderContext


LOOK = "verify_payloads"
CompiledModelCompatibility = Compatibility
"""Public name of `Compatibility`."""


def get_ep_metadata(
    ep: str, *, registry: Registry = default_registry
) -> dict[str, str]:
    """Return the declarations of an EP, so that a host can check what it supports.

    Args:
        ep: the EP name, or its short form, also after `<distribution>:`.
        registry: the registry of EPs.

    Returns:
        `weightless_supported_modes`: "none", "external_only", "all" or
        "all_or_external_only"; `weightless_support`: the same for hosts of ONNX Runtime
        before 1.31, "all" for both; `simulated`: "1" for an EP that computes on this
        CPU in place of hardware, else "0".

    Raises:
        InvalidArgument: no such EP.
        PluginError: the EP is broken.

    Examples:
        >>> get_ep_metadata("OpenVINO")["weightless_support"]
        'all'
    """
    cls = (
        ExecutionProvider
        if is_name_of(ep, CPU_EP)
        else registry.load(registry.resolve(ep))
    )
    modes = cls.weightless_modes
    coarse_modes = (
        {WeightlessMode.ALL} if WeightlessMode.ALL in (modes or ()) else modes
    )
    return {
        "weightless_support": format_weightless_modes(coarse_modes),
        "weightless_supported_modes": format_weightless_modes(modes),
        "simulated": str(int(cls.simulated)),
    }


def format_weightless_modes(modes: Collection[WeightlessMode] | None) -> str:
    """Return the modes that an EP supports in ONNX Runtime's words."""
    names = sorted(
        mode.name.lower() for mode in modes or () if mode is not WeightlessMode.NONE
    )
    return "_or_".join(names) or "none"


@convert_errors("asking for the model's compatibility")
def get_model_compatibility(
    path_or_bytes: ModelInput,
    ep: str,
    provider_options: Mapping[str, object] | None = None,
    *,
    registry: Registry = default_registry,
) -> CompiledModelCompatibility:
    """Ask an EP whether it runs a compiled model, without a session: no payload is
    touched.

    Of a file, only the head is read: the graph is stepped over, however large.

    Args:
        path_or_bytes: the model.
        ep: the EP name, or its short form, also after `<distribution>:`.
        provider_options: the EP's options, as a session would have them.
        registry: the registry of EPs.

    Returns:
        The EP's verdict, the worst one if it compiled parts at different times;
        EP_NOT_APPLICABLE for a model about which this EP wrote nothing, and for the CPU
        EP.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is not
            one.
        InvalidArgument: no such EP, or a wrong option.
        PluginError: the EP is broken, or its validator raised.

    Examples:
        >>> get_model_compatibility("model_ctx.onnx", "QNN")
        <Compatibility.EP_SUPPORTED_OPTIMAL: 1>
    """
    _check_ep(ep)
    if is_name_of(ep, CPU_EP):
        read_metadata(path_or_bytes, lambda _key: False)
        return Compatibility.EP_NOT_APPLICABLE
    choice = choose_provider(
        registry.resolve(ep), provider_options or {}, SessionOptions(), registry
    )
    info = get_compatibility_info_from_model(path_or_bytes, choice.name)
    earlier = read_metadata(
        path_or_bytes, lambda key: key == EARLIER_PREFIX + choice.name
    )
    texts = [
        *([] if info is None else [info]),
        *read_compatibility_texts(choice.name, earlier),
    ]

    # The numbers rise with what speaks against the model.
    # One with a reason is another object.
    return Compatibility(int(max(map(choice.validate, texts), default=0)))


@convert_errors("reading the model's compatibility")
def get_compatibility_info_from_model(path_or_bytes: ModelInput, ep: str) -> str | None:
    """Return the text that an EP wrote about a compiled model, or None; imports no
    plugin.

    Args:
        path_or_bytes: the model; of a file, only the head is read.
        ep: the EP name, or its short form, also after `<distribution>:`.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: there is no such model, or it is not
            one.
        InvalidArgument: the EP is not named by a text, or the model is not a path or
            bytes.
    """
    _check_ep(ep)
    # Models name EPs, and not the distributions that provide them.
    name = ep.rpartition(":")[2]
    infos = read_metadata(
        path_or_bytes,
        lambda key: (
            key.startswith(COMPATIBILITY_PREFIX)
            and is_name_of(name, key.removeprefix(COMPATIBILITY_PREFIX))
        ),
    )
    # The EP name as written comes before its short name.
    return infos.get(COMPATIBILITY_PREFIX + name, next(iter(infos.values()), None))


def _check_ep(ep: object) -> None:
    if not isinstance(ep, str) or not ep:
        raise InvalidArgument(
            f"an EP is named by a text such as 'QNNExecutionProvider', not {ep!r:.80}."
        )


def look_into(
    choice: ProviderChoice,
    context: ProviderContext,
    nodes: Sequence[ContextNode],
    reader: ContextReader,
) -> Sequence[Finding] | None:
    """Have an EP check its payloads; return its findings, None if it cannot check them.

    Raises:
        PluginError: it raised, or its result breaks the contract.
        EpctxError: it raised this one.
    """
    findings: list[Finding] | None = call_class_method(
        choice.record, choice.cls, LOOK, context, nodes, reader
    )
    with blame(choice.record, LOOK):
        for finding in findings or ():
            if finding.code not in CONTAINER_CODES:
                raise contract_error(
                    choice.record, LOOK, f"gave the code {finding.code!r:.80}"
                )
    return findings
