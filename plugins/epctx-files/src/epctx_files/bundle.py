"""Model with the files that it names: opened, renamed, and published together.

Bytes of weights and binaries are never read: a file lies under its name already, gets a
hard link, or is copied by the system.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from epctx_core.errors import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
)
from epctx_core.ext import MappedFile, ModelFolder, Publication, parse_json
from epctx_files.manifests import (
    Manifest,
    encode_model,
    find_payloads,
    take_manifest,
)
from epctx_files.structure import (
    DEPENDENCIES,
    INITIALIZERS,
    find_file_name,
    find_location,
    find_metadata,
    find_parts,
    remove_metadata,
    set_metadata,
)

PathInput: TypeAlias = "str | os.PathLike[str]"

FileContent: TypeAlias = "MappedFile | list[memoryview]"
"""File that a model names; or the pieces of one that exists nowhere yet."""

MOST_BYTES: Final = (1 << 31) - 1
"""Length of the longest protobuf."""

_WEIGHTS = "external weights"
_BINARY = "the context binary"


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """File that a model names, or the model itself, as it was published.

    Attributes:
        name: relative to the model's folder.
        bytes: its length.
        how: `written`, `linked` (a hard link: no byte was copied), `copied`, or `kept`,
            as it lay there already.
    """

    name: str
    bytes: int
    how: str


@dataclass(frozen=True, kw_only=True)
class FilesReport:
    """Result of work on files.

    Attributes:
        model: the model that was written.
        files: it, and the files that it names.
        notes: sentences about what was left out or changed on the way.
    """

    model: Path
    files: tuple[WrittenFile, ...]
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the form that commands print with `--json`."""
        return {
            "model": str(self.model),
            "files": [
                {"name": file.name, "bytes": file.bytes, "how": file.how}
                for file in self.files
            ],
            "notes": list(self.notes),
        }


@dataclass(kw_only=True)
class Bundle:
    """Model with the files that it names.

    Attributes:
        path: where it was read; messages name it.
        model: changed in place by whoever works on it; weights in files stay there.
        parts: its graphs, nodes and tensors; `refresh` finds them anew.
        manifest: its manifest or its seal.
        files: by the name that the model has for it, each file opened. The model's own
            file is not among them.
    """

    path: Path
    model: ModelProto
    manifest: Manifest = field(default_factory=dict)
    files: dict[str, FileContent] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Find the parts of the model after a change of its structure."""
        self.parts = find_parts(self.model)

    def get_file(self, name: str) -> MappedFile:
        """Return the opened file of a name as the model spells it."""
        return cast("MappedFile", self.files[normalise(name)])

    @property
    def stem(self) -> str:
        """Name of the model's file without extension and `_ctx`."""
        return self.path.stem.removesuffix("_ctx")

    def list_names(self) -> Iterator[tuple[str, str, str]]:
        """Yield each file that the model names, with its role and the name of the node
        or tensor.
        """
        for node in self.parts.contexts:
            cache = find_file_name(node)
            if cache is not None:
                yield normalise(cache.s.decode(errors="replace")), _BINARY, node.name
        for tensor in self.parts.tensors:
            location = find_location(tensor)
            if location is not None:
                yield normalise(location.value), _WEIGHTS, tensor.name

    def rename_file(self, name: str, new: str) -> None:
        """Have the model name a file differently, in nodes, tensors and manifest."""
        self.files = {new if key == name else key: f for key, f in self.files.items()}
        for node in self.parts.contexts:
            cache = find_file_name(node)
            if cache is not None and normalise(cache.s.decode()) == name:
                cache.s = new.encode()
        for tensor in self.parts.tensors:
            location = find_location(tensor)
            if location is not None and normalise(location.value) == name:
                location.value = new

        for payload in find_payloads(self.manifest, name, embedded=False):
            payload["name"] = new
        text = find_metadata(self.model, INITIALIZERS)
        if text is not None and (stated := parse_json(text)).get("name") == name:
            stated["name"] = new
            compact = json.dumps(stated, separators=(",", ":"))
            set_metadata(self.model, INITIALIZERS, compact)


def normalise(name: str) -> str:
    """Return a file's name as all that mean it can spell it (`./a.bin`)."""
    return posixpath.normpath(name) if name else name


def read_bundle(path: PathInput) -> Bundle:
    """Read a model and open the files that it names.

    Args:
        path: the model.

    Raises:
        NoSuchFile: there is no such model.
        InvalidProtobuf: it is not one.
        InvalidGraph: a file that it names is missing or leaves its folder, or its
            manifest is damaged.
        Fail: it cannot be read.
    """
    given = Path(path)
    try:
        data = given.read_bytes()
    except (FileNotFoundError, IsADirectoryError) as error:
        raise NoSuchFile(f"there is no model {str(given)!r}.", path=given) from error
    except OSError as error:
        raise Fail(f"{given} cannot be read: {error.strerror}.", path=given) from error

    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidProtobuf(f"{given} is not an ONNX model.", path=given) from error
    if not model.HasField("graph"):
        raise InvalidProtobuf(f"{given} has no graph.", path=given)

    bundle = Bundle(path=given, model=model, manifest=take_manifest(given, model))
    folder = ModelFolder(given.parent, given)
    for name, role, owner in bundle.list_names():
        if name not in bundle.files:
            with folder.open(name, what=role, node=owner) as file:
                bundle.files[name] = MappedFile(file.fileno(), file.path)
    return bundle


