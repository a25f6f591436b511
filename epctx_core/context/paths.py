"""Opening of files that a model names; nothing else opens one.

A model contains file names: of context binaries, of external weights. They are
untrusted. A name is opened only if it stays in the model's folder (as given, or the
folder of the model's real path, so that models in caches made of links work), and what
is handed out is the open file, not a path to open again.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from epctx_core.errors import InvalidGraph
from epctx_core.file_names import check_file_name
from epctx_core.graph.mapping import OpenedFile

_HINT = "The file has to lie there as it was written. Fetch it again, or compile again."


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
        missing: OSError | None = None
        for root in self._roots:
            try:
                return self._open_inside(root, relative, owner, node)
            except FileNotFoundError as error:
                missing = error.with_traceback(None)  # it holds this frame: a cycle
        raise InvalidGraph(
            f"{owner} {name!r}, which is missing.",
            node=node,
            path=self.folder / relative,
            hint=hint
            or f"It has to lie in {str(self.folder)!r}, beside the model. Copy both, "
            "or compile again.",
        ) from missing

    def _open_inside(
        self, root: Path, relative: str, owner: str, node: str | None
    ) -> OpenedFile:
        path: str | Path = root / relative
        try:
            real = path = os.path.realpath(path)
            if not self._holds(real):
                raise InvalidGraph(
                    f"{owner} {relative!r}, a link that leaves the model's folder.",
                    node=node,
                    path=root / relative,
                    hint=(
                        "Only files inside the model's folder are opened. Copy the "
                        "file there."
                    ),
                )
            # O_NONBLOCK: a named pipe must not make a load wait for a writer.
            flags = (
                os.O_RDONLY
                | getattr(os, "O_NOFOLLOW", 0)
                | getattr(os, "O_NONBLOCK", 0)
            )
            descriptor = os.open(
                real, flags | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            )
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            # A link on its way may be exchanged meanwhile, too.
            raise InvalidGraph(
                f"{owner} {relative!r}, which cannot be opened: {error}.",
                node=node,
                path=path,
                hint=_HINT,
            ) from error
        with ExitStack() as stack:
            stack.callback(os.close, descriptor)
            if not stat.S_ISREG(os.fstat(descriptor).st_mode) or not self._holds(
                _locate(descriptor, real)
            ):
                raise InvalidGraph(
                    f"{owner} {relative!r}, which is not a regular file.",
                    node=node,
                    path=real,
                    hint=_HINT,
                )
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
