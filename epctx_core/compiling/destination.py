"""Where a context model and its files go, and every reason why they cannot, found before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from unicodedata import normalize

from epctx_core.context.named_files import (
    binary_name,
    context_model_path,
    free_name,
    is_plain_name,
    models_naming,
)
from epctx_core.context.paths import is_folder_name
from epctx_core.context.unfinished import canonical, folders_of, link_free, mode_of
from epctx_core.errors import Fail, InvalidArgument


def check_folder(folder: Path) -> None:
    """Raise unless files can be written into a folder; one that is missing will be created.

    Raises:
        InvalidArgument: it is no folder, or one cannot have this name here.
        Fail: it, or the folder that it would be created in, is not writable.
    """
    try:
        nearest = next(each for each in (folder, *folder.parents) if mode_of(each) is not None)
        why = "" if nearest.is_dir() else f"used: {str(nearest)!r} is not a folder"
    except (OSError, ValueError) as error:
        nearest, why = folder, f"created: {error}"
    for part in folder.relative_to(nearest).parts:
        check_name(part, folder)
    if why:
        raise InvalidArgument(
            f"the output folder {str(folder)!r} cannot be {why}.",
            path=folder,
            hint="Choose another output folder.",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Fail(
            f"the output folder {str(folder)!r} cannot be written: {str(nearest)!r} is not writable.",
            path=folder,
            hint="Change its permissions, or choose another output folder.",
        )


def is_one_file(target: Path, other: str | Path | None) -> bool:
    """Whether two paths lead to one file; one that is missing is none."""
    try:
        return other is not None and target.samefile(other)
    except OSError:  # one of them does not exist
        return False


def check_name(name: str, path: Path) -> None:
    """Raise InvalidArgument for a name that cannot be published."""
    try:
        canonical(name)
    except InvalidArgument as error:
        raise InvalidArgument(
            error.message, path=path, hint="Choose an output path with another name."
        ) from None


def is_utf8(name: str) -> bool:
    """Whether a name can stand in a model."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def points_to_folder(path: Path | str) -> InvalidArgument:
    """Return the error for an output path that means a folder."""
    return InvalidArgument(
        f"the context model's path {str(path)!r} should not point to a folder.",
        path=path,
        hint="Give the path of the file, such as folder/model_ctx.onnx.",
    )


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The output of a compile.

    Attributes:
        folder: where all files go; None if there is nothing that goes into files.
        model: the context model's file; None for bytes and streams.
        named_after: the path whose stem begins the binaries' names; None for the model's name, see `for_model`.
        binary_folder: of the binaries, relative to `folder`.
        initializers: the file for the initializers that stay; None for none.
        source: the model that is compiled, None for one from bytes.
        replace: whether a model that is there already may be replaced.
        reads: the files that the source's weights lie in. None of them is ever written over.
        kept: the binaries of nodes that the model has already; new ones get other names.
        carried: those of them that are written, too.
        fellows: the other models of its share group, which name the same binaries.
    """

    folder: Path | None
    model: str | None
    named_after: Path | None
    binary_folder: str = ""
    initializers: str | None = None
    source: Path | None
    replace: bool
    reads: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    fellows: tuple[Path, ...] = ()

    @property
    def path(self) -> Path | None:
        """The context model, None for bytes and streams."""
        return None if self.folder is None or self.model is None else self.folder / self.model

    def for_model(self, name: str, *, writes_binaries: bool) -> Destination:
        """Return where a model of that name goes; one for bytes or a stream has a folder if files go into it.

        Args:
            name: what payloads are named after if nothing else says it.
            writes_binaries: whether payloads go into files: not those that are embedded or go to a callback.

        Raises:
            InvalidArgument: files and no folder for them.
        """
        if self.model is not None:
            return self
        needed = writes_binaries or self.initializers is not None
        if self.folder is None and needed:
            raise InvalidArgument(
                "the context model is handed over as bytes, and nothing says where its "
                f"{'binary' if writes_binaries else 'initializers'} should go.",
                hint="Set the session option 'ep.context_file_path' to the path that the model would have, or call "
                "set_ep_context_binary_information; or "
                + (
                    "embed payloads (embed_compiled_data_into_model=True), or take them by set_ep_context_data_write_func."
                    if writes_binaries
                    else "leave out the file for initializers, which are in the model then."
                ),
            )
        return replace(
            self,
            folder=self.folder if needed else None,
            named_after=self.named_after or Path(f"{name if is_plain_name(name) else 'model'}.onnx"),
        )

    def named_as(self, other: Destination) -> Destination:
        """Return this destination with the names of another's binaries."""
        return replace(self, named_after=other.named_after, binary_folder=other.binary_folder)

    def binary_name(self, suffix: str, name: str | None = None) -> str:
        """Return an EP's binary as the model names it; see `epctx_core.context.paths`."""

        def named(name: str | None) -> str:
            plain = binary_name(self.named_after or Path(), suffix, name)
            return f"{self.binary_folder}/{plain}" if self.binary_folder else plain

        return free_name(named, name, {kept.casefold() for kept in self.kept})

    def check(self, binaries: Mapping[str, str]) -> None:
        """Raise if the model or its files cannot be written here.

        Args:
            binaries: EP type to the name of its binary.

        Raises:
            InvalidArgument: the path names a folder, the source itself or a file that it reads, a name
                cannot be written, or two EPs have one.
            Fail: the model exists and must not be replaced, the folder is not writable, or a file
                of that name belongs to another model.
        """
        self.check_place(binaries)
        self.check_model()
        for binary in (*binaries.values(), *self.carried):
            self.check_file(binary, "the context binary")
        if self.initializers is not None:
            self.check_file(self.initializers, "the file for initializers")

    def check_place(self, binaries: Mapping[str, str] = MappingProxyType({})) -> None:
        """Raise for what is wrong with the output whatever the source holds; see `check`."""
        if self.folder is None:
            return
        if self.path is not None and is_folder_name(self.path):
            raise points_to_folder(self.path)
        check_folder(self.folder)
        self._check_names(self.folder, binaries)
        self._refuse_existing()

    def check_model(self) -> None:
        """Raise if the model exists and must not be replaced, or is a file of another; see `check`."""
        path = self.path
        if path is None:
            return
        self._refuse_existing()
        self._keep_source(path)
        # What another model names is its weights or its binary, and that is no model.
        if path.suffix != ".onnx" and path.exists():
            self._refuse_owned(path, "the file")

    def _refuse_existing(self) -> None:
        path = self.path
        if path is None:
            return
        if is_one_file(path, self.source):
            raise InvalidArgument(
                f"the context model's path {str(path)!r} is the source model itself.",
                path=path,
                hint="Choose another path: the source would be lost.",
            )
        if not self.replace and path.exists():
            raise Fail(
                f"the context model {str(path)!r} exists already.",
                path=path,
                hint="Remove it, or choose another output path.",
            )

    def check_file(self, name: str, what: str) -> None:
        """Raise if a file of that name is there and belongs to another model, or to the source; `what` is it called."""
        target = (self.folder or Path()) / name
        if target.exists():
            self._keep_source(target)
            self._refuse_owned(target, what)

    def _check_names(self, folder: Path, binaries: Mapping[str, str]) -> None:
        """Raise InvalidArgument for a name that could not be written, or that two files would have."""
        owners: dict[str, str] = {}
        names = [
            ("the context model", self.model),
            *binaries.items(),
            *((f"the payload {name!r}", name) for name in self.carried),
            ("the initializers", self.initializers),
        ]
        for owner, name in names:
            if name is None:
                continue
            path = folder / name
            check_name(name, path if self.path is None else self.path)
            if not is_utf8(name) and name != self.model:
                raise InvalidArgument(
                    f"the file for {owner} would be called {name!r}, which no model can name: it is not UTF-8.",
                    path=path,
                    ep=owner if owner in binaries else None,
                    hint="Choose an output path with another name, or set ep.context_embed_mode=1.",
                )
            # Folders that do not tell apart cases, or two spellings of one letter, are common enough.
            other = owners.setdefault(normalize("NFC", canonical(name)).casefold(), owner)
            if other != owner:
                raise InvalidArgument(
                    f"{other} and {owner} would both write the file {name!r}.",
                    path=path,
                    ep=owner if owner in binaries else None,
                    hint="Choose other names, set ep.context_embed_mode=1, or compile with one EP.",
                )
            if link_free(folder, canonical(name)) is None:
                raise InvalidArgument(
                    f"the file {name!r} cannot be written: a folder on its way is a link or no folder.",
                    path=path,
                    hint="Use sub-folders that really lie in the output folder.",
                )
            for sub in folders_of(canonical(name)):
                if (folder / sub).exists():
                    check_folder(folder / sub)

    def _keep_source(self, target: Path) -> None:
        """Raise InvalidArgument if a target is one of the files that the model being compiled consists of."""
        if any(is_one_file(target, file) for file in (self.source, *self.reads)):
            name = "the model" if self.source is None else repr(self.source.name)
            raise InvalidArgument(
                f"the file {target.name!r} would be written, but {name}, which is being compiled, reads it.",
                path=target,
                hint="Choose an output path with another name or in another folder: the source would be lost.",
            )

    def _refuse_owned(self, target: Path, what: str) -> None:
        """Raise Fail if a model in the target's folder, or in one between it and ours, names the target."""
        name, above = target.name, target.parent
        while True:
            own = {path for path in (self.path, *self.fellows) if path is not None}
            owner = next(models_naming(above, name, besides=own), None)
            if owner is not None:
                grouped = (
                    f"Compile the source of {owner.name!r} into the share group, too, or use another folder."
                )
                alone = "Choose an output path with another name, so that the binary gets another name too."
                raise Fail(
                    f"{what} {target.name!r} in {str(target.parent)!r} belongs to {owner.name!r}.",
                    path=target,
                    hint=grouped if self.fellows else alone,
                )
            if above in (self.folder, above.parent):
                return
            name, above = f"{above.name}/{name}", above.parent


