"""Model with the files that it names: opened, renamed, and published together.

Bytes of weights and binaries are never read: a file lies under its name already, gets a
hard link, or is copied by the system.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from epctx_core.errors import (
    EpctxError,
    Fail,
    InvalidArgument,
    InvalidGraph,
)
from epctx_core.ext import MappedFile, ModelFolder, Publication, parse_json
from epctx_files.manifests import (
    BESIDE,
    Manifest,
    encode_model,
    index_payloads,
    read_model,
)
from epctx_files.names import list_doubtful_texts
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

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

PathInput: TypeAlias = "str | os.PathLike[str]"

FileContent: TypeAlias = "MappedFile | list[memoryview]"
"""File that a model names; or the pieces of one that exists nowhere yet."""

MOST_BYTES: Final = (1 << 31) - 1
"""Length of the longest protobuf."""

_WEIGHTS = "external weights"
BINARY = "the context binary"
_MOST_DIGITS = 20


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """File that a model names, or the model itself, as it was published.

    Attributes:
        name: its name, relative to the model's folder.
        bytes: its length.
        how: `written`, `linked` (a hard link: no byte was copied), `copied`, or `kept`,
            as it lay there already.
    """

    name: str
    bytes: int
    how: Literal["written", "linked", "copied", "kept"]


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
            "files": [asdict(file) for file in self.files],
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
        files: by the name that the model has for it, each file.
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

    def list_files(self) -> Iterator[MappedFile]:
        """Yield the opened files, each once whatever its names."""
        files = [f for f in self.files.values() if isinstance(f, MappedFile)]
        yield from {file.identity: file for file in files}.values()

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
                yield normalise(cache.s.decode(errors="replace")), BINARY, node.name
        for tensor in self.parts.tensors:
            location = find_location(tensor)
            if location is not None:
                yield normalise(location.value), _WEIGHTS, tensor.name

    def rename_files(self, names: Mapping[str, str]) -> None:
        """Have the model name files differently, in nodes, tensors and manifest."""
        new = {name: other for name, other in names.items() if name != other}
        if not new:
            return
        self.files = {new.get(name, name): file for name, file in self.files.items()}
        for node in self.parts.contexts:
            cache = find_file_name(node)
            name = "" if cache is None else normalise(cache.s.decode())
            if cache is not None and name in new:
                cache.s = new[name].encode()
        for tensor in self.parts.tensors:
            location = find_location(tensor)
            if location is not None and normalise(location.value) in new:
                location.value = new[normalise(location.value)]

        for (name, embedded), payload in index_payloads(self.manifest).items():
            if not embedded and name in new:
                payload["name"] = new[name]
        stated = self.read_checksum()
        if stated.get("name") in new:
            stated["name"] = new[stated["name"]]
            compact = json.dumps(stated, separators=(",", ":"))
            set_metadata(self.model, INITIALIZERS, compact)

    def read_checksum(self) -> dict[str, Any]:
        """Return what the model states of its file for initializers, empty without one.

        Raises:
            InvalidGraph: the metadata is damaged.
        """
        text = find_metadata(self.model, INITIALIZERS)
        try:
            return {} if text is None else {**parse_json(text)}
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidGraph(
                f"the metadata {INITIALIZERS!r} of {self.path.name} are damaged: "
                f"{error!s:.200}.",
                path=self.path,
                hint="Fetch the model again, or compile again.",
            ) from error


def are_one_file(one: FileContent, other: FileContent) -> bool:
    """Return whether two files are one, whatever their names."""
    return (
        isinstance(one, MappedFile)
        and isinstance(other, MappedFile)
        and one.identity == other.identity
    )


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
    given = require_path(path)
    model, manifest = read_model(given)
    bundle = Bundle(path=given, model=model, manifest=manifest)
    _check_texts(bundle)
    folder = ModelFolder(given.parent, given)
    for name, role, owner in bundle.list_names():
        if name not in bundle.files:
            with folder.open(name, what=role, node=owner) as file:
                bundle.files[name] = MappedFile(file.fileno(), file.path)
    return bundle


def require_path(path: PathInput) -> Path:
    """Return a path of the host.

    Raises:
        InvalidArgument: it is none.
    """
    if not isinstance(path, (str, os.PathLike)) or "\0" in os.fspath(path):
        raise InvalidArgument(f"a model is a path, not {path!r:.80}.")
    return Path(path)


def _check_texts(bundle: Bundle) -> None:
    """Raise InvalidGraph if a name in a model is not UTF-8: protobuf gives it as
    bytes.
    """
    locations = (
        text
        for tensor in bundle.parts.tensors
        for entry in tensor.external_data
        for text in (entry.key, entry.value)
    )
    texts = chain(list_doubtful_texts(bundle.model, bundle.parts.graphs), locations)
    wrong = next((text for text in texts if isinstance(text, bytes)), None)
    if wrong is not None:
        raise InvalidGraph(
            f"{bundle.path.name} has a name that is not UTF-8: {wrong!r:.100}.",
            path=bundle.path,
            hint="Export the model again.",
        )


def find_range(bundle: Bundle, tensor: TensorProto) -> tuple[MappedFile, int, int]:
    """Return the file of an external tensor, the offset and the length there.

    Raises:
        InvalidGraph: the numbers are none.
    """
    entries = {entry.key: entry.value for entry in reversed(tensor.external_data)}
    file = bundle.get_file(entries["location"])
    offset = entries.get("offset") or "0"
    size = file.size
    length = entries.get("length") or (
        str(max(0, size - int(offset))) if _is_number(offset) else ""
    )
    if not (_is_number(offset) and _is_number(length)) or (
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


def _is_number(text: str) -> bool:
    """Return whether a text is a number of bytes; int() refuses very long ones."""
    return text.isdecimal() and len(text) < _MOST_DIGITS


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
        InvalidArgument: the output is a folder, the model has more than 2 GiB, or the
            seal of another one lies beside it.
        Fail: the files cannot be written.
    """
    target = require_path(output)
    if target.is_dir() or os.fspath(output).endswith(("/", os.sep)):
        raise InvalidArgument(
            f"{os.fspath(output)!r} is a folder, not a file.",
            path=target,
            hint="Name the model that is to be written in it.",
        )

    beside = target.with_name(target.name + BESIDE)
    if not bundle.manifest and os.path.lexists(beside):
        raise InvalidArgument(
            f"{beside} is the seal of another model: what is written to "
            f"{target.name} would not load.",
            path=beside,
            hint="Remove it, or name another output.",
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
    taken = {*bundle.files}
    replaced = _find_named(target) & taken
    for path in target.parent.glob("*.onnx") if replaced else ():
        if path.name != target.name:
            replaced -= _find_named(path)

    names: dict[str, str] = {}
    for name, file in bundle.files.items():
        status = None if isinstance(file, list) else file.status
        new = name
        number = 2
        while (new != name and new in taken) or not _is_free(
            target, new, status, replaced
        ):
            base, dot, suffix = name.rpartition(".")
            if not base:
                base = suffix
                suffix = ""
            new = f"{base}_{number}{dot}{suffix}"
            number += 1
        names[name] = new
        taken.add(new)
    bundle.rename_files(names)


def _find_named(path: Path) -> set[str]:
    """Return the files that a model names; none if it cannot be read."""
    with suppress(EpctxError):
        bundle = Bundle(path=path, model=read_model(path)[0])
        return {name for name, _, _ in bundle.list_names()}
    return set()


def _is_free(
    target: Path, name: str, status: os.stat_result | None, replaced: set[str]
) -> bool:
    """Return whether a file may have a name: it has it, nobody has, or only the model
    that is replaced means it.
    """
    if name in (target.name, target.name + BESIDE):
        return False
    try:
        there = (target.parent / name).stat()
    except OSError:
        return True
    if status is not None and os.path.samestat(there, status):
        return True
    return name in replaced


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
        if not file.is_at(source):
            raise Fail(
                f"{source} was replaced while it was linked.",
                path=source,
                hint="Let whatever writes it finish, then start again.",
            )
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
        "ep_context_binary": BINARY in roles,
    }
    remove_metadata(model, {DEPENDENCIES})
    if bundle.parts.contexts:
        stated = ";".join(word for word, needed in words.items() if needed)
        set_metadata(model, DEPENDENCIES, stated)

    # Above it protobuf raises, and says neither why nor of which file.
    check_length(target, model.ByteSize() + len(json.dumps(bundle.manifest)))
    return encode_model(model, bundle.manifest)


def check_length(target: Path, length: int) -> None:
    """Raise InvalidArgument if a model with so many bytes is no protobuf."""
    if length > MOST_BYTES:
        raise InvalidArgument(
            f"{target} would have {length:,} bytes, and a protobuf has at most "
            f"{MOST_BYTES:,} (2 GiB).",
            path=target,
            hint="Leave payloads and weights in files of their own.",
        )