def find_range(bundle: Bundle, tensor: TensorProto) -> tuple[MappedFile, int, int]:
    """Return the file of an external tensor, the offset and the length there.

    Raises:
        InvalidGraph: the numbers are none.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = bundle.get_file(entries["location"])
    offset = entries.get("offset") or "0"
    size = file.size
    length = entries.get("length") or (
        str(max(0, size - int(offset))) if offset.isdecimal() else ""
    )
    if not (offset.isdecimal() and length.isdecimal()) or (
        int(offset) + int(length) > size
    ):
        raise InvalidGraph(
            f"the weight {tensor.name!r} lies at {offset:.20} with {length:.20} bytes "
            f"in {entries['location']!r}, which has {size:,}.",
            node=tensor.name,
            path=bundle.path,
            hint="Fetch the model and its files again.",
        )
    return file, int(offset), int(length)


def publish(
    bundle: Bundle,
    output: PathInput,
    *,
    notes: Sequence[str] = (),
) -> FilesReport:
    """Write a model and the files that it names, all or none.

    A name that another file has in the folder is changed, unless the model that is
    replaced names it.

    Args:
        bundle: the model.
        output: its file; a missing folder is created.
        notes: for the report.

    Raises:
        InvalidArgument: the output is a folder, or the model has more than 2 GiB.
        Fail: the files cannot be written.
    """
    target = Path(output)
    if target.is_dir() or os.fspath(output).endswith(("/", os.sep)):
        raise InvalidArgument(
            f"{os.fspath(output)!r} is a folder, not a file.",
            path=target,
            hint="Name the model that is to be written in it.",
        )

    with Publication(target.parent) as publication:
        _rename_apart(bundle, target)
        data = _encode(bundle, target)
        written = [
            _place(publication, name, file, target.parent)
            for name, file in bundle.files.items()
        ]
        publication.create(target.name).write(data)
        publication.commit([target.name])
    model = WrittenFile(name=target.name, bytes=len(data), how="written")
    return FilesReport(model=target, files=(model, *written), notes=tuple(notes))


def _rename_apart(bundle: Bundle, target: Path) -> None:
    """Rename files whose name means another file where the model will lie."""
    replaced = set()
    with suppress(OSError, DecodeError, UnicodeDecodeError):
        old = Bundle(path=target, model=ModelProto.FromString(target.read_bytes()))
        replaced = {name for name, _, _ in old.list_names()}

    for name in list(bundle.files):
        file = bundle.files[name]
        status = None if isinstance(file, list) else file.status
        new = name
        number = 2
        while not _is_free(target, new, status, replaced):
            base, dot, suffix = name.rpartition(".")
            new = f"{base or suffix}_{number}{dot}{suffix if base else ''}"
            number += 1
        if new != name:
            bundle.rename_file(name, new)


def _is_free(
    target: Path, name: str, status: os.stat_result | None, replaced: set[str]
) -> bool:
    """Return whether a file may have a name: it has it, nobody has, or only the model
    that is replaced means it.
    """
    if name == target.name:
        return False
    try:
        there = (target.parent / name).stat()
    except OSError:
        return True
    return name in replaced or (status is not None and os.path.samestat(there, status))


def _place(
    publication: Publication,
    name: str,
    file: FileContent,
    folder: Path,
) -> WrittenFile:
    """Bring a file to its name, without reading it."""
    if isinstance(file, list):
        staged = publication.create(name)
        written = sum(staged.write(piece) for piece in file)
        return WrittenFile(name=name, bytes=written, how="written")

    if file.is_at(folder / name):
        return WrittenFile(name=name, bytes=file.size, how="kept")

    source = Path(file.path)
    if file.is_at(source) and publication.link(name, source):
        return WrittenFile(name=name, bytes=file.size, how="linked")

    publication.create(name).copy_mapped(file, 0, file.size)
    return WrittenFile(name=name, bytes=file.size, how="copied")


def _encode(bundle: Bundle, target: Path) -> bytes:
    """Return the bytes of the model, with its manifest and what it depends on."""
    model = bundle.model
    roles = {role for _, role, _ in bundle.list_names()}
    words = {
        "source_model": bool(bundle.manifest.get("source_weights")),
        "external_weights": _WEIGHTS in roles,
        "ep_context_binary": _BINARY in roles,
    }
    remove_metadata(model, {DEPENDENCIES})
    if bundle.parts.contexts:
        stated = ";".join(word for word, needed in words.items() if needed)
        set_metadata(model, DEPENDENCIES, stated)

    # Above it protobuf raises, and says neither why nor of which file.
    if (size := model.ByteSize()) > MOST_BYTES:
        raise InvalidArgument(
            f"{target} would have {size:,} bytes, and a protobuf has at most "
            f"{MOST_BYTES:,} (2 GiB).",
            path=target,
            hint="Leave payloads and weights in files of their own.",
        )
    return encode_model(model, bundle.manifest)
