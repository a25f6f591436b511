"""The interpreter and its environment, and whether pip on the PATH installs into it."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from epctx_cli.doctor.findings import Remark, note, problem
from epctx_core.registry.discovery import EP_GROUP

OLDEST_PYTHON = (3, 11)


def facts() -> dict[str, str]:
    """Return what the interpreter and its environment are."""
    import epctx_core

    kind = "virtual environment" if sys.prefix != sys.base_prefix else "no virtual environment"
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "executable": sys.executable,
        "environment": f"{sys.prefix} ({kind})",
        "platform": f"{platform.system()} {platform.release()} on {platform.machine()}",
        "epctx-core": f"{epctx_core.__version__} in {Path(epctx_core.__file__).parent}",
    }


def examine() -> Iterator[Remark]:
    """Say what is wrong with the environment."""
    if sys.version_info < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield problem(
            f"Python {platform.python_version()} is older than {oldest}.", f"Use Python {oldest} or newer."
        )
    if sys.platform != "linux":
        yield note(f"epctx is tested on Linux; this is {platform.system()}.")
    yield from _other_pip()


def _other_pip() -> Iterator[Remark]:
    """Say if `pip` installs elsewhere: the commonest reason why an installed plugin is not found."""
    found = shutil.which("pip")
    if found is None or Path(found).parent.resolve().is_relative_to(Path(sys.prefix).resolve()):
        return
    prefix = Path(found).parent.parent
    here = f"{sys.executable} -m pip install"
    brought = sorted(_plugins_under(prefix))
    if brought:
        yield problem(
            f"`pip` on the PATH ({found}) installs into another environment, which has plugins that are not "
            f"here: {', '.join(brought)}.",
            f"{here} {' '.join(brought)}",
        )
    else:
        yield note(f"`pip` on the PATH ({found}) installs into another environment.", f"Here it is: {here} …")


def _plugins_under(prefix: Path) -> Iterator[str]:
    """Yield the distributions of another environment that bring EPs, by a look at its metadata."""
    from epctx_core.registry.records import normalised

    own = {Path(entry).resolve() for entry in sys.path if entry}
    for folder in prefix.glob("lib/python*/*-packages"):
        if folder.resolve() in own:
            continue
        for points in folder.glob("*.dist-info/entry_points.txt"):
            if EP_GROUP in points.read_text("utf-8", errors="replace"):
                yield normalised(points.parent.name.partition("-")[0])
