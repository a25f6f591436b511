"""An EP at work in a process of its own, under an audit hook: compiles, loads and runs one model.

There it runs as `python -m epctx_conformance.watched JOB RESULT`. What stands on stdout afterwards is the EP's. Nothing of
the EP is imported before the hook listens.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.audit import Audit, changes, process_state
from epctx_conformance.elsewhere import find, finish, start
from epctx_conformance.table import CheckFailed
from epctx_core import CompileReport, InferenceSession, ModelCompiler, Registry, SessionOptions
from epctx_core.ext import lasting_threads

if TYPE_CHECKING:
    from epctx_conformance.scene import Scene
    from epctx_core.plugin import ExecutionProvider


@dataclass(frozen=True, kw_only=True)
class Watched:
    """What an EP did in a process of its own.

    Attributes:
        seen: phase, kind and event, of the EP's doing.
        changed: phase to what is different in the process afterwards.
        errors: phase to what was raised.
        stdout: what the EP printed there, native code included.
        left: what was left in the current folder, in that for temporary files and beside the model.
    """

    seen: list[tuple[str, str, str]]
    changed: dict[str, list[str]]
    errors: dict[str, str]
    stdout: str
    left: dict[str, list[str]]

    def expect_none(self, kind: str, phases: tuple[str, ...], *, hint: str) -> None:
        """Raise CheckFailed if the EP did something of a kind in one of the phases, or could not be watched there."""
        self.expect_worked(phases)
        found = [event for phase, seen, event in self.seen if seen == kind and phase in phases]
        if found:
            raise CheckFailed(f"the EP does this: {'; '.join(dict.fromkeys(found))}.", hint=hint)

    def expect_unchanged(self, phases: tuple[str, ...], *, hint: str) -> None:
        """Raise CheckFailed if something that all code of the process shares is different after a phase."""
        self.expect_worked(phases)
        found = [what for phase in phases for what in self.changed.get(phase, [])]
        if found:
            raise CheckFailed(f"the EP changes {'; '.join(dict.fromkeys(found))}.", hint=hint)

    def expect_worked(self, phases: tuple[str, ...]) -> None:
        """Raise CheckFailed if one of the phases could not be done."""
        for phase in phases:
            if phase in self.errors:
                raise CheckFailed(f"in a process of its own the EP cannot {phase}: {self.errors[phase]}")


def watch(scene: Scene) -> Watched:
    """Return what the EP does in a process of its own.

    Raises:
        Skipped: its class cannot be found there, or it takes nothing.
        CheckFailed: the process ended by itself.
    """
    folders = {name: scene.folder() for name in ("current", "temporary", "model")}
    model, inputs = folders["model"] / "m.onnx", scene.folder() / "inputs.npz"
    model.write_bytes(scene.network.data)
    np.savez(inputs, **scene.network.feeds())  # type: ignore[arg-type]
    job = {"model": str(model), "inputs": str(inputs), "exports": scene.requirements.export}
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folders["temporary"]))
    environment = {"PYTHONDONTWRITEBYTECODE": "1", **temporary}
    found, stdout = start(scene, __name__, job, environment=environment, cwd=folders["current"])
    known = {model.name, *found.pop("known")}
    left = {
        name: sorted(path.name for path in folder.iterdir() if path.name not in known)
        for name, folder in folders.items()
    }
    return Watched(**found, stdout=stdout, left=left)


def _observe(job: dict[str, Any]) -> dict[str, Any]:
    """Do everything, phase by phase, in the other process; return attributes of `Watched`, and files that are not left."""
    with np.load(job["inputs"]) as arrays:
        feeds = dict(arrays)
    registry, audit = Registry(entry_points=False), Audit(tempfile.gettempdir())
    with InferenceSession(job["model"], registry=registry) as session:
        session.run(None, feeds)  # what the core and its libraries do at first use is not the EP's
    known = [path.name for folder in (Path.cwd(), Path(tempfile.gettempdir())) for path in folder.iterdir()]
    changed: dict[str, list[str]] = {}
    errors: dict[str, str] = {}

    def phase(name: str, work: Callable[[], Any]) -> Any:
        before = process_state()
        audit.phase = name
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - SystemExit of a plugin, too, is told to who asked
            errors[name] = f"{type(error).__name__}: {error}"
            return None
        finally:
            audit.phase = ""
            if different := changes(before, process_state()):
                changed.setdefault(name, []).extend(different)

    def load() -> type[ExecutionProvider]:
        found: type[ExecutionProvider] = find(job["provider"])
        threads = ", ".join(lasting_threads())
        changed["import"] = [f"threads that keep the process from ending ({threads})"] if threads else []
        return found

    def run(model: str) -> None:
        with InferenceSession(model, _options(registry, job), registry=registry) as session:
            session.run(None, feeds)

    def export() -> CompileReport:
        return ModelCompiler(_options(registry, job), job["model"], registry=registry).compile_to_file()

    sys.path[:] = job["path"]
    audit.install()
    provider = phase("import", load)
    if provider is not None:
        phase("registering", lambda: registry.register(provider))
        phase("run", lambda: run(job["model"]))
        report = phase("export", export) if job["exports"] else None
        if report is not None:
            known += [file.path for file in report.outputs]
            phase("load", lambda: run(str(report.output)))
    return {"seen": audit.seen, "changed": changed, "errors": errors, "known": known}


def _options(registry: Registry, job: dict[str, Any]) -> SessionOptions:
    made = SessionOptions()
    made.add_provider(registry.records()[0].name, job["options"])
    return made


if __name__ == "__main__":
    finish(_observe)
