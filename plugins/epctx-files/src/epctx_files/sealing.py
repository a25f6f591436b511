"""Sealing: digests for a context model that another tool wrote, such as onnxruntime
with a vendor's EP.

They are a manifest without anything about sources and EPs: `epctx.sealed` in the
model's metadata, which is appended to the file, or the same text in a file beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from epctx_core import SessionOptions, default_registry
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, convert_errors
from epctx_core.ext import (
    MappedFile,
    ModelFolder,
    PayloadEntry,
    Publication,
    Request,
    dump_seal,
)
from epctx_files.bundle import (
    BINARY,
    MOST_BYTES,
    PathInput,
    normalise,
    require_path,
)
from epctx_files.manifests import BESIDE, encode_seal
from epctx_files.structure import MANIFEST, SEALED, find_metadata, remove_metadata

_SPARSE_FROM = 1 << 28
"""Bytes of a binary from which it matters how many of them are on the disk."""
_MOST_HOLES = 16
"""Largest ratio of a binary's size to its bytes on the disk; file systems that compress
stay far below.
"""


@dataclass(frozen=True, kw_only=True)
class SealReport:
    """Result of `seal_model`.

    Attributes:
        path: the sealed model.
        manifest: the file beside it, None for a manifest in the model.
        written: False if the model had this very seal already.
        payloads: by name (a file's, or a node's for an embedded payload), size in bytes
            and root digest (hex).
    """

    path: Path
    manifest: Path | None
    written: bool
    payloads: dict[str, tuple[int, str]]

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `epctx seal --json` prints."""
        return {
            "sealed": str(self.path),
            "manifest": None if self.manifest is None else str(self.manifest),
            "written": self.written,
            "payloads": [
                {"name": n, "bytes": s, "digest": root}
                for n, (s, root) in self.payloads.items()
            ],
        }


@convert_errors("sealing the model")
def seal_model(
    model: PathInput,
    output: PathInput | None = None,
    *,
    beside: bool = False,
    force: bool = False,
) -> SealReport:
    """Give a context model that another tool wrote digests of its structure and its
    payloads.

    onnxruntime loads a sealed model as before: only metadata is added. The seal says
    nothing about EPs, so loads choose the same ones as before. Sealing again changes
    nothing.

    Args:
        model: path of a context model, beside its context binaries.
        output: file of the sealed copy, in a folder that has the binaries; None to
            replace the model.
        beside: write the manifest into a file `<model's file name>.epctx.json` and
            leave the model as it is.
        force: replace a manifest that differs: another seal, or that of a compile, with
            all that it says about EPs.

    Returns:
        The payloads and their digests.

    Raises:
        NoSuchFile, InvalidProtobuf: there is no such model, or it is not one.
        InvalidGraph: the model is damaged, or a payload is missing, leaves the folder,
            is the model itself or is nearly all holes.
        InvalidArgument: nothing to seal, a manifest that differs, or a model that
            cannot be sealed this way.
        Fail: the files cannot be written, or the model was replaced meanwhile.

    Examples:
        >>> seal_model("resnet_ctx.onnx").payloads
        {'resnet_ctx_qnn.bin': (65536, '6f0d...')}
    """
    path = require_path(model)
    copy = None if output is None else require_path(output)
    if beside and copy is not None:
        raise InvalidArgument(
            "a seal goes beside a model or into a copy of it, not both."
        )

    # Before any of it is read; what is no file is refused then.
    state = _identify(path) if path.is_file() else None
    payloads = list(_list_payloads(path))
    data = path.read_bytes()
    if beside:
        target = path.with_name(path.name + BESIDE)
        content = _seal_beside(path, target, data, payloads, force=force)
    else:
        target = copy or path
        content = _seal_inside(path, data, payloads, force=force)
        _check_target(target, path, content, payloads)

    written = not _has_content(target, content)
    if written:
        with Publication(target.parent) as publication:
            publication.create(target.name).write(content)
            if _identify(path) != state:
                raise Fail(
                    f"{path.name} was replaced while it was sealed.",
                    path=path,
                    hint="Seal it again.",
                )
            publication.commit([target.name])
    return SealReport(
        path=path if beside else target,
        manifest=target if beside else None,
        written=written,
        payloads={entry.name: (entry.size, entry.root) for entry in payloads},
    )


