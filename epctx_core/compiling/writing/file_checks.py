"""Single questions about a file that is to be written. Which files a compile writes is known to `destination`."""

from __future__ import annotations

import os
from pathlib import Path

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
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"the output folder {str(folder)!r} cannot be created: {error}.",
            path=folder,
            hint="Choose another output folder.",
        ) from error
    for part in folder.relative_to(nearest).parts:
        check_name(part, folder)
    if not nearest.is_dir():
        raise InvalidArgument(
            f"the output folder {str(folder)!r} cannot be used: {str(nearest)!r} is not a folder.",
            path=folder,
            hint="Choose another output folder.",
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise Fail(
            f"the output folder {str(folder)!r} cannot be written: {str(nearest)!r} is not writable.",
            path=folder,
            hint="Change its permissions, or choose another output folder.",
        )


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
