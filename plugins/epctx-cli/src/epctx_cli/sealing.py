"""Sealing: digests for a context model that another tool wrote, such as onnxruntime
with a vendor's EP.

They are a manifest without anything about sources and EPs: `epctx.sealed` in the
model's metadata, which is appended to the file, or the same text in a file beside it.
Loads and `verify_model` read both.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epctx_core import SessionOptions, __version__, default_registry
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, convert_errors
from epctx_core.ext import MappedFile, ModelFolder, Publication, Work

KEY = "epctx.sealed"
"""Key in the metadata of a sealed model."""
SUFFIX = ".epctx.json"
"""End of the name of a manifest beside its model."""
_COMPILED = "epctx.manifest"
_VERSION = 1
_BLOCK = 1 << 20
_MOST_BYTES = (1 << 31) - 1
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
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
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

    Example:
        >>> seal_model("resnet_ctx.onnx").payloads
        {'resnet_ctx_qnn.bin': (65536, '6f0d...')}
    """
    if not all(isinstance(each, (str, os.PathLike)) for each in (model, output or "")):
        raise InvalidArgument(
            f"a model to seal is a path, not {model!r:.80}, and so is the output."
        )
    path = Path(model)
    target = Path(model if output is None else output)
    if beside and output is not None:
        raise InvalidArgument(
            "a seal goes beside a model or into a copy of it, not both."
        )
    # Before any of it is read; what is no file is refused then.
    state = path.is_file() and _read_state(path)
    payloads = list(_list_payloads(path))
    data = path.read_bytes()
    if beside:
        sealed, place = _seal_beside(path, data, payloads, force=force)
    else:
        sealed = _seal_inside(path, data, payloads, force=force)
        place = target
        _check_target(target, path, sealed, payloads)
    written = not _has_content(place, sealed)
    if written:
        with Publication(place.parent) as publication:
            publication.create(place.name).write(sealed)
            if _read_state(path) != state:
                raise Fail(
                    f"{path.name} was replaced while it was sealed.",
                    path=path,
                    hint="Seal it again.",
                )
            publication.commit([place.name])
    roots = {
        payload["name"]: (payload["bytes"], payload["root"]) for payload in payloads
    }
    return SealReport(
        path=target, manifest=place if beside else None, written=written, payloads=roots
    )


def _read_state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _has_content(place: Path, content: bytes) -> bool:
    """Return whether a file has this content; one of another size is not read."""
    return (
        place.is_file()
        and place.stat().st_size == len(content)
        and place.read_bytes() == content
    )


