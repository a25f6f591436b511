"""Provenance of a context model: the metadata about the EPs that made its nodes.

The module writes the manifest and each EP's compatibility text. It also checks whether
nodes of two compiles fit into one model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_core.context.manifest import (
    MANIFEST,
    NO_MANIFEST,
    Manifest,
    dump_manifest,
)
from epctx_core.context.metadata import (
    COMPATIBILITY_PREFIX,
    EARLIER_PREFIX,
    read_compatibility_info,
    set_metadata,
)
from epctx_core.context.node import DOMAIN, OPSET_VERSION
from epctx_core.engines.cpu_engine import make_engine
from epctx_core.errors import InvalidGraph
from epctx_core.graph.walks import ONNX_DOMAINS
from epctx_core.plugin import Compatibility
from epctx_core.registry.guard import call_class_method
from epctx_core.sessions.routing import find_other_maker

if TYPE_CHECKING:
    from onnx import ModelProto

    from epctx_core.compiling.pass_through import PassThrough
    from epctx_core.sessions.routing import ProviderChoice
    from epctx_core.sessions.stage_values import Assigned


def check_mix(work: Assigned, existing: PassThrough) -> None:
    """Check, before anything is compiled, that the nodes that EPs add to a context
    model load together with those it has.

    Raises:
        InvalidGraph: another distribution of an EP made the nodes that are there, or
            the EP does not support them any more.
    """
    model = work.model
    manifest = existing.manifest
    if not model.context_nodes:
        return
    infos = read_compatibility_info(model.source.proto)
    providers = (manifest or NO_MANIFEST).providers
    for ep in dict.fromkeys(partition.ep for partition in work.assignment.partitions):
        choice = work.providers.choices[ep]
        if maker := find_other_maker(providers, choice.record):
            faults = [f"{ep} of {maker} made them, and one would have to load all"]
        else:
            faults = [
                f"it does not support what was compiled for {info!r}"
                for info in infos.get(ep, ())
                if choice.validate(info) == Compatibility.EP_UNSUPPORTED
            ]
        if faults:
            raise InvalidGraph(
                f"{ep} cannot add to the EPContext nodes of "
                f"{model.source.where}: {faults[0]}.",
                ep=ep,
                path=model.source.path,
                hint="Compile the model that it was made from, or leave the EP out.",
            )


def describe_providers(
    proto: ModelProto,
    work: Assigned,
    existing: PassThrough,
    texts: Mapping[str, str | None],
) -> dict[str, Mapping[str, Any]]:
    """Return the manifest's facts about the EPs that compiled partitions, and write
    each EP's compatibility text.

    Args:
        proto: gets the texts; those of its source are kept.
        work: the EPs.
        existing: the EPContext nodes that the source has already.
        texts: by EP, the compatibility text of its nodes; None or no entry: its class
            is asked.
    """
    facts: dict[str, Mapping[str, Any]] = {}
    for ep, choice in work.providers.choices.items():
        partitions = work.assignment.of(ep)
        if partitions:
            facts[ep] = _describe_provider(choice)
        elif existing.records:
            # The metadata of this EP describes the nodes of the source.
            continue

        info = texts.get(ep)
        if info is None:  # EPs without partitions are asked, too.
            info = call_class_method(
                choice.record,
                choice.cls,
                "get_compatibility_info",
                partitions,
                choice.options,
            )
        if not info:
            continue
        choice.check_text("get_compatibility_info", info, "compatibility text")
        earlier = [
            text for text in read_compatibility_info(proto).get(ep, ()) if text != info
        ]
        set_metadata(proto, COMPATIBILITY_PREFIX + ep, info)
        # Its earlier text is kept if nodes of the source remain that it describes.
        if existing.records and earlier:
            set_metadata(proto, EARLIER_PREFIX + ep, json.dumps(earlier))
    return facts


def add_manifest(
    proto: ModelProto, work: Assigned, existing: PassThrough, new: Manifest
) -> None:
    """Write the manifest of a context model, joined with that of its source, and what
    EPs add to the metadata.

    Args:
        proto: gets it.
        work: the EPs.
        existing: the EPContext nodes that the source has already.
        new: what this compile has to say; all payloads, those of nodes that were there
            already first.
    """
    if not any(opset.domain == DOMAIN for opset in proto.opset_import):
        proto.opset_import.add(domain=DOMAIN, version=OPSET_VERSION)
    old = existing.manifest or Manifest(source_digest="", providers={}, payloads=())
    kept_eps = {partition.ep for partition in work.assignment.kept}
    keepers = [ep for ep in work.providers.choices if ep in kept_eps]
    payloads = new.payloads
    if len(payloads) == 1:
        payloads = [replace(payloads[0], references=())]

    manifest = replace(
        new,
        providers={**old.providers, **new.providers},
        payloads=payloads,
        keepers=tuple(dict.fromkeys((*old.keepers, *keepers))),
        custom_domains=_find_custom_domains(proto, work, old),
    )
    set_metadata(proto, MANIFEST, dump_manifest(manifest))
    for key, text in work.assignment.metadata.items():
        set_metadata(proto, key, text)


def _find_custom_domains(
    proto: ModelProto, work: Assigned, old: Manifest
) -> dict[str, str]:
    """Return the domains of custom operators that no EP takes; see `Manifest`."""
    if {opset.domain for opset in proto.opset_import} <= {*ONNX_DOMAINS, DOMAIN}:
        return {}
    operators = {
        (node.domain, node.op_type)
        for partition in work.assignment.kept
        for node in partition.nodes
    }
    libraries = make_engine(work.model.policy).find_libraries(proto, operators)
    return {
        domain: Path(path).name or old.custom_domains.get(domain, "")
        for domain, path in libraries.items()
    }


def _describe_provider(choice: ProviderChoice) -> dict[str, Any]:
    """Return the facts about an EP for the manifest: its distribution, options and
    target.
    """
    idle = {option.name for option in choice.cls.options if not option.effect}
    # Neither secret ones nor those without effect.
    counted = {
        name: value
        for name, value in choice.public_options().items()
        if name not in idle
    }
    options = json.dumps(counted, sort_keys=True, default=str)
    info = {key: text for key, text in asdict(choice.build_info()).items() if text}
    return {
        "distribution": choice.record.distribution,
        "version": choice.record.version,
        "plugin_api": choice.cls.api_version,
        "options": hashlib.sha256(options.encode()).hexdigest(),
        **info,
    }
