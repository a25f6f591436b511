"""Compiles the library that onnxruntime loads, for a wheel and for an editable install.

The compiler is that of the environment variable CC, else `cc`, else `ziglang`, which
makes the wheels of a release: `EPCTX_TARGET=aarch64-linux-gnu.2.17` is zig's name of
the machine that a wheel is for. Without a compiler there is no library, and
`get_library_path()` then says so; the rest of the package needs none.

Only an editable install writes into the source tree, from which Python imports it. A
wheel's library may be for another machine, and is compiled in a temporary folder.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "onnxruntime_ep_epctx/libonnxruntime_ep_epctx.so"
FLAGS = ("-std=c11", "-O2", "-Wall", "-Wextra", "-fPIC", "-fvisibility=hidden")
LINKER_FLAGS = ("-shared", "-s", "-ldl")


def find_compiler(target: str) -> list[str]:
    """Return the command of a C compiler; empty if there is none.

    Args:
        target: the machine to compile for, as zig names it; empty for this one.
    """
    if target:
        return [sys.executable, "-m", "ziglang", "cc", "-target", target]
    if given := os.environ.get("CC"):
        return shlex.split(given)
    if found := shutil.which("cc") or shutil.which("gcc"):
        return [found]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    return []


def find_tag(target: str) -> str:
    """Return the platform of a wheel: manylinux for a release, else this machine."""
    if not target:
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    machine, _, glibc = target.partition("-linux-gnu.")
    return f"manylinux_{glibc.replace('.', '_')}_{machine}"


class LibraryBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Build hook for the library."""

    _temporary: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library."""
        if self.target_name != "wheel":
            return
        target = os.environ.get("EPCTX_TARGET", "")
        compiler = find_compiler(target)
        root = Path(self.root)
        if not compiler:
            self.app.display_warning("no C compiler: built without its library")
            return
        sources = [str(path) for path in sorted((root / "native").glob("*.c"))]
        is_editable = version == "editable"
        if is_editable:
            library = root / "src" / LIBRARY
        else:
            self._temporary = tempfile.TemporaryDirectory()
            library = Path(self._temporary.name, Path(LIBRARY).name)
        subprocess.run(  # noqa: S603 - the command of whoever builds
            [*compiler, *FLAGS, *sources, "-o", str(library), *LINKER_FLAGS], check=True
        )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{find_tag(target)}"
        if is_editable:
            build_data["artifacts"].append(f"src/{LIBRARY}")
        else:
            build_data["force_include"][str(library)] = LIBRARY

    def finalize(
        self, _version: str, _build_data: dict[str, Any], _artifact_path: str
    ) -> None:
        """Remove the folder in which the library was compiled."""
        if self._temporary is not None:
            self._temporary.cleanup()
