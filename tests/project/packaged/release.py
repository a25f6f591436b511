"""`make release`: builds what is published into `dist/`, and checks it in environments
that have nothing else.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from pathlib import Path

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from packaged.checks import check_core, check_together
from packaged.distributions import (
    BRIDGE,
    CORE,
    FOLDERS,
    ROOT,
    Environment,
    build,
    download,
)

MACHINES = ("x86_64-linux-gnu.2.17", "aarch64-linux-gnu.2.17")
"""Machines that have a wheel with a compiled library, as zig names them: manylinux."""


def main() -> None:
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    has_zig = importlib.util.find_spec("ziglang") is not None
    for name, folder in FOLDERS.items():
        for machine in MACHINES if name == BRIDGE and has_zig else ("",):
            build(folder, "wheel", dist, machine)
    build(ROOT, "sdist", dist)
    with tempfile.TemporaryDirectory() as temporary:
        libraries = Path(temporary, "libraries")
        download(libraries)
        core = Environment(Path(temporary, "core"), dist, libraries)
        core.install(CORE)
        check_core(core)
        everything = Environment(Path(temporary, "all"), dist, libraries)
        check_together(everything, Path(temporary, "work"))
    names = "\n".join(sorted(path.name for path in dist.iterdir()))
    sys.stdout.write(f"{names}\nchecked: {CORE} alone and {CORE}[all]\n")
    if not has_zig:
        sys.stdout.write(f"{BRIDGE} is for this machine alone: no ziglang\n")


if __name__ == "__main__":
    main()
