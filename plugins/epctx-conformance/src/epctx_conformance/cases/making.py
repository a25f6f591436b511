"""Onnx's own cases, made by a process beside the checks: that takes ten seconds, and
nothing of it depends on the plugin.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from epctx_conformance.cases.case import Case

Parts: TypeAlias = "Mapping[str, Sequence[Case]]"
"""Cases by the first letters of their names, as in `epctx_conformance.node_cases`."""


class CaseMaker:
    """Process that makes the cases.

    Args:
        folder: a folder of this user alone, for the result.
        full: True for all cases, not a sample.
    """

    def __init__(self, folder: Path, *, full: bool) -> None:
        self._result = folder / "cases.pickle"
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
        self._process: subprocess.Popen[bytes] | None = subprocess.Popen(  # noqa: S603 - this interpreter and this module
            [sys.executable, "-m", __name__, str(self._result), str(int(full))],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._parts: Parts | None = None

    def take(self) -> Parts | None:
        """Return the cases when they are made; None if that failed."""
        if self._process is not None:
            self._process.wait()
            self._process = None
            if self._result.exists():
                # Written by the process that was started above.
                self._parts = pickle.loads(self._result.read_bytes())  # noqa: S301
        return self._parts

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def has_another_cpu() -> bool:
    """Return whether such a process would not take time from the checks."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    return count > 1


def _make_whole(case: Case) -> Case:
    """Return a case that has its values already."""
    return replace(
        case, model=partial(bytes, case.model()), data=partial(list, case.data())
    )


def main() -> None:
    """Make the cases and store them."""
    from epctx_conformance.node_cases import choose_parts

    result = Path(sys.argv[1])
    parts = {
        letters: [_make_whole(case) for case in cases]
        for letters, cases in choose_parts(full=sys.argv[2] == "1").items()
    }
    partly = result.with_suffix(".part")
    partly.write_bytes(pickle.dumps(parts))
    partly.rename(result)


if __name__ == "__main__":
    main()
