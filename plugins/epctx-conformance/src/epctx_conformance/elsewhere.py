"""Does part of a check in a process of its own: `python -m epctx_conformance.elsewhere JOB RESULT`.

The other process finds the EP's class by module and name, with this process's `sys.path`, or in its file.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_conformance.table import CheckFailed, Requirements, Skipped

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene


def elsewhere(
    scene: Scene,
    function: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call a function with an equal scene in another process; return what it gives.

    Args:
        scene: gives EP, requirements and options.
        function: `module:name` of a function `f(scene, **arguments)` that returns what JSON can hold.
        arguments: what JSON can hold.
        environment: added to this process's.

    Raises:
        Skipped: the class cannot be found by a name.
        CheckFailed: the other process ended without a result; says what it wrote.
    """
    job = {
        "requirements": asdict(scene.requirements),
        "full": scene.full,
        "function": function,
        "arguments": dict(arguments or {}),
    }
    return start(scene, __name__, job, environment=environment or {})[0]


def start(
    scene: Scene,
    module: str,
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> tuple[Any, str]:
    """Have a module of the kit's do a job in another process; return its result and what stands on stdout.

    Args:
        scene: gives EP and options, which are put into the job.
        module: calls `finish`.
        job: what JSON can hold.
        environment: added to this process's.
        cwd: the other process's current folder.

    Raises:
        Skipped, CheckFailed: see `elsewhere`.
    """
    folder = scene.folder()
    source, result, output, errors = (
        folder / name for name in ("job.json", "result.json", "stdout", "stderr")
    )
    path = [str(Path(entry).absolute()) for entry in sys.path]
    whole = {**job, "path": path, "provider": _address(scene.provider), "options": scene.options}
    source.write_text(json.dumps(whole), encoding="utf-8")
    # Into files: a pipe ends only with the last process that inherits it, such as a daemon that the EP starts.
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        done = subprocess.run(  # noqa: S603 - this interpreter and a module of the kit's
            [sys.executable, "-m", module, str(source), str(result)],
            cwd=cwd,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)},
            stdout=stdout,
            stderr=stderr,
            timeout=scene.requirements.seconds,
            check=False,
        )
    printed = output.read_text(errors="replace")
    if not result.exists():
        said = errors.read_text(errors="replace") or printed
        last = "\n".join(said.strip().splitlines()[-4:])
        raise CheckFailed(f"another process failed at it (exit code {done.returncode}):\n{last}")
    return json.loads(result.read_text("utf-8")), printed


def _address(provider: type[Any]) -> dict[str, str | None]:
    """Return where another process finds a class; a class of a function, a factory or a script nowhere."""
    name, module = provider.__qualname__, sys.modules.get(provider.__module__)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not provider or provider.__module__ == "__main__":
        raise Skipped(
            f"another process could not find {provider.__module__}:{name}; put it at the top of a module"
        )
    return {"module": provider.__module__, "file": getattr(module, "__file__", None), "name": name}


def find(address: Mapping[str, str]) -> Any:
    """Import the class at an address in the other process: by name, or from its file for a module that is on no path."""
    try:
        found: Any = importlib.import_module(address["module"])
    except ImportError:
        spec = importlib.util.spec_from_file_location(address["module"], address["file"])
        if spec is None or spec.loader is None:
            raise
        found = importlib.util.module_from_spec(spec)
        sys.modules[address["module"]] = found
        spec.loader.exec_module(found)
    for part in address["name"].split("."):
        found = getattr(found, part)
    return found


def finish(work: Callable[[dict[str, Any]], Any]) -> None:
    """Do the job that this process was started for, store its result and end."""
    from epctx_core.ext import end_in_any_case

    job, result = map(Path, sys.argv[1:])
    result.write_text(json.dumps(work(json.loads(job.read_text("utf-8")))), encoding="utf-8")
    end_in_any_case(0)


def _call(job: dict[str, Any]) -> Any:
    from epctx_conformance.scene import Scene

    sys.path[:] = job["path"]
    module, name = job["function"].split(":")
    function = getattr(importlib.import_module(module), name)
    requirements = Requirements(**job["requirements"])
    with Scene(
        find(job["provider"]), requirements=requirements, options=job["options"], full=job["full"]
    ) as scene:
        return function(scene, **job["arguments"])


if __name__ == "__main__":
    finish(_call)
