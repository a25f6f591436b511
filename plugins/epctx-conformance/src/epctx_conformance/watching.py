"""Starts an EP in a watched process, once for each scene, and keeps what was seen there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from epctx_conformance.table import CheckFailed, Skipped
from epctx_conformance.watched_process import Job, Observations

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene

_SEEN: weakref.WeakKeyDictionary[Scene, Watched] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What an EP did in a process of its own.

    Attributes:
        observations: what the process saw of itself.
        stdout: what the EP printed there, native code included.
        left: what was left in the current folder, in that for temporary files and beside the model.
    """

    observations: Observations
    stdout: str
    left: dict[str, list[str]]

    def expect_none(self, kind: str, phases: tuple[str, ...], *, hint: str) -> None:
        """Raise CheckFailed if the EP did something of a kind in one of the phases, or could not be watched there."""
        self.expect_worked(phases)
        found = [event for phase, seen, event in self.observations.seen if seen == kind and phase in phases]
        if found:
            raise CheckFailed(f"the EP does this: {'; '.join(dict.fromkeys(found))}.", hint=hint)

    def expect_unchanged(self, phases: tuple[str, ...], *, hint: str) -> None:
        """Raise CheckFailed if something that all code of the process shares is different after a phase."""
        self.expect_worked(phases)
        found = [what for phase in phases for what in self.observations.changed.get(phase, [])]
        if found:
            raise CheckFailed(f"the EP changes {'; '.join(dict.fromkeys(found))}.", hint=hint)

    def expect_worked(self, phases: tuple[str, ...]) -> None:
        """Raise CheckFailed if one of the phases could not be done."""
        for phase in phases:
            if phase in self.observations.errors:
                raise CheckFailed(
                    f"in a process of its own the EP cannot {phase}: {self.observations.errors[phase]}"
                )


def watched(scene: Scene) -> Watched:
    """Return what the EP does in a process of its own.

    Raises:
        Skipped: its class cannot be imported there, or it takes nothing.
        CheckFailed: the process ended by itself.
    """
    if scene not in _SEEN:
        _SEEN[scene] = _watch(scene)
    return _SEEN[scene]


def _watch(scene: Scene) -> Watched:
    provider = scene.provider
    if provider.__module__ == "__main__" or "<" in provider.__qualname__:
        raise Skipped(f"{provider.__qualname__} cannot be imported by another process: it is not a module's")
    folders = {name: scene.folder() for name in ("current", "temporary", "model", "job")}
    model = folders["model"] / "m.onnx"
    model.write_bytes(scene.network.data)
    np.savez(folders["job"] / "inputs.npz", **scene.network.feeds())  # type: ignore[arg-type]
    job = Job(
        path=[str(Path(entry).absolute()) for entry in sys.path],
        module=provider.__module__,
        qualname=provider.__qualname__,
        options=scene.options,
        model=str(model),
        inputs=str(folders["job"] / "inputs.npz"),
        exports=scene.requirements.export,
    )
    stdout, observations = _run(job, folders, scene.requirements.seconds)
    known = {model.name, *observations.outputs, *observations.found}
    left = {
        name: sorted(path.name for path in folders[name].iterdir() if path.name not in known)
        for name in ("current", "temporary", "model")
    }
    return Watched(observations=observations, stdout=stdout, left=left)


def _run(job: Job, folders: dict[str, Path], seconds: float) -> tuple[str, Observations]:
    source, result = folders["job"] / "job.json", folders["job"] / "result.json"
    source.write_text(json.dumps(asdict(job)), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(job.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folders["temporary"])),
    }
    output, errors = folders["job"] / "stdout", folders["job"] / "stderr"
    # Into files: a pipe ends only with the last process that inherits it, such as a daemon that the EP starts.
    with output.open("wb") as stdout, errors.open("wb") as stderr:
        ended = subprocess.run(  # noqa: S603 - this interpreter on a module of the kit's
            [sys.executable, "-m", "epctx_conformance.watched_process", str(source), str(result)],
            cwd=folders["current"],
            env=environment,
            stdout=stdout,
            stderr=stderr,
            timeout=seconds,
            check=False,
        )
    if not result.exists():
        said = errors.read_text(errors="replace").strip().splitlines()[-1:] or ["without a word"]
        raise CheckFailed(f"the process in which the EP was watched ended with {ended.returncode}: {said[0]}")
    return output.read_text(errors="replace"), Observations(**json.loads(result.read_text("utf-8")))
