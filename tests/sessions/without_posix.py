"""Runs epctx in a process that has no more than Python has on another system.

`without_posix.py MISSING TASK FOLDER`, where the first is the JSON of what
`other_systems.list_missing` returned. Everything is taken away before epctx is imported.
`sys.platform` stays: the standard library would look for `nt` and `msvcrt`. So do the
processes that epctx starts: they are whole.
"""

from __future__ import annotations

import builtins
import errno
import importlib
import io
import json
import mmap
import multiprocessing  # noqa: F401 - see below
import os
import platform  # noqa: F401
import runpy
import shutil
import stat
import subprocess  # noqa: F401
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

# Libraries and parts of Python choose among the calls of this system by `sys.platform`,
# or while they are imported. Elsewhere they choose others, so what they do is no fault.
import numpy as np
import onnx
import onnxruntime  # noqa: F401

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FLAGS = __import__("fcntl")
"""Kept to tell how a descriptor was opened, for `fsync` as it is on Windows."""
LOOKS = [
    *(
        (os, name)
        for name in ("open", "stat", "lstat", "readlink", "listdir", "scandir")
    ),
    (io, "open"),
    (builtins, "open"),
]
"""Calls that look for a path, each with its module."""


def take_away(missing: Mapping[str, Sequence[str]], absent: Sequence[str]) -> None:
    """Remove from this process what another system's Python does not have: names of
    modules, and whole modules.
    """
    is_windows = "fcntl" in absent
    for name, lacking in missing.items():
        module = importlib.import_module(name)
        for each in lacking:
            if hasattr(module, each):
                delattr(module, each)
    # Importing such a module fails.
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    if is_windows:
        os.open, os.fsync, os.utime = _open, _sync, _utime
        mmap.mmap = WindowsMapping  # type: ignore[misc]
        # Windows has hard links on NTFS, but FAT, exFAT and many shares have none.
        del os.link
    for module, name in LOOKS:
        _hide_proc(module, name)
    if is_windows:
        # docs.python.org, `os`, "Files and Directories": these sets are what a system
        # supports. Windows has no `dir_fd`, opens no folder, and leaves a link alone in
        # `stat` only.
        os.supports_dir_fd = set()
        os.supports_fd = {os.stat, os.truncate}
        os.supports_follow_symlinks = {os.stat}

    # They choose by what `os` has, and have a way without it.
    importlib.reload(shutil)
    importlib.reload(tempfile)


def _hide_proc(module: object, name: str) -> None:
    """Let a call find nothing in /proc, which only Linux has."""
    real = getattr(module, name)

    def call(path: object = ".", *more: object, **named: object) -> object:
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if str(text).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return real(path, *more, **named)

    setattr(module, name, call)


def _open(
    path: str, flags: int, mode: int = 0o777, *, _real: object = os.open, **more: object
) -> int:
    """Open a file; a folder is refused, as Microsoft's `_wopen` does: "EACCES: ... or the
    given path is a directory" (learn.microsoft.com, C runtime library, `_open`).
    """
    if more.get("dir_fd") is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    descriptor = _real(path, flags, mode)  # type: ignore[operator]
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return descriptor


def _sync(file: object, *, _real: object = os.fsync) -> None:
    """Force a file to disk that is open for writing.

    docs.python.org, `os.fsync`: it is `_commit` on Windows, which calls
    FlushFileBuffers, and "the file handle must have the GENERIC_WRITE access right"
    (learn.microsoft.com). `_commit` then says EBADF.
    """
    flags = _FLAGS.fcntl(file, _FLAGS.F_GETFL)
    if flags & (os.O_WRONLY | os.O_RDWR) == 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    _real(file)  # type: ignore[operator]


def _utime(*args: object, _real: object = os.utime, **named: object) -> None:
    """Set times of what a link leads to: of the link itself, see
    `os.supports_follow_symlinks`, only where the system can.
    """
    if named.get("follow_symlinks", True) is False:
        raise NotImplementedError("utime: follow_symlinks unavailable on this platform")
    _real(*args, **named)  # type: ignore[operator]


