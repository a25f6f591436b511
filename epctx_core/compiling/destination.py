"""Destination of a context model and its files: names, folder, and the checks that
refuse them before anything is compiled.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, BinaryIO, TypeAlias
from unicodedata import normalize

from epctx_core.context.callbacks import MemorySink
from epctx_core.context.dependencies import find_models_naming
from epctx_core.errors import Fail, InvalidArgument
from epctx_core.file_names import (
    find_free_name,
    is_folder_name,
    is_plain_name,
    is_utf8,
    list_parents,
    make_binary_name,
    make_context_model_path,
)
from epctx_core.frozen import dataclass
from epctx_core.graph.mapping import CHUNK
from epctx_core.publish.publication import Publication, parse_name

if TYPE_CHECKING:
    from epctx_core.compiling.initializers import InitializerPlacement
    from epctx_core.sessions.stages import Request


GraphsByModel: TypeAlias = "Mapping[str, tuple[Mapping[str, str], ...]]"
"""EP name to its partitions in each model of a share group: their names, and those of
their graphs in the payload.
"""


def is_one_file(target: Path, other: str | Path | None) -> bool:
    """Return whether two paths lead to one file; a missing one is not the same."""
    try:
        return other is not None and target.samefile(other)
    except OSError:  # one of them does not exist
        return False


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Output of a compile.

    Attributes:
        folder: folder of all files; None if nothing goes into files.
        model: the context model's file; None for bytes and streams.
        named_after: path whose stem begins the binaries' names; None for the model's
            name, see `resolve`.
        binary_folder: of the binaries, relative to `folder`.
        placement: placement of the initializers that stay.
        source: the model that is compiled, None for one from bytes.
        replace: whether a model that is there already may be replaced.
        source_files: the files that the source's weights lie in. None of them is ever
            written over.
        kept: the binaries of nodes that the model has already; new ones get other
            names.
        copied: those of them that are written, too.
        group_models: the models of its share group, which name the same binaries.
    """

    folder: Path | None
    model: str | None
    named_after: Path | None
    binary_folder: str = ""
    placement: InitializerPlacement
    source: Path | None
    replace: bool
    source_files: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    copied: tuple[str, ...] = ()
    group_models: tuple[Path | None, ...] = ()

    @property
    def path(self) -> Path | None:
        """Path of the context model, None for bytes and streams."""
        return (
            None
            if self.folder is None or self.model is None
            else self.folder / self.model
        )

    def resolve(self, name: str, *, writes_binaries: bool) -> Destination:
        """Return the destination of a model of that name; one for bytes or a stream has
        a folder if files go into it.

        Args:
            name: name for payloads if nothing else gives one.
            writes_binaries: whether payloads go into files: not those that are embedded
                or go to a callback.

        Raises:
            InvalidArgument: there are files and no folder for them.
        """
        if self.model is not None:
            return self
        needed = writes_binaries or self.placement.file is not None
        if self.folder is None and needed:
            raise InvalidArgument(
                "the context model is handed over as bytes, and nothing says where its "
                f"{'binary' if writes_binaries else 'initializers'} should go.",
                hint=(
                    "Set the session option 'ep.context_file_path' to the path that "
                    "the model would have, call set_ep_context_binary_information, "
                )
                + (
                    (
                        "embed payloads (embed_compiled_data_into_model=True), or "
                        "take them by set_ep_context_data_write_func."
                    )
                    if writes_binaries
                    else (
                        "or leave out the file for initializers, which are in the "
                        "model then."
                    )
                ),
            )
        return replace(
            self,
            folder=self.folder if needed else None,
            named_after=self.named_after
            or Path(f"{name if is_plain_name(name) else 'model'}.onnx"),
        )

    def binary_name(self, suffix: str, name: str | None = None) -> str:
        """Return an EP's binary as the model names it; see
        `epctx_core.context.paths`.
        """

        def named(name: str | None) -> str:
            plain = make_binary_name(self.named_after or Path(), suffix, name)
            return f"{self.binary_folder}/{plain}" if self.binary_folder else plain

        return find_free_name(named, name, {kept.casefold() for kept in self.kept})

    def check(self, binaries: Mapping[str, str]) -> None:
        """Raise if the model or its files cannot be written here.

        Args:
            binaries: EP name to the name of its binary.

        Raises:
            InvalidArgument: the path names a folder, the source itself or a file that
                it reads, a name cannot be written, or two EPs have one.
            Fail: the model exists and must not be replaced, the folder is not writable,
                or a file of that name belongs to another model.
        """
        self.check_path(binaries)
        self.check_model()
        for binary in (*binaries.values(), *self.copied):
            self.check_file(binary)
        if self.placement.file is not None:
            self.check_file(self.placement.file)

    def check_model(self) -> None:
        """Raise if the model's path is a file of another model; see `check`."""
        path = self.path
        if path is not None:
            self._refuse_source(path)
            # A file that another model names holds weights or payloads: it is not a
            # model.
            if path.suffix != ".onnx" and path.exists():
                self._refuse_owned(path)

    def check_file(self, name: str) -> None:
        """Raise if a file of that name is there and belongs to another model, or to the
        source.
        """
        target = (self.folder or Path()) / name
        if target.exists():
            self._refuse_source(target)
            self._refuse_owned(target)

    def check_path(self, binaries: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise for a mistake in the output that does not depend on the source; see
        `check`.
        """
        folder = self.folder
        path = self.path
        if folder is None:
            return
        Publication.check_folder(folder)
        self._check_names(folder, binaries)
        if path is None:
            return
        self._refuse_source(path)
        if not self.replace and path.exists():
            raise Fail(
                f"the context model {str(path)!r} exists already.",
                path=path,
                hint="Remove it, or choose another output path.",
            )

    def _check_names(self, folder: Path, binaries: Mapping[str, str]) -> None:
        """Raise for a name that cannot be written, or that two files would get; see
        `check`.
        """
        owners: dict[str, str] = {}
        names = [
            ("the context model", self.model),
            *binaries.items(),
            *((f"the payload {name!r}", name) for name in self.copied),
            ("the initializers", self.placement.file),
        ]
        for owner, name in names:
            if name is None:
                continue
            normal = parse_name(name, folder, self.path or folder / name)
            # Folders that do not tell apart cases, or two spellings of one letter, are
            # common enough.
            other = owners.setdefault(normalize("NFC", normal).casefold(), owner)
            problem = "" if other == owner else f"{other} and {owner} would both write"
            if not is_utf8(name) and name != self.model:
                problem = f"{owner} needs a name that is UTF-8, not that of"
            if problem:
                raise InvalidArgument(
                    f"{problem} the file {name!r}.",
                    path=folder / name,
                    ep=owner if owner in binaries else None,
                    hint=(
                        "Choose other names, or set ep.context_embed_mode=1, which "
                        "writes no binaries."
                    ),
                )
            for sub in list_parents(normal):
                if (folder / sub).exists():
                    Publication.check_folder(folder / sub)

    def _refuse_source(self, target: Path) -> None:
        """Raise InvalidArgument if a target is a file of the model that is being
        compiled.
        """
        if any(is_one_file(target, file) for file in (self.source, *self.source_files)):
            name = "the model" if self.source is None else repr(self.source.name)
            raise InvalidArgument(
                f"the file {target.name!r} would be written, but {name}, which is "
                "being compiled, reads it.",
                path=target,
                hint=(
                    "Choose an output path with another name or in another folder: "
                    "the source would be lost."
                ),
            )

    def _refuse_owned(self, target: Path) -> None:
        """Raise Fail if a model in the target's folder, or in a folder between that and
        ours, names the target.
        """
        for above in target.parents:
            owner = next(
                find_models_naming(
                    above,
                    target.relative_to(above).as_posix(),
                    besides=(self.path, *self.group_models),
                ),
                None,
            )
            if owner is not None:
                raise Fail(
                    f"the file {target.name!r} in {str(target.parent)!r} belongs to "
                    f"{owner.name!r}.",
                    path=target,
                    hint=(
                        "Choose an output path with another name or folder. Compile "
                        f"the source of {owner.name!r} into the share group, too, if "
                        "they are to share the file."
                    ),
                )
            if above == self.folder:
                return


@dataclass(eq=False)
class Outputs:
    """Files and payloads that one compile writes, from the first payload to the model.

    A payload is embedded, goes into a file, or to the host's write callback; the model
    goes into a file, or to a function that gets its bytes. Files get their names when
    the publication is committed, after all that the host hears of.

    Args:
        destination: destination of the files.
        publication: stages the files; None for an output without files.
        embedded: whether payloads are stored in the model.
        in_files: whether payloads go into files; without embedding them, they are for
            the host's write callback.
        final: False for a member of a share group: its binaries are written when the
            group ends.
        earlier: graphs of the group's models before this one.

    Attributes:
        files: the names of those that were opened so far, but for the model.
        in_memory: by name, the payloads for the host's write callback.
    """

    destination: Destination
    publication: Publication | None
    _: KW_ONLY
    embedded: bool = False
    in_files: bool = True
    final: bool = True
    earlier: GraphsByModel = field(default_factory=dict)
    files: list[str] = field(init=False, default_factory=list)
    in_memory: dict[str, MemorySink] = field(init=False, default_factory=dict)

    def open_payload(self, name: str) -> BinaryIO:
        """Open the file or buffer for a payload.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        if self.in_files:
            return self.create(name)
        sink = MemorySink()
        if not self.embedded:
            self.in_memory[name] = sink
        return sink

    def create(self, name: str) -> BinaryIO:
        """Open a file that the model names.

        Raises:
            Fail: a file of that name belongs to another model.
        """
        assert self.publication is not None  # noqa: S101 - see `Destination.resolve`
        file = self.publication.create(name)
        # Checked once the publication knows whether the name is free: a file that comes
        # later stays.
        self.destination.check_file(name)
        self.files.append(name)
        return file


def make_destination(
    source: Path | None,
    output: str | None,
    *,
    replace: bool,
    placement: InitializerPlacement,
    binaries: Path | None = None,
    in_memory: bool = False,
) -> Destination:
    """Return the destination for the context model of a source; see `Destination` for
    `replace` and `placement`.

    Args:
        source: the model's path, None for one from bytes.
        output: the path that the host gave; None for the default name beside the
            source.
        binaries: a model's file whose stem begins the binaries' names, in the folder
            where they go: the context model's or one below it, for bytes and streams
            any; None for beside the model.
        in_memory: whether the model is handed over as bytes or to a stream. Its files
            lie in one folder, from which it can be loaded again: that of `output`, else
            the one that `binaries` names.

    Raises:
        InvalidArgument: a model from bytes and no path given, a path that names a
            folder, or binaries outside of the model's folder.
    """
    path = None if source is None or in_memory else make_context_model_path(source)
    binaries = None if binaries is None else _leave_missing_folders(binaries)
    if output is not None:
        path = _leave_missing_folders(Path(output))
    elif path is None and not in_memory:
        raise InvalidArgument(
            "the model was given as bytes, so its context model has no name.",
            hint=(
                "Give an output path, or set the session option 'ep.context_file_path'."
            ),
        )

    target = path if output is None else output

    # A name without an extension is mostly a folder that somebody forgot to make.
    if (
        path is not None
        and target is not None
        and (not path.suffix or is_folder_name(target))
    ):
        raise InvalidArgument(
            f"the context model's path {str(target)!r} should not point to a folder.",
            path=target,
            hint="Give the path of the file, such as folder/model_ctx.onnx.",
        )

    home = path.parent if path is not None else binaries.parent if binaries else None
    return Destination(
        folder=home,
        model=None if path is None or in_memory else path.name,
        named_after=binaries or path,
        binary_folder=_get_relative_folder(home, binaries.parent)
        if binaries and home
        else "",
        placement=placement,
        source=source,
        replace=replace,
    )


def _leave_missing_folders(path: Path) -> Path:
    """Return a path without missing folders that a ".." leaves again: they will not be
    made, and no call of the system finds a file behind them.
    """
    if ".." in path.parts and not os.path.exists(path.parent):  # noqa: PTH110 - Path.exists raises for over-long names
        # What no path can have in it is refused later.
        with suppress(ValueError):
            return Path(os.path.realpath(path.parent), path.name)
    return path


def _get_relative_folder(home: Path, folder: Path) -> str:
    """Return a folder relative to the one that contains it, empty for that one
    itself.
    """
    relative = os.path.relpath(os.path.realpath(folder), os.path.realpath(home))
    if relative == ".." or relative.startswith(f"..{os.sep}"):
        raise InvalidArgument(
            f"the folder for binaries {str(folder)!r} is not inside {str(home)!r}, "
            "the context model's folder.",
            path=folder,
            hint=(
                "Name that folder or one below it: a model may only name files in its "
                "own folder."
            ),
        )
    return "" if relative == "." else relative.replace(os.sep, "/")


def report_writing(request: Request) -> Callable[[int], None]:
    """Return a function that counts the bytes of pieces that are about to be written,
    and reports every 8 MiB.

    It raises ModelLoadCanceled where the host asked to stop.
    """
    written = 0

    def count(size: int) -> None:
        nonlocal written
        request.cancel.raise_if_requested()
        written += size
        # True where a multiple was passed: EPs write pieces of any size.
        if written % CHUNK < size:
            request.progress("write", written, 0)

    return count
