"""A clean environment with a core that was built, not one that runs from the
sources.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

OURS = ("epctx", "_epctx", "onnxruntime_ep_epctx", "__editable__")


@dataclass(frozen=True, kw_only=True)
class CleanEnvironment:
    """A virtual environment that has the libraries of the suite's own, and nothing of
    epctx but what is installed.

    The libraries are links: downloading them anew would show nothing about epctx.
    """

    folder: Path

    def run(self, *command: object, code: int = 0) -> str:
        """Run a command of the environment in its folder; give what it printed."""
        clean = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("EPCTX_", "PYTHON", "VIRTUAL_ENV"))
        }
        done = subprocess.run(
            [str(self.folder / "bin" / str(command[0])), *map(str, command[1:])],
            cwd=self.folder,
            env={
                **clean,
                "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, (
            f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        return done.stdout

    def install(self, *what: object) -> None:
        """Install without an index: everything needed has to be there."""
        self.run(
            "python", "-m", "pip", "install", "--quiet", "--no-index",
            "--no-build-isolation", "--disable-pip-version-check", *what,
        )  # fmt: skip


def clean_environment(folder: Path) -> CleanEnvironment:
    """Make one."""
    venv.create(folder, symlinks=True)
    site = Path(
        sysconfig.get_path(
            "purelib", vars={"base": str(folder), "platbase": str(folder)}
        )
    )
    for source in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(source).iterdir():
            theirs = not entry.name.startswith(OURS) and entry.suffix != ".pth"
            if theirs and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return CleanEnvironment(folder=folder)


def built_wheel(project: Path, folder: Path) -> Path:
    """Build a project's wheel in an empty folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(project)], check=True, timeout=300
    )
    (wheel,) = folder.glob("*.whl")
    return wheel