def _list_payloads(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entry of each payload of a model, as its manifest has it.

    Raises:
        InvalidArgument: there is none.
    """
    folder = ModelFolder(path.parent, path)
    seen = set[tuple[str, bool]]()
    for record in (
        Work(path, SessionOptions(), default_registry, ()).open().context_nodes
    ):
        if not record.main_context:
            continue
        name = (
            record.name
            if record.embed_mode
            else posixpath.normpath(record.file_name or ".")
        )
        if (name, record.embed_mode) not in seen:
            seen.add((name, record.embed_mode))
            content: memoryview | MappedFile = memoryview(record.cache or b"")
            if record.cache and not record.embed_mode:
                with folder.open(
                    name, what="the context binary", node=record.name
                ) as file:
                    content = MappedFile(file.fileno(), file.path)
                _check_binary(content, record.name, path)
            entry = _make_payload_entry(name, content)
            if not entry["bytes"]:
                raise InvalidGraph(
                    f"the payload of EPContext node {record.name!r} is empty.",
                    node=record.name,
                    path=path,
                    hint="Fetch model and binary again, or compile again.",
                )
            yield entry
    if not seen:
        raise InvalidArgument(
            f"{path.name} has no EPContext node with a payload: there is nothing to "
            "seal.",
            path=path,
            hint="Seal the context model that a compile wrote (often *_ctx.onnx).",
        )


def _check_binary(content: MappedFile, node: str, path: Path) -> None:
    """Check, before any byte is digested, that a file can be a binary of a model.

    Raises:
        InvalidGraph: it is the model or its manifest, which sealing changes, or nearly
            all holes: digesting those takes as long as digesting data.
    """
    # Blocks are of 512 bytes, whatever the file system; Windows does not count them.
    stored = getattr(content.status, "st_blocks", content.size) * 512
    name = os.path.basename(content.path)  # noqa: PTH119 - a name, as the model has it
    if content.is_at(path) or content.is_at(path.with_name(path.name + SUFFIX)):
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


def _make_payload_entry(name: str, content: memoryview | MappedFile) -> dict[str, Any]:
    """Return the entry of a payload, embedded or in a file: digests of blocks of 1 MiB,
    and one over their list.
    """
    file = content if isinstance(content, MappedFile) else None
    view = content.view if isinstance(content, MappedFile) else content
    root = hashlib.sha256()
    segments = list[tuple[int, str]]()
    for start in range(0, len(view), _BLOCK):
        block = view[start : start + _BLOCK]
        segments.append((len(block), hashlib.sha256(block).hexdigest()))
        root.update(f"{start} {len(block)} {segments[-1][1]}\n".encode())
        if file is not None:
            file.forget(start, len(block))
    facts = {"name": name, "embedded": file is None, "bytes": len(view)}
    return {**facts, "root": root.hexdigest(), "segments": segments}


def _make_text(plain: bytes, payloads: Sequence[dict[str, Any]]) -> str:
    """Return the manifest of a model whose file has these bytes without it."""
    digest = hashlib.sha256(plain).hexdigest()
    content = {
        "version": _VERSION,
        "core": __version__,
        "source_model": "",
        "providers": {},
        "payloads": payloads,
        "sealed": {
            "by": f"epctx-cli {__version__}",
            "bytes": len(plain),
            "sha256": digest,
        },
    }
    return json.dumps(content, sort_keys=True, separators=(",", ":"))


def _seal_beside(
    path: Path, data: bytes, payloads: Sequence[dict[str, Any]], *, force: bool
) -> tuple[bytes, Path]:
    """Return the file beside a model: its bytes and its path."""
    place = path.with_name(path.name + SUFFIX)
    sealed = f"{_make_text(data, payloads)}\n".encode()
    if _read_manifests(data):
        raise InvalidArgument(
            f"{path.name} has a manifest of its own, so that one beside it would not "
            "be read.",
            path=path,
            hint="`epctx verify` checks it.",
        )
    if os.path.lexists(place) and not force and not _has_content(place, sealed):
        raise _difference(place.name, place)
    return sealed, place


def _seal_inside(
    path: Path, data: bytes, payloads: Sequence[dict[str, Any]], *, force: bool
) -> bytes:
    """Return the bytes of the sealed model."""
    from onnx import ModelProto

    own = _read_manifests(data)
    plain = data
    if own:
        entry = _make_entry(own.get(KEY, ""))
        if _COMPILED not in own and data.endswith(entry):
            plain = data.removesuffix(entry)
        elif force:
            _check_replaceable(path, own.get(_COMPILED, ""))
            proto = ModelProto.FromString(data)
            kept = [entry for entry in proto.metadata_props if entry.key not in own]
            del proto.metadata_props[:]
            proto.metadata_props.extend(kept)
            plain = proto.SerializeToString()
    sealed = plain + _make_entry(_make_text(plain, payloads))
    if own and sealed != data and not force:
        if _COMPILED in own:
            raise InvalidArgument(
                f"{path.name} was compiled by epctx: its manifest has digests already.",
                path=path,
                hint=(
                    "`epctx verify` checks them; --force (force=True) replaces the "
                    "manifest with a seal."
                ),
            )
        raise _difference(f"the manifest in {path.name}", path)
    return sealed


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


def _read_manifests(data: bytes) -> dict[str, str]:
    """Return the manifests in a model's metadata; protobuf gives bytes for one that is
    no text.
    """
    from onnx import ModelProto

    own = {
        e.key: e.value
        for e in ModelProto.FromString(data).metadata_props
        if e.key in {KEY, _COMPILED}
    }
    return {
        key: text if isinstance(text, str) else text.decode(errors="replace")
        for key, text in own.items()
    }


def _make_entry(text: str) -> bytes:
    """Return an entry of metadata as it stands in a model's file; it may be appended to
    one.
    """
    from onnx import ModelProto

    data: bytes = ModelProto(
        metadata_props=[{"key": KEY, "value": text}]
    ).SerializeToString()
    return data


def _difference(name: str, path: Path) -> InvalidArgument:
    return InvalidArgument(
        f"{name} says something else of the model and its payloads than they are now.",
        path=path,
        hint=(
            "Find out which of them is right (`epctx verify`); --force (force=True) "
            "replaces the manifest."
        ),
    )


def _check_target(
    target: Path, path: Path, sealed: bytes, payloads: Sequence[dict[str, Any]]
) -> None:
    """Check that a sealed model can be loaded where it is to lie, and breaks no cache.

    Raises:
        InvalidArgument: it cannot, or would.
    """
    problem = ""
    hint = "Seal it with --beside (beside=True)."
    missing = [
        payload["name"]
        for payload in payloads
        if not payload["embedded"]
        and ModelFolder(target.parent, target).status(
            payload["name"], what="the context binary"
        )
        is None
    ]
    if len(sealed) > _MOST_BYTES:
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