def destination_of(
    source: Path | None,
    output: str | None,
    *,
    replace: bool,
    binaries: Path | None = None,
    initializers: str | None = None,
    in_memory: bool = False,
) -> Destination:
    """Return where the context model of a source goes; see `Destination` for `replace` and `initializers`.

    Args:
        source: the model's path, None for one from bytes.
        output: what the host asked for; None for the default name beside the source.
        binaries: a model's file whose stem begins the binaries' names, in the folder where they go: the context
            model's or one below it, for bytes and streams any; None for beside the model.
        in_memory: whether the model is handed over as bytes or to a stream. Its files lie in one folder, from
            which it can be loaded again: that of `output`, else the one that `binaries` names.

    Raises:
        InvalidArgument: a model from bytes and no path given, a path that names a folder, or binaries outside
            of the model's folder.
    """
    path = None
    if output is not None:
        path = Path(output)
        # A name without an extension is mostly a folder that somebody forgot to make.
        if not path.suffix or is_folder_name(output):
            raise points_to_folder(output)
    elif source is not None and not in_memory:
        path = context_model_path(source)
    elif not in_memory:
        raise InvalidArgument(
            "the model was given as bytes, so there is no name for its context model.",
            hint="Give an output path, or set the session option 'ep.context_file_path'.",
        )
    home = path.parent if path is not None else binaries.parent if binaries else None
    return Destination(
        folder=home,
        model=None if path is None or in_memory else path.name,
        named_after=binaries or path,
        binary_folder=_inside(home, binaries.parent) if binaries and home else "",
        initializers=initializers,
        source=source,
        replace=replace,
    )


def _inside(home: Path, folder: Path) -> str:
    """Return a folder relative to the one that it must lie in, empty for that one itself."""
    relative = os.path.relpath(os.path.realpath(folder), os.path.realpath(home))
    if relative == ".." or relative.startswith(f"..{os.sep}"):
        raise InvalidArgument(
            f"the folder for binaries {str(folder)!r} is not inside {str(home)!r}, the context model's folder.",
            path=folder,
            hint="Name that folder or one below it: a model may only name files in its own folder.",
        )
    return "" if relative == "." else relative.replace(os.sep, "/")
