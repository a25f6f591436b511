"""Single questions about a file that is to be written. Which files a compile writes is known to `destination`."""

from __future__ import annotations

import os
from pathlib import Path

from epctx_core.context.naming import is_folder_name
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile
from epctx_core.publish.names import canonical, folders_of, link_free


def check_folder(folder: Path) -> None:
    """Raise NoSuchFile or Fail unless files can be made in a folder."""
    if not is_folder_name(folder):
        raise NoSuchFile(
            f"the output folder {str(folder)!r} does not exist.", path=folder, hint="Make it first."
        )
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Fail(f"the output folder {str(folder)!r} is not writable.", path=folder)


def check_way(folder: Path, name: str) -> None:
    """Raise unless the sub-folders that a name lies in are folders, or can be made."""
    if link_free(folder, name) is None:
        raise InvalidArgument(
            f"the file {name!r} cannot be written: a folder on its way is a link or no folder.",
            path=folder / name,
            hint="Use sub-folders that really lie in the output folder.",
        )
    for sub in folders_of(name):
        if (folder / sub).exists():
            check_folder(folder / sub)


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