class WindowsMapping(mmap.mmap):
    """Mapping as docs.python.org, `mmap`, has it in its "Windows version": `tagname`
    instead of `flags` and `prot`, no empty one, and no `madvise`.
    """

    def __new__(
        cls,
        fileno: int,
        length: int,
        tagname: str | None = None,
        access: int = mmap.ACCESS_DEFAULT,
        offset: int = 0,
    ) -> Self:
        assert tagname is None
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    @property
    def madvise(self) -> None:  # type: ignore[override]
        raise AttributeError("madvise")


def list_present(folder: Path) -> list[str]:
    """Return what can be used here of what only POSIX systems have."""
    names = ["link", "register_at_fork", "fork", "geteuid", "O_DIRECTORY", "O_NOFOLLOW"]
    present = [f"os.{name}" for name in names if hasattr(os, name)]
    for module in ("fcntl", "resource"):
        with suppress(ImportError):
            importlib.import_module(module)
            present.append(module)
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        present.append("fsync of a folder")
        os.close(descriptor)
    with suppress(OSError):
        os.stat("/proc")  # noqa: PTH116 - what is looked at is the call
        present.append("/proc")
    return present


def use(folder: Path) -> dict[str, object]:
    """Inspect, verify, load and run every model of a folder; store its outputs, and
    return the rest.
    """
    import epctx_core as epctx

    sys.path.append(str(Path(__file__).parent.parent))
    from sessions.path_ep import PathEp

    registry = epctx.Registry()
    registry.register(PathEp)
    seen = {}
    for path in sorted(folder.glob("*.onnx")):
        with np.load(folder / f"{path.stem}.npz") as stored:
            inputs = dict(stored)
        found = epctx.inspect_model(path, registry=registry)
        seen[path.stem] = {
            "valid": epctx.verify_model(path, registry=registry).ok,
            "files": sorted(found.required_files),
            "nodes": len(found.ep_contexts),
        }
        # The second load finds the receipts of the first.
        for number in range(2):
            with epctx.InferenceSession(path, registry=registry) as session:
                assert session.engine.startswith("onnxruntime"), session.engine
                outputs = session.run(None, inputs)
            np.savez(folder / f"{path.stem}.{number}.npz", *outputs)
    return seen


def type_commands(folder: Path) -> dict[str, object]:
    """Type commands for every model whose EP is installed; return the exit codes."""
    codes: dict[str, object] = {}
    for path in sorted(folder.glob("*.onnx")):
        if path.stem == "path":
            continue
        for command in ("inspect", "verify", "run"):
            sys.argv[1:] = [command, str(path)]
            try:
                runpy.run_module("epctx_core", run_name="__main__")
            except SystemExit as ended:
                codes[f"{command} {path.stem}"] = ended.code
    return codes


def compile_models(folder: Path) -> dict[str, object]:
    """Compile a model to bytes and through the cache, and store what came out; write
    files in every way, and return what errors say.
    """
    import epctx_core as epctx

    options = epctx.SessionOptions()
    options.add_provider("QNN")
    source = folder / "plain.onnx"
    compiler = epctx.ModelCompiler(options, source, embed_compiled_data_into_model=True)
    (folder / "bytes.onnx").write_bytes(compiler.compile_to_bytes())
    with (
        epctx.load_or_compile(source, options, cache_dir=folder / "cache") as session,
        np.load(folder / "plain.npz") as inputs,
    ):
        np.savez(folder / "cached.0.npz", *session.run(None, dict(inputs)))
    # Another tool's: without a manifest.
    foreign = onnx.load(folder / "beside.onnx")
    del foreign.metadata_props[:]
    onnx.save(foreign, folder / "foreign.onnx")
    ways = {
        "file": lambda: epctx.ModelCompiler(options, source).compile_to_file(
            folder / "new" / "m.onnx"
        ),
        "share group": lambda: epctx.ShareGroup(folder / "new").compile(
            source, options
        ),
        "seal": lambda: epctx.seal_model(folder / "foreign.onnx"),
    }
    refused = {}
    for way, write in ways.items():
        try:
            write()
        except epctx.EpctxError as error:
            refused[way] = f"{type(error).__name__}: {error}"
    return refused


def main(missing: str, task: str, folder: Path) -> None:
    """Do one task without what is missing; write what it returns to `TASK.json`."""
    take_away(*json.loads(missing))
    tasks = {"use": use, "type": type_commands, "compile": compile_models}
    result = {"present": list_present(folder), **tasks[task](folder)}
    (folder / f"{task}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
