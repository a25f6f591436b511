"""Where a context model goes, and every reason why it cannot, found before anything is compiled."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from epctx_core.context.naming import binary_name, context_model_path, is_folder_name
from epctx_core.context.references import models_naming, names_binary
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The output file of a compile.

    Attributes:
        path: the context model.
        source: the model that is compiled, None for one from bytes.
        replace: whether a model that is there already may be replaced.
    """

    path: Path
    source: Path | None
    replace: bool

    @property
    def folder(self) -> Path:
        """Where all files go."""
        return self.path.parent

    def binary_name(self, suffix: str, name: str | None = None) -> str:
        """Return the name of an EP's binary; see `epctx_core.context.naming`."""
        return binary_name(self.path, suffix, name)

    def check(self, binaries: Iterable[str]) -> None:
        """Raise if the model or its binaries cannot be written here.

        Raises:
            InvalidArgument: the path names a folder, or the source itself.
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
        if not self.folder.is_dir():
            raise NoSuchFile(
                f"the output folder {str(self.folder)!r} does not exist.",
                path=self.folder,
                hint="Make it first.",
            )
        if self.source is not None and self.path.exists() and self.path.samefile(self.source):
            raise InvalidArgument(
                f"the context model's path {str(self.path)!r} is the source model itself.",
                path=self.path,
                hint="Choose another path: the source would be lost.",
            )
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise Fail(f"the output folder {str(self.folder)!r} is not writable.", path=self.folder)
        self.check_model()
        for binary in binaries:
            self.check_binary(binary)

    def check_model(self) -> None:
        """Raise Fail if the model exists and must not be replaced."""
        if not self.replace and self.path.exists():
            raise Fail(
                f"the context model {str(self.path)!r} exists already.",
                path=self.path,
                hint="Remove it, or choose another output path.",
            )

    def check_binary(self, binary: str) -> None:
        """Raise Fail if a binary of that name is there and belongs to another model."""
        if not (self.folder / binary).exists():
            return
        if self.path.exists() and _names(self.path, binary):
            return
        owner = next((m for m in models_naming(self.folder, binary) if m != self.path), None)
        if owner is not None:
            raise Fail(
                f"the context binary {binary!r} in {str(self.folder)!r} belongs to {owner.name!r}.",
                path=self.folder / binary,
                hint="Choose an output path with another name, so that the binary gets another name too.",
            )


def _names(model: Path, binary: str) -> bool:
    try:
        return names_binary(model, binary)
    except Exception:  # noqa: BLE001 - whatever is wrong with an unreadable old model, it names nothing
        return False


def session_destination(model: Path | None, option: str | None) -> Destination:
    """Return where the session-option route writes; it never replaces.

    Raises:
        InvalidArgument: a model from bytes, and no path given.
    """
    if option is None and model is None:
        raise InvalidArgument(
            "the model was given as bytes, so there is no name for its context model.",
            hint="Set the session option 'ep.context_file_path'.",
        )
    return _destination(option, model, replace=False)


def compiler_destination(
    model: Path | None, output: str | os.PathLike[str] | None, *, replace: bool
) -> Destination:
    """Return where `ModelCompiler.compile_to_file` writes.

    Raises:
        InvalidArgument: a model from bytes, and no path given.
    """
    if output is None and model is None:
        raise InvalidArgument(
            "the model was given as bytes, so there is no name for its context model.",
            hint="Give output_model_path.",
        )
    return _destination(output, model, replace=replace)


def _destination(output: str | os.PathLike[str] | None, model: Path | None, *, replace: bool) -> Destination:
    if output is None:
        assert model is not None  # noqa: S101 - both callers checked
        return Destination(path=context_model_path(model), source=model, replace=replace)
    text = os.fspath(output)
    if not text or is_folder_name(text):
        raise InvalidArgument(
            f"the context model's path {text!r} should not point to a folder.",
            path=text,
            hint="Give the path of the file, such as folder/model_ctx.onnx.",
        )
    return Destination(path=Path(text), source=model, replace=replace)
