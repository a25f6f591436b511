"""Builds this repository's distributions as a release would, and installs them where nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
CORE: Final = "epctx-core"
SDK: Final = "epctx-sim-sdk"
KIT: Final = "epctx-conformance"
COMMANDS: Final = "epctx-cli"
ISOLATION: Final = "epctx-isolation"
CACHE: Final = "epctx-cache"
FOLDERS: Final = {CORE: ROOT} | {folder.name: folder for folder in sorted(ROOT.glob("plugins/epctx-*"))}
"""By distribution, the folder of its pyproject.toml."""


def called(*command: str | Path, **options: Any) -> str:
    """Run a command; return what it printed, or fail with all of it."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=600, check=False, **options
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(folder: Path, target: str, output: Path) -> Path:
    """Build one wheel or sdist from a project's folder."""
    called(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", output, cwd=folder)
    (built,) = output.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


def unpacked(sdist: Path, output: Path) -> Path:
    """Return the folder that an sdist holds."""
    with tarfile.open(sdist) as archive:
        archive.extractall(output, filter="data")
    (folder,) = output.iterdir()
    return folder


class Environment:
    """A fresh virtual environment without any package, pip included; pip works on it from outside.

    Args:
        folder: where it is made.
        wheels: a folder with this repository's wheels; all else comes from where pip is told to look.
    """

    def __init__(self, folder: Path, wheels: Path) -> None:
        venv.create(folder, symlinks=True)
        self._folder, self._wheels = folder, wheels
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "EPCTX_", "VIRTUAL_ENV"))
        } | {"NO_COLOR": "1"}

    def pip(self, *arguments: str) -> str:
        """Run pip on this environment."""
        python = self._folder / "bin" / "python"
        return called(sys.executable, "-m", "pip", "--python", python, *arguments, env=self._variables)

    def install(self, *requirements: str) -> None:
        """Install from the wheels; what they depend on comes from pip's own sources."""
        self.pip("install", "--quiet", "--find-links", str(self._wheels), *requirements)

    def uninstall(self, *names: str) -> None:
        """Remove distributions."""
        self.pip("uninstall", "--quiet", "--yes", *names)

    def python(self, code: str, *arguments: str | Path) -> str:
        """Run a program."""
        return called(
            self._folder / "bin" / "python", "-c", code, *arguments, env=self._variables, cwd=self._folder
        )

    def epctx(self, *arguments: str | Path) -> dict[str, Any]:
        """Run the command `epctx`; return the JSON that it printed."""
        command = [self._folder / "bin" / "epctx", *arguments, "--json"]
        result: dict[str, Any] = json.loads(called(*command, env=self._variables, cwd=self._folder))
        return result

    def plugins(self) -> dict[str, str]:
        """Return EP type to the distribution that brings it."""
        return {p["name"]: p["distribution"] for p in self.epctx("plugins", "list")["plugins"]}

    def files(self) -> set[str]:
        """Return every file of every installed package."""
        return {
            str(path.relative_to(self._folder))
            for path in self._folder.rglob("*")
            if path.is_file() or path.is_symlink()
        }
