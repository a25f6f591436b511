"""An EP at work in a process of its own, under an audit hook: compiles, loads and runs one model.

Run as `python -m epctx_conformance.watched_process JOB RESULT`, both JSON files. What stands on stdout
afterwards is the EP's. Nothing of the EP is imported before the hook listens.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.audit import Audit
from epctx_conformance.process_state import changes, process_state
from epctx_core import InferenceSession, ModelCompiler, Registry, SessionOptions
from epctx_core.ext import end_in_any_case, lasting_threads

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is to be done.

    Attributes:
        path: `sys.path` of the process that asks.
        module, qualname: where the EP's class stands.
        options: the EP's.
        model: a file, alone in its folder.
        inputs: a file of numpy's.
        exports: whether the EP can save what it compiles.
    """

    path: list[str]
    module: str
    qualname: str
    options: dict[str, str]
    model: str
    inputs: str
    exports: bool


@dataclass(kw_only=True)
class Observations:
    """What was seen.

    Attributes:
        seen: phase, kind and event, of the EP's doing.
        changed: phase to what is different in the process afterwards.
        errors: phase to what was raised.
        outputs: the files that the export wrote, relative to the model's folder.
        found: what was in the current folder and in that for temporary files before the EP was imported.
    """

    seen: list[tuple[str, str, str]] = field(default_factory=list)
    changed: dict[str, list[str]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)


class _Process:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._observed = Observations()
        with np.load(job.inputs) as arrays:
            self._feeds = dict(arrays)
        self._audit = Audit(tempfile.gettempdir())

    def work(self) -> Observations:
        """Do everything, phase by phase."""
        job = self._job
        with InferenceSession(job.model, registry=Registry(entry_points=False)) as session:
            session.run(None, self._feeds)  # what the core and its libraries do at first use is not the EP's
        folders = (Path.cwd(), Path(tempfile.gettempdir()))
        self._observed.found = [path.name for folder in folders for path in folder.iterdir()]
        sys.path[:] = job.path
        self._audit.install()
        provider = self._phase("import", self._import)
        if provider is not None:
            registry = Registry(entry_points=False)
            self._phase("registering", lambda: registry.register(provider))
            self._phase("run", lambda: self._run(registry, job.model))
            if job.exports:
                path = self._phase("export", lambda: self._export(registry))
                if path is not None:
                    self._phase("load", lambda: self._run(registry, path))
        self._observed.seen = self._audit.seen
        return self._observed

    def _phase(self, name: str, work: Callable[[], Any]) -> Any:
        before = process_state()
        self._audit.phase = name
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - SystemExit of a plugin, too, is told to who asked
            self._observed.errors[name] = f"{type(error).__name__}: {error}"
            return None
        finally:
            self._audit.phase = ""
            different = changes(before, process_state())
            if different:
                self._observed.changed.setdefault(name, []).extend(different)

    def _import(self) -> type[ExecutionProvider]:
        module = importlib.import_module(self._job.module)
        threads = lasting_threads()
        if threads:
            said = f"threads that keep the process from ending ({', '.join(threads)})"
            self._observed.changed.setdefault("import", []).append(said)
        found: type[ExecutionProvider] = reduce(getattr, self._job.qualname.split("."), module)  # type: ignore[assignment]
        return found

    def _options(self, registry: Registry) -> SessionOptions:
        made = SessionOptions()
        made.add_provider(registry.records()[0].name, self._job.options)
        return made

    def _run(self, registry: Registry, model: str) -> None:
        with InferenceSession(model, self._options(registry), registry=registry) as session:
            session.run(None, self._feeds)

    def _export(self, registry: Registry) -> str:
        report = ModelCompiler(self._options(registry), self._job.model, registry=registry).compile_to_file()
        self._observed.outputs = [file.path for file in report.outputs]
        return str(report.output)


def main() -> None:
    """Read the job, do it, write what was seen."""
    job, result = map(Path, sys.argv[1:])
    observed = _Process(Job(**json.loads(job.read_text("utf-8")))).work()
    result.write_text(json.dumps(asdict(observed)), encoding="utf-8")
    end_in_any_case(0)


if __name__ == "__main__":
    main()
