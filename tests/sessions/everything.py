"""Uses most of epctx once, and prints as JSON what of its host's process is different
afterwards.
"""

from __future__ import annotations

import contextlib
import gc
import json
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

import numpy as np
import onnx  # noqa: F401 - what libraries do when they are imported is not epctx's doing
import onnxruntime  # noqa: F401


def state():
    """Return what belongs to the host: name to value."""
    root, ours = logging.getLogger(), logging.getLogger("epctx")
    return {
        "working folder": str(Path.cwd()),
        "umask": _umask(),
        "environment": sorted(os.environ.items()),
        "warnings filters": [str(entry) for entry in warnings.filters],
        "signal handlers": [
            str(signal.getsignal(number)) for number in sorted(signal.valid_signals())
        ],
        "root logger": [
            str(root.handlers),
            root.level,
            root.disabled,
            logging.root.manager.disable,
        ],
        "epctx logger": [str(ours.handlers), ours.level, ours.propagate],
        "random": str(random.getstate()),
        "numpy's random": str(np.random.get_state()),  # noqa: NPY002 - this one is the process's
        "numpy's errors": str(np.geterr()),
        "import path": sys.path[:],
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "hooks": [str(sys.excepthook), str(sys.displayhook), str(threading.excepthook)],
        "recursion limit": sys.getrecursionlimit(),
        "collector": [gc.isenabled(), gc.get_freeze_count()],
        "locale": str(locale.setlocale(locale.LC_ALL)),
        "socket timeout": socket.getdefaulttimeout(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "files": sorted(path.name for path in Path().iterdir()),
    }


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def loggers():
    """Return the names of all loggers that there are."""
    return sorted(logging.root.manager.loggerDict)


def use_epctx(model, folder):
    """Compile for every simulated EP, load, run, look at and verify the result; also
    what goes wrong.
    """
    import epctx_core as epctx

    epctx.plugins()
    for ep in ("QNN", "OpenVINO", "VitisAI"):
        options = epctx.SessionOptions()
        options.add_provider(ep)
        options.add_provider("Nowhere", optional=True)
        context_model = folder / ep / "m_ctx.onnx"
        context_model.parent.mkdir()
        epctx.ModelCompiler(options, model).compile_to_file(context_model)
        with epctx.InferenceSession(context_model) as session:
            session.run(None, {"x": np.ones((2, 3), np.float32)})
            with contextlib.suppress(epctx.InvalidArgument):
                session.run(None, {"x": np.ones((5, 5), np.float32)})
        epctx.inspect_model(context_model)
        epctx.verify_model(context_model)
        epctx.get_model_compatibility(context_model, ep)
    with contextlib.suppress(epctx.NoSuchFile):
        epctx.InferenceSession(folder / "missing.onnx")
    epctx.refresh_plugins()


def misbehave(_model, _folder):
    """Do all that a guest must not, to show that it is noticed."""
    os.chdir("/")
    os.umask(0o77)
    os.environ["MADE_UP"] = "1"
    warnings.simplefilter("ignore")
    signal.signal(
        signal.SIGUSR1, signal.SIG_IGN
    )  # what a shell has ignored already would show nothing
    logging.basicConfig(level=logging.DEBUG)
    logging.getLogger("epctx").setLevel(logging.DEBUG)
    logging.getLogger("mine").info("hello")
    random.random()  # noqa: S311
    np.random.random()  # noqa: NPY002
    np.seterr(all="raise")
    sys.path.append("made_up")
    sys.stdout, sys.excepthook = open(os.devnull, "w"), print  # noqa: PTH123, SIM115
    sys.setrecursionlimit(5000)
    gc.disable()
    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    socket.setdefaulttimeout(1)
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def main(act, model, folder):
    before, known, out = state(), set(loggers()), sys.stdout
    act(Path(model), Path(folder))
    after = state()
    changed = sorted(name for name in before if before[name] != after[name])
    json.dump(
        {
            "changed": changed,
            "watched": sorted(before),
            "loggers": sorted(set(loggers()) - known),
        },
        out,
    )


if __name__ == "__main__":
    main({"use": use_epctx, "misbehave": misbehave}[sys.argv[1]], *sys.argv[2:])
