"""The manifest as it stands in a model, and whether it agrees with itself and with the nodes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from epctx_core.context.manifest import VERSION, Manifest, read_manifest
from epctx_core.context.metadata import MANIFEST, metadata_value, parse_json
from epctx_core.context.named_files import (
    CONTEXT_BINARY,
    DEPENDENCIES_KEY,
    EXTERNAL_WEIGHTS,
    SOURCE_MODEL,
    stated_dependencies,
)
from epctx_core.context.payload_reader import payload_key
from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from epctx_core.verify.subject import Subject


def check_manifest(subject: Subject) -> Manifest | None:
    """Return the manifest if it can be used, and note what is wrong with it."""
    findings = subject.findings
    text = metadata_value(subject.proto, MANIFEST)
    if text is None:
        if subject.records:
            findings.add(
                "manifest-missing",
                f"the model has no {MANIFEST} metadata, so its payloads were checked against no digests.",
                hint="Models that epctx did not write have none.",
            )
        return None
    manifest: Manifest | None = None
    with findings.collected("manifest-damaged"):
        manifest = read_manifest(subject.proto, subject.config.input_budget.manifest_entries)
        if manifest is None:
            version = f"{parse_json(text)['version']!r:.40}"
            findings.add(
                "manifest-unknown",
                f"the model's {MANIFEST} metadata has the version {version}, and this epctx reads {VERSION}: "
                "its payloads were checked against no digests.",
                hint="Upgrade epctx-core.",
            )
    entries = [] if manifest is None else zip(parse_json(text)["payloads"], manifest.payloads, strict=True)
    for said, entry in entries:
        if said.get("root") != entry.root:
            findings.add(
                "manifest-root",
                f"the manifest says the root digest {said.get('root')!r:.80} for {entry.name!r}, and its segments give "
                f"{entry.root}.",
                hint="Fetch the model again, or compile again.",
            )
    return manifest


def check_dependencies(subject: Subject) -> None:
    """Note if what the model says that it needs besides its file is false; a model need not say it.

    Whether the payloads of others left weights in their source is not known here, so that is not denied.
    """
    stated = stated_dependencies(subject.proto)
    if stated is None or not subject.records:
        return
    needed = {
        SOURCE_MODEL: subject.manifest is not None and bool(subject.manifest.source_weights),
        EXTERNAL_WEIGHTS: subject.names_weights,
        CONTEXT_BINARY: any(r.main_context and not r.embed_mode for r in subject.records),
    }
    for word, is_needed in needed.items():
        if is_needed != (word in stated) and (is_needed or word != SOURCE_MODEL):
            subject.findings.add(
                "dependencies-wrong",
                f"the model's {DEPENDENCIES_KEY} metadata is {';'.join(stated)!r:.80}, and {word} is "
                f"{'needed' if is_needed else 'not needed'}.",
                hint="A tool moved weights or payloads and left the metadata as it was: compile it again.",
            )


def check_unused(subject: Subject) -> None:
    """Note payloads that the manifest knows and no node has, unless a node has lost its own."""
    manifest, findings = subject.manifest, subject.findings
    if manifest is None or findings.codes & {"payload-missing", "primary-missing"}:
        return
    carried = set()
    for record in subject.records:
        if record.main_context:
            with suppress(InvalidGraph):
                carried.add(payload_key(record))
    for entry in manifest.payloads:
        if (entry.name, entry.embedded) not in carried:
            findings.add(
                "manifest-unused",
                f"the manifest describes the payload {entry.name!r}, which no node of the model carries.",
                hint="The model lost a node, or a node was renamed; compile it again.",
            )
