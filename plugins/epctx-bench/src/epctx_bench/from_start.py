"""Measuring process whose clocks run from its own start: imports, load and first run.

`python -c "from epctx_bench.from_start import main; main()" STARTED ENGINE` answers one
request, as `epctx_bench.child` does. Until the first result it imports what the
interpreter and the measured library need, and nothing else. The library comes before
the request: json, which onnxruntime does not need, then counts for epctx, which does.
"""

from __future__ import annotations

import os
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

    from epctx_core import SessionOptions

_LIBRARIES = {"epctx": "epctx_core"}
"""Engines to the modules that have their sessions, where the names differ."""
_ORT_ERRORS_ONLY = 3


class Clocks:
    """Seconds since a process was started, and its processor time.

    As a context manager it leaves out what a block takes.

    Args:
        started: `time.monotonic()` of the parent right before it started the process;
            it is one clock for all processes of a machine.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        # The system counts a process's time from its start.
        self._cpu = 0.0

    def read(self) -> tuple[float, float]:
        """Return seconds, and processor time of all threads."""
        return time.monotonic() - self._started, time.process_time() - self._cpu

    def __enter__(self) -> None:
        self._before = self.read()

    def __exit__(self, *_: object) -> None:
        seconds, cpu = self.read()
        before, cpu_before = self._before
        self._started += seconds - before
        self._cpu += cpu - cpu_before


def main() -> None:
    """Answer the request."""
    clocks = Clocks(float(sys.argv[1]))
    engine = sys.argv[2]
    answer = take_output()

    library = import_module(_LIBRARIES.get(engine, engine))
    # `epctx_core` imports what sessions need at the first use of the name.
    _ = library.InferenceSession
    with clocks:
        import json
        from types import SimpleNamespace

        asked = json.load(sys.stdin)
        settings = SimpleNamespace(**asked.pop("settings"))
        request = SimpleNamespace(settings=settings, **asked)
    session = prepare_session(request)()
    with clocks:
        from epctx_bench.inputs import make_inputs

        arguments = session.get_inputs()
        batch = settings.batch_sizes[0]
        feeds = make_inputs(arguments, seed=settings.seed, batch=batch)
    session.run(None, feeds)
    seconds, cpu_seconds = clocks.read()

    with answer:
        row = {"seconds": seconds, "cpu_seconds": cpu_seconds}
        json.dump({"rows": {"first_result_from_start": row}}, answer)


def take_output() -> TextIO:
    """Return standard output, for the answer alone: what native libraries print there
    goes to standard error from now on.
    """
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answer


def prepare_session(request: Any) -> Callable[[], Any]:
    """Return what creates a session of epctx, or one of onnxruntime on the CPU."""
    if request.engine in _LIBRARIES:
        from epctx_core import InferenceSession

        options = make_options(request)
        return lambda: InferenceSession(request.model, options)

    import onnxruntime

    native = onnxruntime.SessionOptions()
    native.log_severity_level = _ORT_ERRORS_ONLY
    fix_dimensions(native, request)
    return lambda: onnxruntime.InferenceSession(
        request.model, native, providers=["CPUExecutionProvider"]
    )


def make_options(request: Any) -> SessionOptions:
    """Return the session options with the request's EPs."""
    from epctx_core import SessionOptions

    options = SessionOptions()
    for key, value in request.settings.config.items():
        options.add_session_config_entry(key, value)
    fix_dimensions(options, request)
    for ep, values in request.eps:
        options.add_provider(ep, values)
    return options


def fix_dimensions(options: Any, request: Any) -> None:
    """Give open dimensions the request's lengths, in session options of epctx or
    onnxruntime.
    """
    for name, length in request.settings.free_dimensions.items():
        options.add_free_dimension_override_by_name(name, length)
