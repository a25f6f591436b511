"""All models that today's exporters make, in an environment of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

from support.folders import ROOT
from zoo.scripts import FOLDER, header, list_scripts, models_of

ENVIRONMENT = ROOT / ".venv-zoo"
MADE = ROOT / ".zoo"


def make_models() -> Path:
    """Have each script whose exporters fit into one environment make its models; return
    the folder, which has the committed ones of the others, too.
    """
    scripts = list_scripts(together=True)
    needed = sorted({d for s in scripts for d in header(s)["dependencies"]})
    stamp = ENVIRONMENT / "installed.json"
    if not stamp.exists() or json.loads(stamp.read_text("utf-8")) != needed:
        install(needed, ENVIRONMENT)
        (ENVIRONMENT / ".gitignore").write_text("*\n", "utf-8")
        stamp.write_text(json.dumps(needed), "utf-8")

    folder = MADE / "models"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    others = (script for script in list_scripts() if script not in scripts)
    for name in (name for script in others for name in models_of(script)):
        for ending in (".onnx", ".npz"):
            shutil.copy(FOLDER / f"{name}{ending}", folder)
    for script in scripts:
        sys.stdout.write(f"{script.name}\n")
        sys.stdout.flush()
        run(script, ENVIRONMENT, folder)
    return folder


def install(needed: Iterable[str], environment: Path) -> None:
    """Make an environment anew with what scripts need."""
    venv.create(environment, with_pip=True, clear=True)
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)


def run(script: Path, environment: Path, folder: Path) -> None:
    """Have a script write its models into a folder."""
    python = environment / "bin" / "python"
    subprocess.run(
        [python, "-W", "ignore", script, folder],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONHASHSEED": "0"},
    )
