"""Environments: one for each program, with it and with this repository's packages."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from support.folders import ROOT
from zoo.making import install

if TYPE_CHECKING:
    from hosts.scripts import Host

FOLDER = ROOT / ".hosts"
PACKAGES = (
    ".",
    "plugins/epctx-blobs",
    "plugins/epctx-kernels",
    "plugins/epctx-onnxruntime",
)
SIMULATED = {
    "OpenVINOExecutionProvider": ("epctx-sim-sdk", "epctx-sim-openvino"),
    "QNNExecutionProvider": ("epctx-sim-sdk", "epctx-sim-qnn"),
}


def environment_of(host: Host) -> Path:
    """Return a program's environment, made anew if it needs something else than it has.

    This repository's packages are those of the clone, whatever is changed there later.
    """
    environment = FOLDER / host.name
    needed = [*host.dependencies, "onnxruntime>=1.31", *_packages_of(host)]
    stamp = environment / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text("utf-8")) != needed:
        install(needed, environment)
        stamp.write_text(json.dumps(needed), "utf-8")
        (FOLDER / ".gitignore").write_text("*\n", "utf-8")
    return environment


def _packages_of(host: Host) -> list[str]:
    plugins = (*SIMULATED.get(host.compiler, ()), *host.plugins)
    folders = (*PACKAGES, *(f"plugins/{plugin}" for plugin in plugins))
    return [part for path in folders for part in ("--editable", str(ROOT / path))]


def python_of(environment: Path) -> Path:
    """Return an environment's interpreter."""
    return environment / "bin" / "python"


def version_of(package: str, python: Path) -> str:
    """Return the version of a distribution in an interpreter's environment."""
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run(
        [python, "-c", asked], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def find_networks(environment: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the networks in an environment's packages.

    Raises:
        FileNotFoundError: a pattern finds none.
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    found = []
    for pattern in patterns:
        paths = sorted(packages.glob(pattern))
        if not paths:
            raise FileNotFoundError(f"{pattern}: the package has no such file")
        found += paths
    return found
