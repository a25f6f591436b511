"""Builds this repository's distributions as a release would, and installs them where
nothing else is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from support.folders import ROOT

CORE: Final = "epctx-core"
SDK: Final = "epctx-sim-sdk"
BLOBS: Final = "epctx-blobs"
KERNELS: Final = "epctx-kernels"
KIT: Final = "epctx-conformance"
COMMANDS: Final = "epctx-cli"
ISOLATION: Final = "epctx-isolation"
CACHE: Final = "epctx-cache"
BATCH: Final = "epctx-batch"
BENCH: Final = "epctx-bench"
FILES: Final = "epctx-files"
GENAI: Final = "epctx-genai"
REPORT: Final = "epctx-report"
ENGINE: Final = "epctx-onnxruntime"
BRIDGE: Final = "onnxruntime-ep-epctx"
FOLDERS: Final = {CORE: ROOT} | {
    folder.name: folder for folder in sorted(ROOT.glob("plugins/*"))
}
"""By distribution, the folder of its pyproject.toml."""


def called(*command: str | Path, code: int = 0, **options: Any) -> str:
    """Run a command; return what it printed (of a failure, its errors), or fail with
    that unless it exits with `code`.
    """
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **options,
    )
    assert done.returncode == code, (
        f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout if code == 0 else done.stderr


def build(folder: Path, target: str, output: Path, machine: str = "") -> Path:
    """Build one wheel or sdist from a project's folder into one where it is not yet.

    Args:
        folder: the project's.
        target: `wheel` or `sdist`.
        output: gets it.
        machine: the machine that a wheel is for, as zig names it; empty for this one.
    """
    output.mkdir(parents=True, exist_ok=True)
    before = set(output.iterdir())
    called(
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        target,
        "-d",
        output,
        cwd=folder,
        env={**os.environ, "EPCTX_TARGET": machine},
    )
    (built,) = set(output.iterdir()) - before
    return built


def libraries() -> set[str]:
    """Return what the packages and the extras of users need from others."""
    projects = [
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
        for folder in FOLDERS.values()
    ]
    return {
        need
        for project in projects
        for extra, needs in {
            "": project["dependencies"],
            **project.get("optional-dependencies", {}),
        }.items()
        for need in needs
        if extra != "test" and Requirement(need).name not in FOLDERS
    }


def download(output: Path) -> None:
    """Put the libraries, and what these need, into a folder; they come from where pip
    is told to look.
    """
    called(
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "-d",
        output,
        *sorted(libraries()),
    )


def unpacked(sdist: Path, output: Path) -> Path:
    """Return the folder that an sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(output, filter="data")
    (folder,) = output.iterdir()
    return folder


class Environment:
    """A fresh virtual environment without any package, pip included; pip works on it
    from outside.

    Args:
        folder: where it is made.
        sources: folders with wheels; nothing comes from anywhere else.
    """

    def __init__(self, folder: Path, *sources: Path) -> None:
        venv.create(folder, symlinks=True)
        self._folder = folder
        self._find = [
            part for source in sources for part in ("--find-links", str(source))
        ]
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "EPCTX_", "VIRTUAL_ENV"))
        } | {"NO_COLOR": "1"}

    def pip(self, *arguments: str) -> str:
        """Run pip on this environment."""
        python = self._folder / "bin" / "python"
        return called(
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            *arguments,
            env=self._variables,
        )

    def install(self, *requirements: str) -> None:
        """Install from the wheels."""
        self.pip("install", "--quiet", "--no-index", *self._find, *requirements)

    def uninstall(self, *names: str) -> None:
        """Remove distributions."""
        self.pip("uninstall", "--quiet", "--yes", *names)

    def run(self, command: str, *arguments: str | Path, code: int = 0) -> str:
        """Run a command of the environment; return what it printed, or fail with that
        unless it exits with `code`.
        """
        program = self._folder / "bin" / command
        return called(
            program, *arguments, code=code, env=self._variables, cwd=self._folder
        )

    def python(self, program: str, *arguments: str | Path) -> str:
        """Run a program."""
        return self.run("python", "-c", program, *arguments)

    def epctx(self, *arguments: str | Path) -> dict[str, Any]:
        """Run the command `epctx`; return the JSON that it printed."""
        result: dict[str, Any] = json.loads(self.run("epctx", *arguments, "--json"))
        return result

    def plugins(self) -> dict[str, str]:
        """Return EP type to the distribution that brings it."""
        return {
            p["name"]: p["distribution"]
            for p in self.epctx("plugins", "list")["plugins"]
        }

    def files(self) -> set[str]:
        """Return every file of every installed package."""
        return {
            str(path.relative_to(self._folder))
            for path in self._folder.rglob("*")
            if path.is_file() or path.is_symlink()
        }
