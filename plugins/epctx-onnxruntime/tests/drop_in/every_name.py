"""Program that imports onnxruntime and uses every public name of it.

It prints the results as one JSON object. It runs unchanged under onnxruntime
(`python every_name.py`) and under the drop-in
(`python -m epctx_onnxruntime every_name.py`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

from uses import (  # noqa: F401  # noqa: F401
    bindings,
    compiling,
    devices,
    information,
    options,
    packages,
    sessions,
    values,
)
from uses.recording import USES


def main() -> None:
    """Run each use apart, in a folder of its own for all, and print what came of it."""
    results = {}
    done: dict[object, object] = {}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # All sessions after it use its threads, or fail.
        last = "set_global_thread_pool_sizes"
        for name, use in sorted(USES.items(), key=lambda item: item[0] == last):
            if use not in done:
                done[use] = run(use)
            results[name] = done[use]
        os.chdir(before)
    json.dump(results, sys.stdout)


def run(use) -> object:
    """Return the result of a use, or its error."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return json.loads(json.dumps(use()))
        except Exception as error:  # noqa: BLE001 - an error is a result
            if "--traceback" in sys.argv:
                traceback.print_exc()
            kinds = [cls.__module__.partition(".")[0] for cls in type(error).__mro__]
            return {
                "error": type(error).__name__,
                "message": str(error),
                "of epctx": "epctx_core" in kinds,
            }


if __name__ == "__main__":
    main()
