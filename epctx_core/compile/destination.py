"""Where a context model goes, and every reason why it cannot, found before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from epctx_core.context.naming import binary_name, context_model_path, is_folder_name
from epctx_core.context.references import models_naming, names_binary
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile
from epctx_core.publish.names import canonical


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The output file of a compile.

    Attributes:
        path: the context model.
        source: the model that is compiled, None for one from bytes.
        replace: whether a model that is there already may be replaced.
        reads: the files that the source's weights lie in. None of them is ever written over.
    """

    path: Path
    source: Path | None
    replace: bool
    reads: tuple[str, ...] = ()
    _own: dict[tuple[object, ...], bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def folder(self) -> Path:
        """Where all files go."""
        return self.path.parent

    def binary_name(self, suffix: str, name: str | None = None) -> str:
        """Return the name of an EP's binary; see `epctx_core.context.naming`."""
        return binary_name(self.path, suffix, name)

    def check(self, binaries: Mapping[str, str]) -> None:
        """Raise if the model or its binaries cannot be written here.

        Args:
            binaries: EP type to the name of its binary.

        Raises:
            InvalidArgument: the path names a folder, the source itself or a file that it reads, a name
                cannot be written, or two EPs have one.
            NoSuchFile: its folder does not exist.
            Fail: the model exists and must not be replaced, the folder is not writable, or a binary
                of that name belongs to another model.
        """
        if is_folder_name(self.path):
            raise InvalidArgument(
                f"the context model's path {str(self.path)!r} should not point to a folder.",
                path=self.path,
                hint="Give the path of the file, such as folder/model_ctx.onnx.",
            )
        if not is_folder_name(self.folder):
            raise NoSuchFile(
                f"the output folder {str(self.folder)!r} does not exist.",
                path=self.folder,
                hint="Make it first.",
            )
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise Fail(f"the output folder {str(self.folder)!r} is not writable.", path=self.folder)
        self._check_names(binaries)
        self.check_model()
        for binary in binaries.values():
            self.check_binary(binary)

    def check_model(self) -> None:
        """Raise if the model exists and must not be replaced; see `check`."""
        if _is_one_file(self.path, self.source):
            raise InvalidArgument(
                f"the context model's path {str(self.path)!r} is the source model itself.",
                path=self.path,
                hint="Choose another path: the source would be lost.",
            )
        self._keep_source(self.path)
        if not self.replace and self.path.exists():
            raise Fail(
                f"the context model {str(self.path)!r} exists already.",
                path=self.path,
                hint="Remove it, or choose another output path.",
            )
        # What another model names is its weights or its binary, and that is no model.
        if self.path.suffix != ".onnx" and self.path.exists():
            self._refuse_owned(self.path.name, "the file")

    def check_binary(self, binary: str) -> None:
        """Raise if a binary of that name is there and belongs to another model, or to the source."""
        if not (self.folder / binary).exists():
            return
        self._keep_source(self.folder / binary)
        if self._is_own(binary):
            return
        self._refuse_owned(binary, "the context binary")

    def _is_own(self, binary: str) -> bool:
        """Whether the model that would be replaced names a binary; asked once as long as that model stays."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        version = (binary, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if version not in self._own:
            self._own[version] = _names(self.path, binary)
        return self._own[version]

    def _check_names(self, binaries: Mapping[str, str]) -> None:
        """Raise InvalidArgument for a name that could not be written, or that two files would have."""
        _check_name(self.path.name, self.path)
        owners = {self.path.name.casefold(): "the context model"}
        for ep, binary in binaries.items():
            _check_name(binary, self.path)
            if not _is_utf8(binary):
                raise InvalidArgument(
                    f"the context binary would be called {binary!r}, which no model can name: it is not UTF-8.",
                    path=self.path,
                    ep=ep,
                    hint="Choose an output path with another name, or set ep.context_embed_mode=1.",
                )
            # Folders that do not tell cases apart are common enough.
            other = owners.setdefault(binary.casefold(), ep)
            if other != ep:
                raise InvalidArgument(
                    f"{other} and {ep} would both write the file {binary!r}.",
                    path=self.folder / binary,
                    ep=ep,
                    hint="Set ep.context_embed_mode=1, or compile with one of them.",
                )

    def _keep_source(self, target: Path) -> None:
        """Raise InvalidArgument if a target is one of the files that the model being compiled consists of."""
        if any(_is_one_file(target, file) for file in (self.source, *self.reads)):
            name = "the model" if self.source is None else repr(self.source.name)
            raise InvalidArgument(
                f"the file {target.name!r} would be written, but {name}, which is being compiled, reads it.",
                path=target,
                hint="Choose an output path with another name or in another folder: the source would be lost.",
            )

    def _refuse_owned(self, name: str, what: str) -> None:
        owner = next((m for m in models_naming(self.folder, name) if m != self.path), None)
        if owner is not None:
            raise Fail(
                f"{what} {name!r} in {str(self.folder)!r} belongs to {owner.name!r}.",
                path=self.folder / name,
                hint="Choose an output path with another name, so that the binary gets another name too.",
            )


def _is_one_file(target: Path, other: str | Path | None) -> bool:
    try:
        return other is not None and target.samefile(other)
    except OSError:  # one of them does not exist
        return False


def _check_name(name: str, path: Path) -> None:
    try:
        canonical(name)
    except InvalidArgument as error:
        raise InvalidArgument(
            error.message, path=path, hint="Choose an output path with another name."
        ) from None


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _names(model: Path, binary: str) -> bool:
    try:
        return names_binary(model, binary)
    except Exception:  # noqa: BLE001 - whatever is wrong with an unreadable old model, it names nothing
        return False


def destination_of(
    source: Path | None,
    output: str | os.PathLike[str] | None,
    *,
    replace: bool,
    reads: tuple[str, ...] = (),
) -> Destination:
    """Return where the context model of a source goes; see `Destination` for `replace` and `reads`.

    Args:
        source: the model's path, None for one from bytes.
        output: what the host asked for; None for the default name beside the source.

    Raises:
        InvalidArgument: a model from bytes and no path given, or a path that names a folder.
    """
    if output is None:
        if source is None:
            raise InvalidArgument(
                "the model was given as bytes, so there is no name for its context model.",
                hint="Give an output path, or set the session option 'ep.context_file_path'.",
            )
        return Destination(path=context_model_path(source), source=source, replace=replace, reads=reads)
    text = os.fspath(output)
    # A name without an extension is mostly a folder that somebody forgot to make.
    if not Path(text).suffix or is_folder_name(text):
        raise InvalidArgument(
            f"the context model's path {text!r} should not point to a folder.",
            path=text,
            hint="Give the path of the file, such as folder/model_ctx.onnx.",
        )
    return Destination(path=Path(text), source=source, replace=replace, reads=reads)
