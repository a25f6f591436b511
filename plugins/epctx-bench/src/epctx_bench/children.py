"""Measuring processes: the requests to them, which both sides read and write as JSON,
their start, and the typed error of one that fails.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from epctx_bench.settings import BenchSettings
from epctx_core.errors import Fail

_COMMAND = (sys.executable, "-P", "-m", "epctx_bench.child")
"""Without the current folder, which may hold a file named as a module."""
_FROM_START = (*_COMMAND[:2], "-c", "from epctx_bench.from_start import main; main()")
"""A module run by `-m` has modules of its own imported before it."""
_LONGEST_REASON = 2000
"""Characters of a process's last words in an error."""
_NOISE = re.compile(
    r"\x1b\[[0-9;]*[A-Za-z]|^Traceback \(most recent call last\):\n(?:[ \t].*\n)*",
    re.MULTILINE,
)
"""Colours, and the frames of a traceback, whose last line says what happened."""
_WORDS = {
    "describe": "describing EPs",
    "compile": "compiling",
    "load": "loading",
    "start": "starting with",
    "use": "running",
}


Task: TypeAlias = "Literal['describe', 'compile', 'load', 'start', 'use']"
"""Work of one process: describe EPs; compile; load only; load and run once, with all
imports; or load, run once, and go on running.
"""


Answer: TypeAlias = "dict[str, Any]"
"""Answer of a measuring process, by name."""
Rows: TypeAlias = "dict[str, dict[str, Any]]"
"""Numbers of one turn by row and name."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Work of one measuring process.

    Attributes:
        task: the work.
        engine: see `Column.engine`.
        model: path of the model that is compiled or loaded.
        output: path of the context model.
        eps: EP names, each with its options.
        settings: settings of the measurement.
        modules: modules to import before the clock runs.
        dropped: files to drop from the page cache before the clock runs.
    """

    task: Task
    engine: str
    model: str = ""
    output: str = ""
    eps: Sequence[tuple[str, Mapping[str, str]]] = ()
    settings: BenchSettings = field(default_factory=BenchSettings)
    modules: Sequence[str] = ()
    dropped: Sequence[str] = ()


def ask_child(request: Request) -> Answer:
    """Return the result of a fresh measuring process.

    Raises:
        Fail: the process failed, or did not end in time.
    """
    timeout = request.settings.child_timeout
    model = Path(request.model).name
    doing = f"{_WORDS[request.task]} {model}".rstrip()
    # Files, as a service that an EP leaves running would keep pipes open.
    with (
        tempfile.TemporaryFile("w+") as question,
        tempfile.TemporaryFile("w+") as answer,
        tempfile.TemporaryFile("w+", errors="replace") as said,
    ):
        json.dump(asdict(request), question)
        question.seek(0)
        command = [*_COMMAND]
        if request.task == "start":
            command = [*_FROM_START, str(time.monotonic()), request.engine]
        process = subprocess.Popen(  # noqa: S603 - this package's own module
            command,
            stdin=question,
            stdout=answer,
            stderr=said,
            # It imports onnxruntime itself.
            env={"ORT_DISABLE_TELEMETRY": "1", **os.environ},
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise Fail(
                f"{doing} with {request.engine} did not end within {timeout:g} "
                "seconds.",
                path=request.model,
                hint="Give the measuring processes more time (child_timeout).",
            ) from error
        finally:
            _end_group(process)

        answer.seek(0)
        if code == 0:
            result: Answer = json.load(answer)
            return result

        said.seek(0)
        words = _NOISE.sub("", said.read())
        reason = " ".join(words.split())[-_LONGEST_REASON:]
        raise Fail(
            f"{doing} with {request.engine} failed: its process "
            f"{_describe_end(code)} and said: {reason or 'nothing'}",
            path=request.model,
        )


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started, whether it is over or not."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _describe_end(code: int) -> str:
    if code < 0:
        return f"was ended by signal {-code}"
    return f"ended with {code}"
