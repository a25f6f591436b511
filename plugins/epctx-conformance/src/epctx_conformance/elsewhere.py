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
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from epctx_conformance.table import CheckFailed

    folder = scene.folder()
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(
        json.dumps(
            {
                "path": sys.path,
                "provider": _address(scene.provider),
                "requirements": asdict(scene.requirements),
                "options": scene.options,
                "full": scene.full,
                "function": function,
                "arguments": dict(arguments or {}),
            }
        )
    )
    output, errors = folder / "stdout", folder / "stderr"
    # Into files: a pipe ends only with the last process that inherits it, such as a daemon that the EP starts.
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        done = subprocess.run(  # noqa: S603 - this interpreter and this module
            [sys.executable, "-m", __name__, str(job), str(result)],
            env={**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdout=stdout,
            stderr=stderr,
            timeout=scene.requirements.seconds,
            check=False,
        )
    if not result.exists():
        said = errors.read_text(errors="replace") or output.read_text(errors="replace")
        last = "\n".join(said.strip().splitlines()[-4:])
        raise CheckFailed(f"another process failed at it (exit code {done.returncode}):\n{last}")
    return json.loads(result.read_text())


def _address(provider: type[Any]) -> dict[str, str | None]:
    """Return where another process finds a class; a class of a function, a factory or a script nowhere."""
    from epctx_conformance.table import Skipped

    name, module = provider.__qualname__, sys.modules.get(provider.__module__)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not provider or provider.__module__ == "__main__":
        raise Skipped(
            f"another process could not find {provider.__module__}:{name}; put it at the top of a module"
        )
    return {"module": provider.__module__, "file": getattr(module, "__file__", None), "name": name}


def _find(address: Mapping[str, str]) -> Any:
    """Return the class at an address: imported by name, or, for a module that is on no path, from its file."""
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


def main(job_file: str, result_file: str) -> None:
    """Do one job."""
    from epctx_conformance.requirements import Requirements
    from epctx_conformance.scene import Scene
    from epctx_core.ext import end_in_any_case

    job = json.loads(Path(job_file).read_text())
    sys.path[:] = job["path"]
    module, name = job["function"].split(":")
    function = getattr(importlib.import_module(module), name)
    requirements = Requirements(**job["requirements"])
    provider = _find(job["provider"])
    with Scene(provider, requirements=requirements, options=job["options"], full=job["full"]) as scene:
        result = function(scene, **job["arguments"])
    Path(result_file).write_text(json.dumps(result))
    end_in_any_case(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
