"""What all code of a process shares, and an EP has to leave as it is. Knows no EP."""

from __future__ import annotations

import builtins
import gc
import hashlib
import locale
import logging
import os
import random
import signal
import socket
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def process_state() -> dict[str, str]:
    """Return everything that is watched, by what it is called, as text that is equal if it is."""
    return {name: repr(value) for name, value in _values().items()}


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Say what is different, each in a few words."""
    found = []
    for name in {**before, **after}:
        old, new = before.get(name, "nothing"), after.get(name, "nothing")
        if old != new:
            found.append(f"{name} ({old} became {new})" if len(old) + len(new) <= _SHORT else name)
    return found


_SHORT = 160


def _values() -> dict[str, Any]:
    root = logging.root
    return {
        **{f"the environment variable {name}": value for name, value in os.environ.items()},
        "the current folder": str(Path.cwd()),
        "the path of imports (sys.path)": list(sys.path),
        "the hooks of imports (sys.meta_path)": [type(finder).__name__ for finder in sys.meta_path],
        "the signal handlers": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "the root logger": (
            root.level,
            [repr(handler) for handler in root.handlers],
            logging.root.manager.disable,
        ),
        "the logger of epctx": (logging.getLogger("epctx").level, len(logging.getLogger("epctx").handlers)),
        "the filters of warnings": [str(entry) for entry in warnings.filters],
        "numpy's floating point errors": np.geterr(),
        "numpy's print options": sorted(np.get_printoptions().items(), key=str),
        "the random numbers of `random`": _short(random.getstate()),
        "the random numbers of `numpy.random`": _short(np.random.get_state()),  # noqa: NPY002
        "the locale": locale.setlocale(locale.LC_ALL),
        "the recursion limit": sys.getrecursionlimit(),
        "the garbage collector": (gc.isenabled(), gc.get_threshold()),
        "the exception hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "the trace and profile functions": (sys.gettrace(), sys.getprofile()),
        "the standard streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr)),
        "the builtins": (id(builtins.open), id(builtins.print), id(builtins.__import__)),
        "the default timeout of sockets": socket.getdefaulttimeout(),
        "the interval of thread switches": sys.getswitchinterval(),
    }


def _short(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
