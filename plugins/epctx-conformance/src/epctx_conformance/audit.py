"""Side effects of an EP's Python code: on the machine, by an audit hook, and on its
process, whose states are compared.

An event counts as the EP's if code that belongs neither to Python nor to a library that
the core itself calls lies between it and the nearest code of the core. Native code
raises no events.
"""

from __future__ import annotations

import builtins
import gc
import hashlib
import importlib.util
import locale
import logging
import os
import random
import signal
import socket
import sys
import sysconfig
import threading
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from types import FrameType

_NEUTRAL_PACKAGES = (
    "google.protobuf",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnxruntime",
    "pluggy",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_KINDS = {
    **dict.fromkeys(
        (
            "os.chmod",
            "os.chown",
            "os.link",
            "os.mkdir",
            "os.remove",
            "os.rename",
            "os.rmdir",
            "os.symlink",
            "os.truncate",
            "os.utime",
        ),
        "write",
    ),
    **dict.fromkeys(
        (
            "socket.bind",
            "socket.connect",
            "socket.getaddrinfo",
            "socket.gethostbyaddr",
            "socket.gethostbyname",
            "socket.getnameinfo",
            "socket.sendmsg",
            "socket.sendto",
            "urllib.Request",
            "http.client.connect",
        ),
        "network",
    ),
    **dict.fromkeys(
        (
            "os.exec",
            "os.fork",
            "os.forkpty",
            "os.posix_spawn",
            "os.spawn",
            "os.startfile",
            "os.system",
            "pty.spawn",
            "subprocess.Popen",
        ),
        "program",
    ),
}
"""Kinds of side effects by event of Python's."""
_HARMLESS_DEVICES = frozenset(
    f"/dev/{name}"
    for name in ("null", "zero", "random", "urandom", "full", "tty", "stdout", "stderr")
)
_HARMLESS_FOLDERS = ("/dev/shm/", "/dev/fd/")  # noqa: S108 - looked at, not used
_SHORT = 160
"""Characters up to which a change is shown with both values."""
SCRATCH = "epctx-"
"""Prefix of the names of folders from `scratch()`."""


@dataclass
class Audit:
    """Recorder of what the EP does; one for each process, since a hook cannot be
    removed.

    Args:
        temporary: the folder for temporary files, in which `scratch()` makes folders.

    Attributes:
        phase: the present work of the EP.
        seen: phase, kind ("write", "network", "program", "device") and event.
    """

    temporary: str
    phase: str = ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._core = tuple(_find_folders(("epctx_core", __package__)))
        paths = sysconfig.get_paths()
        self._python = tuple({paths["stdlib"] + os.sep, paths["platstdlib"] + os.sep})
        self._libraries = tuple({paths["purelib"] + os.sep, paths["platlib"] + os.sep})
        self._neutral = ("<frozen ", *_find_folders(_NEUTRAL_PACKAGES))
        self._busy = False

    def install(self) -> None:
        """Begin to listen."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._busy or not self.phase:
            return
        self._busy = True
        try:
            kind = self._classify(event, arguments)
            if kind and self._is_of_the_ep(sys._getframe(1)):  # noqa: SLF001 - nothing else says whose event it is
                shown = ", ".join(str(a) for a in arguments[:2] if a is not None)
                self.seen.append((self.phase, kind, f"{event}({shown:.200})"))
        finally:
            self._busy = False

    def _classify(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        """Return the kind of side effect that an event is, or None for a harmless
        one.
        """
        if event == "open":
            return self._classify_open(*arguments[:3])
        kind = _KINDS.get(event)
        harmless = (kind == "write" and self._is_scratch(arguments[0])) or (
            event in {"socket.connect", "socket.bind"}
            and isinstance(arguments[1], str | bytes)
        )
        return None if harmless else kind

    def _classify_open(self, path: object, _mode: object, flags: object) -> str | None:
        if isinstance(path, int):
            return None
        name = os.path.abspath(os.fsdecode(path))  # type: ignore[arg-type]  # noqa: PTH100 - also of bytes
        if name.startswith("/dev/"):
            return (
                None
                if name in _HARMLESS_DEVICES or name.startswith(_HARMLESS_FOLDERS)
                else "device"
            )
        writes = isinstance(flags, int) and flags & _WRITING
        return "write" if writes and not self._is_scratch(name) else None

    def _is_scratch(self, path: Any) -> bool:
        # A file that is changed through its descriptor was judged when it was opened.
        if isinstance(path, int):
            return True
        name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - also of bytes
        return name.startswith(str(Path(self.temporary) / SCRATCH))

    def _is_of_the_ep(self, frame: FrameType | None) -> bool:
        """Return whether code of the EP or of its libraries lies between an event and
        the core.
        """
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(self._core):
                return False
            standard = file.startswith(self._python) and not file.startswith(
                self._libraries
            )
            if not standard and not file.startswith(self._neutral):
                return True
            frame = frame.f_back
        return False


def _find_folders(packages: tuple[str, ...]) -> list[str]:
    folders = []
    for package in packages:
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        if spec is not None:
            folders += [
                folder + os.sep for folder in spec.submodule_search_locations or ()
            ]
    return folders


def process_state() -> dict[str, str]:
    """Return everything that is watched, by name, as text that is equal if it is."""
    root = logging.root
    values: dict[str, Any] = {
        **{
            f"the environment variable {name}": value
            for name, value in os.environ.items()
        },
        "the current folder": str(Path.cwd()),
        "the path of imports (sys.path)": list(sys.path),
        "the hooks of imports (sys.meta_path)": [
            type(finder).__name__
            for finder in sys.meta_path
            # A dependency of the core, which the EP may be the first to import.
            if type(finder).__module__ != "importlib_metadata"
        ],
        "the signal handlers": [
            str(signal.getsignal(number)) for number in sorted(signal.valid_signals())
        ],
        "the root logger": (
            root.level,
            [repr(handler) for handler in root.handlers],
            logging.root.manager.disable,
        ),
        "the logger of epctx": (
            logging.getLogger("epctx").level,
            len(logging.getLogger("epctx").handlers),
        ),
        "the filters of warnings": [str(entry) for entry in warnings.filters],
        "numpy's floating point errors": np.geterr(),
        "numpy's print options": sorted(np.get_printoptions().items(), key=str),
        "the random numbers of `random`": _shorten(random.getstate()),
        "the random numbers of `numpy.random`": _shorten(np.random.get_state()),  # noqa: NPY002
        "the locale": locale.setlocale(locale.LC_ALL),
        "the recursion limit": sys.getrecursionlimit(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold()),
        "the exception hooks": (
            sys.excepthook,
            threading.excepthook,
            sys.unraisablehook,
        ),
        "the trace and profile functions": (sys.gettrace(), sys.getprofile()),
        "the standard streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr)),
        "the builtins": (
            id(builtins.open),
            id(builtins.print),
            id(builtins.__import__),
        ),
        "the default timeout of sockets": socket.getdefaulttimeout(),
        "the interval of thread switches": sys.getswitchinterval(),
    }
    return {name: repr(value) for name, value in values.items()}


def describe_changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Describe what is different, each in a few words."""
    changes = []
    for name in {**before, **after}:
        old = before.get(name, "nothing")
        new = after.get(name, "nothing")
        if old != new:
            changes.append(
                f"{name} ({old} became {new})"
                if len(old) + len(new) <= _SHORT
                else name
            )
    return changes


def _shorten(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