def _identify(path: Path) -> tuple[int, ...]:
    """Return the facts about a file by which a replacement is noticed."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _has_content(path: Path, content: bytes) -> bool:
    """Return whether a file has this content; one of another size is not read."""
    return (
        path.is_file()
        and path.stat().st_size == len(content)
        and path.read_bytes() == content
    )


def _list_payloads(path: Path) -> Iterator[PayloadEntry]:
    """Yield the entry of each payload of a model, digested.

    Raises:
        InvalidArgument: there is none.
    """
    folder = ModelFolder(path.parent, path)
    request = Request.from_options(path, SessionOptions(), default_registry, ())
    model = request.read_model()
    records: dict[tuple[str, bool], Any] = {}
    for record in model.context_nodes:
        if not record.main_context:
            continue
        # A file has one key, however nodes spell its name (`./a.bin`).
        name = normalise(record.file_name or "")
        key = (record.name, True) if record.embed_mode else (name, False)
        records.setdefault(key, record)
    if not records:
        raise InvalidArgument(
            f"{path.name} has no EPContext node with a payload: there is nothing to "
            "seal.",
            path=path,
            hint="Seal the context model that a compile wrote (often *_ctx.onnx).",
        )

    for (name, embedded), record in records.items():
        if embedded or not record.cache:
            view = memoryview(record.cache or b"")
            entry = PayloadEntry.of(name, view, embedded=embedded)
        else:
            with folder.open(name, what=BINARY, node=record.name) as file:
                content = MappedFile(file.fileno(), file.path)
            _check_binary(content, record.name, path)
            entry = PayloadEntry.of(name, content.view, content.forget)
        if not entry.size:
            raise InvalidGraph(
                f"the payload of EPContext node {record.name!r} is empty.",
                node=record.name,
                path=path,
                hint="Fetch model and binary again, or compile again.",
            )
        yield entry


def _check_binary(content: MappedFile, node: str, path: Path) -> None:
    """Check, before any byte is digested, that a file can be a binary of a model.

    Raises:
        InvalidGraph: it is the model or its manifest, which sealing changes, or nearly
            all holes: digesting those takes as long as digesting data.
    """
    # Blocks are of 512 bytes, whatever the file system; Windows does not count them.
    stored = getattr(content.status, "st_blocks", content.size) * 512
    name = os.path.basename(content.path)  # noqa: PTH119 - a name, as the model has it
    beside = path.with_name(path.name + BESIDE)
    if content.is_at(path) or content.is_at(beside):
        problem = "is the model itself or its manifest"
        hint = "Compile it again."
    elif content.size >= _SPARSE_FROM and stored * _MOST_HOLES < content.size:
        problem = (
            f"is nearly all holes: of its {content.size:,} bytes the disk has "
            f"{stored:,}"
        )
        hint = "Fetch it again: what wrote it did not finish."
    else:
        return
    raise InvalidGraph(
        f"the context binary {name!r} of EPContext node {node!r} {problem}.",
        node=node,
        path=content.path,
        hint=hint,
    )


def _make_text(plain: bytes, payloads: Sequence[PayloadEntry]) -> str:
    """Return the manifest of a model whose file has these bytes without it."""
    return dump_seal(payloads, len(plain), hashlib.sha256(plain).hexdigest())


def _seal_beside(
    path: Path,
    target: Path,
    data: bytes,
    payloads: Sequence[PayloadEntry],
    *,
    force: bool,
) -> bytes:
    """Return the bytes of the file beside a model."""
    content = f"{_make_text(data, payloads)}\n".encode()
    if _read_manifests(ModelProto.FromString(data)):
        raise InvalidArgument(
            f"{path.name} has a manifest of its own, so that one beside it would not "
            "be read.",
            path=path,
            hint="`epctx verify` checks it.",
        )
    if os.path.lexists(target) and not force and not _has_content(target, content):
        raise _difference_error(target.name, target)
    return content


def _seal_inside(
    path: Path, data: bytes, payloads: Sequence[PayloadEntry], *, force: bool
) -> bytes:
    """Return the bytes of the sealed model."""
    proto = ModelProto.FromString(data)
    manifests = _read_manifests(proto)
    plain = data
    seal = encode_seal(manifests.get(SEALED, ""))
    if SEALED in manifests and MANIFEST not in manifests and data.endswith(seal):
        plain = data.removesuffix(seal)
    elif manifests and force:
        _check_replaceable(path, manifests.get(MANIFEST, ""))
        remove_metadata(proto, manifests)
        plain = proto.SerializeToString()

    content = plain + encode_seal(_make_text(plain, payloads))
    if not manifests or force or content == data:
        return content
    if MANIFEST in manifests:
        raise InvalidArgument(
            f"{path.name} was compiled by epctx: its manifest has digests already.",
            path=path,
            hint=(
                "`epctx verify` checks them; --force (force=True) replaces the "
                "manifest with a seal."
            ),
        )
    raise _difference_error(f"the manifest in {path.name}", path)


def _check_replaceable(path: Path, text: str) -> None:
    """Check that a load needs nothing of a compile's manifest but digests; raise
    InvalidArgument otherwise.
    """
    stated: Any = None
    with suppress(ValueError):  # a damaged one is of no use to a load
        stated = json.loads(text)
    if isinstance(stated, dict) and (
        stated.get("source_weights") or stated.get("pending")
    ):
        raise InvalidArgument(
            f"{path.name} cannot be sealed: a load needs more of its manifest than "
            "digests.",
            path=path,
            hint="Compile it again; its manifest has digests already.",
        )


def _read_manifests(proto: ModelProto) -> dict[str, str]:
    """Return the manifests in a model's metadata, by key."""
    texts = {key: find_metadata(proto, key) for key in (MANIFEST, SEALED)}
    return {key: text for key, text in texts.items() if text is not None}


def _difference_error(name: str, path: Path) -> InvalidArgument:
    return InvalidArgument(
        f"{name} says something else of the model and its payloads than they are now.",
        path=path,
        hint=(
            "Find out which of them is right (`epctx verify`); --force (force=True) "
            "replaces the manifest."
        ),
    )


def _check_target(
    target: Path, path: Path, content: bytes, payloads: Sequence[PayloadEntry]
) -> None:
    """Check that a sealed model can be loaded where it is to lie, and breaks no cache.

    Raises:
        InvalidArgument: it cannot, or would.
    """
    problem = ""
    hint = "Seal it with --beside (beside=True)."
    folder = ModelFolder(target.parent, target)
    missing = [
        entry.name
        for entry in payloads
        if not entry.embedded and folder.status(entry.name, what=BINARY) is None
    ]
    if len(content) > MOST_BYTES:
        problem = "it would have more than the 2 GiB of a protobuf"
    elif target == path and target.is_symlink():
        problem = "it is a link, as in a cache of files that must not change"
    elif missing:
        problem = f"its folder does not have the context binary {missing[0]!r}"
        hint = "Copy it there first."
    if problem:
        raise InvalidArgument(
            f"{target} cannot be written: {problem}.", path=target, hint=hint
        )
