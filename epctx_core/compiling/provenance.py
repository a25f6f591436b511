"""What a context model says about who made it: the manifest, and each EP's compatibility text.

Also whether nodes of two compiles may stand in one model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from epctx_core.context.manifest import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    MANIFEST,
    Manifest,
    PayloadEntry,
    all_compatibility_info,
    read_manifest,
    set_metadata,
)
from epctx_core.context.node import DOMAIN, OPSET_VERSION
from epctx_core.context.payload_writer import dump_manifest
from epctx_core.context.weightless import MODE_KEY
from epctx_core.errors import InvalidArgument, InvalidGraph, PluginError
from epctx_core.options import WeightlessMode
from epctx_core.plugin import Compatibility
from epctx_core.registry.guard import ask
from epctx_core.registry.records import same_distribution

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.compiling.compile import Compile
    from epctx_core.context.weightless import SourceReference
    from epctx_core.sessions.assignment import Assignment
    from epctx_core.sessions.providers import ProviderChoice, ProviderSession
    from epctx_core.sessions.source import OpenModel


def check_mix(
    model: OpenModel, manifest: Manifest | None, assignment: Assignment, providers: ProviderSession
) -> None:
    """Check, before anything is compiled, that what EPs add to a context model can be loaded with what is there.

    Raises:
        InvalidGraph: another distribution of an EP made the nodes that are there, or the EP does not
            support them any more.
    """
    if not model.context_nodes:
        return
    infos = all_compatibility_info(model.source.proto)
    made = manifest.providers if manifest is not None else {}
    for ep in dict.fromkeys(partition.ep for partition in assignment.partitions):
        choice = providers.choices[ep]
        maker, why = made.get(ep, {}).get("distribution"), ""
        if isinstance(maker, str) and not same_distribution(choice.record.distribution, maker):
            why = (
                f"{model.source.where} has EPContext nodes that {ep} of {maker} made; "
                f"{choice.record.distribution} cannot add to them: one of the two would have to load all."
            )
        for info in () if why else infos.get(ep, ()):
            if choice.judge(info) is Compatibility.EP_UNSUPPORTED:
                why = (
                    f"{ep} would add to {model.source.where}, whose EPContext nodes it does not support: "
                    f"they were compiled for {info!r}."
                )
                break
        if why:
            hint = "Compile the model that it was made from, or leave the EP out."
            raise InvalidGraph(why, ep=ep, path=model.source.path, hint=hint)


def add_metadata(
    proto: ModelProto,
    compile_: Compile,
    payloads: Sequence[PayloadEntry],
    used: Mapping[str, SourceReference],
    pending: Sequence[str] = (),
) -> None:
    """Write the manifest and compatibility texts of a context model, with what its source says of its nodes.

    Args:
        proto: gets them.
        compile_: its compile.
        payloads: those of nodes that were there already, then those that were written.
        used: the weights that payloads left in the source.
        pending: names of the payloads that a share group writes at its end.
    """
    if not any(opset.domain == DOMAIN for opset in proto.opset_import):
        proto.opset_import.add(domain=DOMAIN, version=OPSET_VERSION)
    assignment, providers = compile_.assignment, compile_.providers
    exist = bool(compile_.existing.records)
    old = compile_.existing.manifest or Manifest(source_digest="", providers={}, payloads=())
    facts: dict[str, Mapping[str, Any]] = dict(old.providers)
    for ep, choice in providers.choices.items():
        partitions = assignment.of(ep)
        if partitions:
            facts[ep] = _maker_of(choice)
        elif exist:
            # What is said about this EP's nodes is about those that are there.
            continue
        # EPs without partitions are asked, too.
        info: str = ask(choice.record, choice.cls, "get_compatibility_info", partitions, choice.options)
        if info:
            earlier = [text for text in all_compatibility_info(proto).get(ep, ()) if text != info]
            set_metadata(proto, COMPATIBILITY_PREFIX + ep, info)
            # What it said before is kept where nodes are still there that it is about.
            if exist and earlier:
                set_metadata(proto, EARLIER_PREFIX + ep, json.dumps(earlier))
    if len(payloads) == 1:
        payloads = [replace(payloads[0], references=())]
    running = {kernel.ep for part in assignment.graphs for kernel in part.kernel_nodes}
    with_kernels = [ep for ep in providers.choices if ep in running]
    manifest = Manifest(
        source_digest=compile_.model.source.digest,
        providers=facts,
        payloads=payloads,
        source_weights=_source_weights(old, used),
        pending=pending,
        kernel_providers=tuple(dict.fromkeys((*old.kernel_providers, *with_kernels))),
    )
    set_metadata(proto, MANIFEST, dump_manifest(manifest))
    if providers.weightless is not WeightlessMode.NONE:
        set_metadata(proto, MODE_KEY, str(int(providers.weightless)))


def complete_manifest(proto: ModelProto, written: Mapping[str, PayloadEntry]) -> None:
    """Put what a share group wrote at its end into the manifest of one of its models.

    Args:
        proto: its context model; one without pending payloads stays as it is.
        written: by name, the entries of all payloads of the group.
    """
    manifest = read_manifest(proto)
    if manifest is not None and manifest.pending:
        missing = [name for name in manifest.pending if name not in written]
        if missing:
            raise PluginError(
                f"the payload {missing[0]!r} of a share group was not written at the group's end.",
                hook="get_ep_context_nodes",
                hint="The EP did not start it when `ContextWriter.final` was True.",
            )
        payloads = [*manifest.payloads, *(written[name] for name in manifest.pending)]
        complete = replace(manifest, payloads=payloads, pending=())
        set_metadata(proto, MANIFEST, dump_manifest(complete))


def _maker_of(choice: ProviderChoice) -> dict[str, Any]:
    """Return what the manifest says about an EP: who it is, what it compiled with and for."""
    idle = {option.name for option in choice.cls.options if not option.effect}
    # Neither secret ones nor those without effect.
    counted = {name: value for name, value in choice.public_options().items() if name not in idle}
    options = json.dumps(counted, sort_keys=True, default=str)
    said = {key: text for key, text in asdict(choice.build_info()).items() if text}
    return {
        "distribution": choice.record.distribution,
        "version": choice.record.version,
        "plugin_api": choice.cls.api_version,
        "options": hashlib.sha256(options.encode()).hexdigest(),
        **said,
    }


def _source_weights(old: Manifest, used: Mapping[str, SourceReference]) -> Mapping[str, Any]:
    for name, reference in used.items():
        if old.source_weights.get(name, reference) != reference:
            raise InvalidArgument(
                f"the payloads that are there and the new ones leave different weights {name!r} in their source.",
                hint="Compile the model that it was made from, or without weightless mode.",
            )
    return {**old.source_weights, **used}
