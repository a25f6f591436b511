"""Start-up: `import epctx_core`, and `epctx plugins list` with 400 distributions
installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import measure, report, seconds, show

DISTRIBUTIONS = 400


def spawn(*command: str) -> None:
    """Time a whole process."""
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
        report(
            s=seconds(
                lambda: subprocess.check_call(
                    [sys.executable, *command], env=environment, stdout=output
                )
            )
        )


def main() -> None:
    """Measure and print the table."""
    medians = measure(
        __file__,
        {
            "interpreter": ("-c", "pass"),
            "import epctx_core": ("-c", "import epctx_core"),
            f"epctx plugins list, {DISTRIBUTIONS} distributions": (
                "-m",
                "epctx_core",
                "plugins",
                "list",
            ),
        },
        runs=11,
    )
    show(
        "whole processes (bars: import 10 ms beyond the interpreter; list 200 ms)",
        medians,
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        spawn(*sys.argv[1:])
    else:
        main()
