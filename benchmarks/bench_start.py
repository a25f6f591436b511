"""Start-up: `import epctx_core`, and `epctx plugins list` with 400 distributions
installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import format_ratio, measure, report, seconds, show

DISTRIBUTIONS = 400
RUNS = 11


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
    listing = f"epctx plugins list, {DISTRIBUTIONS} distributions"
    children = {
        "interpreter": ("-c", "pass"),
        "import epctx_core": ("-c", "import epctx_core"),
        listing: ("-m", "epctx_core", "plugins", "list"),
    }
    measurement = measure(__file__, children, runs=RUNS)
    show(
        "whole processes (bars: import 10 ms beyond the interpreter; list 200 ms)",
        measurement,
    )
    for name in children:
        if name != "interpreter":
            ratio = measurement.ratio(name, "interpreter")
            print(f"\n{name} / interpreter = **{format_ratio(ratio)}**")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        spawn(*sys.argv[1:])
    else:
        main()
