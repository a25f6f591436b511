"""How an operating system's error becomes a typed one; knows nothing of the steps of a publication."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epctx_core.errors import EpctxError, Fail


class NameTakenError(Fail):
    """Something lies at a name that a publication found free, or that it must not replace."""

    @classmethod
    def at(cls, path: Path) -> NameTakenError:
        """Return the error for a file that exists and is not replaced."""
        return cls(
            f"The output {path} exists already and was not replaced.",
            path=path,
            hint="Remove it, choose another output, or allow it to be replaced.",
        )


def failure(doing: str, folder: Path, exc: OSError) -> Fail:
    """Return the error for an operation that the system refused.

    Args:
        doing: what was tried, such as "renaming the files"; it completes the sentence.
        folder: the folder that is being published into.
        exc: what the system said; the caller makes it the cause.
    """
    where = f" ({exc.filename})" if exc.filename is not None else ""
    return Fail(
        f"Publishing into {folder} failed while {doing}: {exc.strerror or exc}{where}.",
        path=folder,
        hint=_hint(exc.errno, folder),
    )


@contextmanager
def reported(doing: str, folder: Path) -> Iterator[None]:
    """Turn every OSError of the block into a `Fail` that says what was being done."""
    try:
        yield
    except EpctxError:
        raise  # NoSuchFile is an OSError too, and already says what happened
    except OSError as exc:
        raise failure(doing, folder, exc) from exc


def _hint(code: int | None, folder: Path) -> str:
    if code in {errno.ENOSPC, errno.EDQUOT}:
        return "Free some space on that disk, or choose another output folder, then compile again."
    if code in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return f"Make {folder} writable for this user, or choose another output folder."
    if code == errno.ENOENT and folder.is_dir():
        return f"{folder} takes no new files, or something removes them. Choose another output folder."
    if code == errno.ENOENT:
        return "Something removed the folder meanwhile. Check that the folder exists, then compile again."
    return "Check the disk and the folder, then compile again."
