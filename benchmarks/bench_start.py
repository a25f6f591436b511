"""Start-up: `import epctx_core`, with and without what it leaves to the first session,
and `epctx plugins list` with 400 distributions installed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import format_ratio, measure, report, seconds, show

DISTRIBUTIONS = 400
RUNS = 11


def spawn(*command: str) -> None:
    """Time a whole process, and report its processor time."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(DISTRIBUTIONS if "plugins" in command else 0):
            info = Path(folder) / f"padding_{i}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: padding-{i}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text(
                f"[console_scripts]\npad{i} = padding:main\n"
            )
        environment = {**os.environ, "PYTHONPATH": folder}
        output = subprocess.DEVNULL
        elapsed = seconds(
            lambda: subprocess.check_call(
                [sys.executable, *command], env=environment, stdout=output
            )
        )
    # No other process was waited for.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report(s=elapsed, cpu_s=used.ru_utime + used.ru_stime)


def main() -> None:
    """Measure and print the table."""
    listing = f"epctx plugins list, {DISTRIBUTIONS} distributions"
    children = {
        "interpreter": ("-c", "pass"),
        "import epctx_core": ("-c", "import epctx_core"),
        # The import is lazy: most of it comes with the first session.
        "epctx_core.InferenceSession": (
            "-c",
            "import epctx_core; epctx_core.InferenceSession",
        ),
        "import onnxruntime": ("-c", "import onnxruntime"),
        listing: ("-m", "epctx_core", "plugins", "list"),
    }
    measurement = measure(__file__, children, runs=RUNS)
    show(
        "whole processes (bars: import 10 ms beyond the interpreter; list 200 ms)",
        measurement,
    )
    for name in children:
        if name != "interpreter":
            for figure in ("s", "cpu_s"):
                ratio = measurement.ratio(name, "interpreter", figure)
                print(f"\n{name} / interpreter, {figure} = **{format_ratio(ratio)}**")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        spawn(*sys.argv[1:])
    else:
        main()
