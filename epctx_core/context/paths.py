"""Opening of files that a model names, which nothing else opens by their names; and the
copies of them that an unfinished publication has.

A model contains file names: of context binaries, of external weights. They are
untrusted. A name is opened only if it stays in the model's folder (as given, or the
folder of the model's real path, so that models in caches made of links work), and what
is handed out is the open file, not a path to open again.

What a publication left is found without its journal, whose names are not trusted
either.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from epctx_core.errors import InvalidGraph
from epctx_core.file_names import STAGING_PREFIX, check_file_name, normalise_path
from epctx_core.graph.mapping import READ_ONLY, OpenedFile

NEW = "new"
OLD = "old"
"""Folders of a staging folder: of files that wait for their names, and of those that
had them before.
"""
_NOTHING_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_UNREADABLE_HINT = (
    "Let this user read the file and search the folders on its way (chmod), or give "
    "them to this user (chown)."
)


class ModelFolder:
    """Folder in which a model's files lie.

    Args:
        folder: the folder as the caller gave it.
        model: the model file, if the model came from one.
    """

    def __init__(self, folder: Path, model: Path | None = None) -> None:
        self.folder = folder
        roots = [Path(os.path.realpath(folder))]
        if model is not None:
            roots.append(Path(os.path.realpath(model)).parent)
        self._roots = tuple(dict.fromkeys(roots))

    def status(
        self, name: str, *, what: str, node: str | None = None
    ) -> os.stat_result | None:
        """Return the status of the file that a name leads to now, None if `open` would
        refuse it.
        """
        relative = check_file_name(
            name, f"{node!r} names {what}" if node else what, node
        )
        # The folder may be a link that leads elsewhere now.
        for root in dict.fromkeys((Path(os.path.realpath(self.folder)), *self._roots)):
            with suppress(OSError, ValueError):
                real = os.path.realpath(root / relative)
                status = os.stat(real)  # noqa: PTH116 - as `open`, by the text of the real path
                return (
                    status
                    if self._holds(real) and stat.S_ISREG(status.st_mode)
                    else None
                )
        return None

    def open(
        self, name: str, *, what: str, node: str | None = None, hint: str = ""
    ) -> OpenedFile:
        """Open a file that a model names, for reading.

        Args:
            name: as in the model.
            what: the name's role in messages, such as "the context binary".
            node: the node or tensor that contains it.
            hint: what to do if the file is missing; by default, to copy it to the
                folder.

        Raises:
            InvalidGraph: the name is empty or leaves the folder, or there is no such
                regular file.
        """
        owner = f"{node!r} names {what}" if node else f"the model names {what}"
        relative = check_file_name(name, owner, node)
        fault = "is missing"
        cause: Exception | None = None
        for root in self._roots:
            try:
                return self._open_inside(root / relative)
            except (OSError, ValueError) as error:
                cause = error.with_traceback(None)  # it holds this frame: a cycle
                if not isinstance(error, FileNotFoundError):
                    fault = f"cannot be opened: {error}"
                    break
        if isinstance(cause, PermissionError):
            hint = _UNREADABLE_HINT
        raise InvalidGraph(
            f"{owner} {name!r}, which {fault}.",
            node=node,
            path=self.folder / relative,
            hint=hint
            or f"It must be in {str(self.folder)!r}, beside the model: copy both, or "
            "compile again.",
        ) from cause

    def _open_inside(self, path: Path) -> OpenedFile:
        real = os.path.realpath(path)
        if not self._holds(real):
            raise OSError("it is a link that leaves the model's folder")
        # A link on its way may be exchanged meanwhile, too.
        descriptor = os.open(real, READ_ONLY | getattr(os, "O_NOFOLLOW", 0))
        with ExitStack() as stack:
            stack.callback(os.close, descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not self._holds(
                _locate(descriptor, real)
            ):
                raise OSError("it is not a regular file")
            stack.pop_all()
        return OpenedFile(descriptor, real)

    def _holds(self, real: str) -> bool:
        return any(
            os.path.commonpath((real, base)) == str(base) for base in self._roots
        )


def _locate(descriptor: int, opened: str) -> str:
    """Return the path of an open file, whatever became of the path that was opened, as
    far as the system knows it.

    A folder on that path may have been a link just while the file was opened; only the
    descriptor knows.
    """
    with suppress(OSError):
        path = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - as text, as the rest
        if path.startswith("/"):
            return path
    with suppress(OSError):
        return os.path.realpath(opened)
    return "/"


def get_mode(path: Path) -> int | None:
    """Return the mode of a path (links not followed), None if nothing is there.

    Unlike `os.path.lexists`, an error other than "nothing there" is raised: taking it
    for "gone" would make a step that is still to do look done.
    """
    try:
        return os.lstat(path).st_mode
    except OSError as exc:
        if exc.errno in _NOTHING_THERE:
            return None
        raise


def is_file(path: Path) -> bool:
    """Return whether a path is a regular file, not a link."""
    mode = get_mode(path)
    return mode is not None and stat.S_ISREG(mode)


def resolve_without_links(root: Path, name: str) -> Path | None:
    """Return `root/name`, or None if a folder on the way is a link or not a folder.

    `root` itself is trusted.
    """
    path = root
    for part in name.split("/")[:-1]:
        path /= part
        mode = get_mode(path)
        if mode is not None and not stat.S_ISDIR(mode):
            return None
    return root / name


def list_staging_folders(folder: Path) -> list[Path]:
    """Return the staging folders in a folder, sorted; links of that name are not ours.

    Raises:
        OSError: the folder can't be listed.
    """
    with os.scandir(folder) as entries:
        folders = [
            e
            for e in entries
            if e.name.startswith(STAGING_PREFIX) and e.is_dir(follow_symlinks=False)
        ]
    return sorted(Path(e.path) for e in folders)


def find_interrupted_copies(folder: Path, name: str) -> Iterator[Path]:
    """Yield files that may hold the bytes of a name as a publication found them or will
    leave them.

    For a loader whose context model names other bytes than lie beside it: a publication
    is under way or was killed. The caller compares digests, since a staged file may be
    half written. If none matches, the publication has ended in between and the context
    model itself has to be read again. The kept bytes come first. Never raises: names
    that leave the folder, missing folders and files that vanish give nothing; links are
    not followed.

    Args:
        folder: the context model's folder.
        name: the name as the context model spells it, relative to the folder.
    """
    try:
        relative = normalise_path(name)
        folders = list_staging_folders(folder)
    except (
        OSError,
        ValueError,
    ):  # InvalidArgument is a ValueError; so is a zero byte in the folder
        return
    for staging in folders:
        for side in (OLD, NEW):
            with suppress(OSError):
                copy = resolve_without_links(staging, f"{side}/{relative}")
                if copy is not None and is_file(copy):
                    yield copy
