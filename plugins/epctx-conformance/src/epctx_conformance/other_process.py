"""Part of a check in a process of its own: `python -m epctx_conformance.other_process
JOB RESULT`.

The other process finds the EP's class by module and name, with this process's
`sys.path`, or in its file. There either a function gets an equal harness, or the EP
compiles, loads and runs one model under an audit hook: then nothing of the EP is
imported before the hook listens.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from epctx_conformance.audit import Audit, describe_changes, process_state
from epctx_conformance.fork_server import SERVE, serve
from epctx_conformance.table import CheckFailed, Requirements, Skipped, all_checks
from epctx_core import (
    CompileReport,
    InferenceSession,
    ModelCompiler,
    Registry,
    SessionOptions,
)

if TYPE_CHECKING:
    from epctx_conformance.harness import Harness


class ProcessEnded(CheckFailed):
    """The other process ended without a result."""


def call_in_other_process(
    harness: Harness,
    function: Callable[..., Any],
    arguments: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """Call a function with an equal harness in another process; return its result.

    Args:
        harness: provides EP, requirements and options.
        function: `f(harness, **arguments)` of the kit that returns what JSON can hold.
        arguments: of the function; what JSON can hold.
        environment: added to this process's.

    Raises:
        Skipped: the class cannot be found by a name.
        ProcessEnded: the other process ended without a result; quotes what it wrote.
    """
    job = {
        "requirements": asdict(harness.requirements),
        "full": harness.full,
        "function": [function.__module__, function.__name__],
        "arguments": dict(arguments or {}),
    }
    return _run_job(harness, job, environment=environment or {})[0]


def _run_job(
    harness: Harness,
    job: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> tuple[Any, str]:
    """Do a job in another process, of which `cwd` is the current folder; return its
    result and what it printed to stdout.
    """
    folder = harness.folder()
    source, result, output, errors = (
        folder / n for n in ("job.json", "result.json", "stdout", "stderr")
    )
    path = [str(Path(entry).absolute()) for entry in sys.path]
    whole = {
        **job,
        "path": path,
        "provider": _find_address(harness.provider),
        "options": harness.options,
    }
    source.write_text(json.dumps(whole), encoding="utf-8")
    arguments = [str(source), str(result)]
    variables = {
        "ORT_DISABLE_TELEMETRY": "1",
        **os.environ,
        **environment,
        "PYTHONPATH": os.pathsep.join(path),
    }
    seconds = harness.requirements.seconds
    code = None
    # Python reads some variables only when it starts, and an observed EP must find
    # nothing imported but what observes it.
    if not environment and cwd is None:
        code = harness.fork_server.run(
            arguments,
            environment=variables,
            stdout=output,
            stderr=errors,
            seconds=seconds,
        )
    if code is None:
        # Into files: a pipe ends only with the last process that inherits it, such as a
        # daemon that the EP starts.
        with output.open("wb") as stdout, errors.open("wb") as stderr:
            code = subprocess.run(  # noqa: S603 - this interpreter and this module
                [sys.executable, "-m", __name__, *arguments],
                cwd=cwd,
                env=variables,
                stdout=stdout,
                stderr=stderr,
                timeout=seconds,
                check=False,
            ).returncode
    printed = output.read_text(errors="replace")
    if not result.exists():
        text = errors.read_text(errors="replace") or printed
        last = "\n".join(text.strip().splitlines()[-4:])
        raise ProcessEnded(
            f"the EP failed in another process (exit code {code}):\n{last}"
        )
    return json.loads(result.read_text("utf-8")), printed


def _find_address(provider: type[Any]) -> dict[str, str | None]:
    """Return the module, file and name by which another process finds a class.

    Raises:
        Skipped: it cannot, as it is made by a function or defined in a script.
    """
    name = provider.__qualname__
    module = sys.modules.get(provider.__module__)
    attribute: Any = module
    for part in name.split("."):
        attribute = getattr(attribute, part, None)
    if attribute is not provider or provider.__module__ == "__main__":
        raise Skipped(
            f"another process cannot find {provider.__module__}:{name}; define it at "
            "the top of a module"
        )
    return {
        "module": provider.__module__,
        "file": getattr(module, "__file__", None),
        "name": name,
    }


# --- an EP that is observed -----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Record of an EP in a process of its own.

    Attributes:
        seen: phase, kind and event of each of its actions.
        changed: phase to what is different in the process afterwards.
        errors: phase to what was raised.
        stdout: what the EP printed there, native code included.
        left: what was left in the current folder, in that for temporary files and
            beside the model.
    """

    seen: list[tuple[str, str, str]]
    changed: dict[str, list[str]]
    errors: dict[str, str]
    stdout: str
    left: dict[str, list[str]]

    def expect_none(
        self, kinds: tuple[str, ...], phases: tuple[str, ...], *, hint: str
    ) -> None:
        """Raise CheckFailed if the EP did something of these kinds in one of the
        phases, or failed there.

        The kind "change" is a difference in what all code of the process shares.
        """
        for phase in ("import", "registering", *phases):
            # After an error in the first two there are no others.
            if phase in self.errors:
                raise CheckFailed(
                    f"in a process of its own the EP failed in {phase}: "
                    f"{self.errors[phase]}"
                )
        effects = [
            event
            for phase, kind, event in self.seen
            if kind in kinds and phase in phases
        ]
        if "change" in kinds:
            effects += [
                f"changes {what}"
                for phase in phases
                for what in self.changed.get(phase, [])
            ]
        if effects:
            raise CheckFailed(
                f"the EP has side effects: {'; '.join(dict.fromkeys(effects))}.",
                hint=hint,
            )


@lru_cache(maxsize=1)
def observe(harness: Harness) -> Observation:
    """Return the record of the EP in a process of its own; the checks of one run share
    it.

    Raises:
        Skipped: its class cannot be found there, or it takes nothing.
        CheckFailed: the process ended without a result.
    """
    folders = {name: harness.folder() for name in ("current", "temporary", "model")}
    model = folders["model"] / "m.onnx"
    inputs = harness.folder() / "inputs.npz"
    model.write_bytes(harness.network.data)
    np.savez(inputs, **harness.network.feeds())  # type: ignore[arg-type]
    job = {
        "model": str(model),
        "inputs": str(inputs),
        "exports": harness.requirements.export,
    }
    temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folders["temporary"]))
    environment = {"PYTHONDONTWRITEBYTECODE": "1", **temporary}
    record, stdout = _run_job(
        harness, job, environment=environment, cwd=folders["current"]
    )
    expected_names = {model.name, *record.pop("known")}
    left = {
        name: sorted(
            path.name for path in folder.iterdir() if path.name not in expected_names
        )
        for name, folder in folders.items()
    }
    return Observation(**record, stdout=stdout, left=left)


# --- in the other process -------------------------------------------------------------


def _find(address: Mapping[str, str]) -> Any:
    """Import the class at an address: by name, or from its file for a module that is on
    no path.
    """
    try:
        module = importlib.import_module(address["module"])
    except ImportError:
        spec = importlib.util.spec_from_file_location(
            address["module"], address["file"]
        )
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[address["module"]] = module
        spec.loader.exec_module(module)

    attribute: Any = module
    for part in address["name"].split("."):
        attribute = getattr(attribute, part)
    return attribute


def _call(job: dict[str, Any]) -> Any:
    from epctx_conformance.harness import Harness

    sys.path[:] = job["path"]
    module, name = job["function"]
    function = getattr(importlib.import_module(module), name)
    requirements = Requirements(**job["requirements"])
    provider = _find(job["provider"])
    with closing(
        Harness(
            provider,
            requirements=requirements,
            options=job["options"],
            full=job["full"],
        )
    ) as harness:
        return function(harness, **job["arguments"])


def _name_lasting_threads() -> str:
    """Return the names of the threads that Python waits for at its end."""
    others = {*threading.enumerate()} - {threading.main_thread()}
    return ", ".join(sorted(thread.name for thread in others if not thread.daemon))


def _observe(job: dict[str, Any]) -> dict[str, Any]:
    """Do everything, phase by phase; return attributes of `Observation`, and files that
    are not left.
    """
    with np.load(job["inputs"]) as arrays:
        feeds = dict(arrays)
    registry = Registry(entry_points=False)
    audit = Audit(tempfile.gettempdir())
    with InferenceSession(job["model"], registry=registry) as session:
        # Effects of the first use of the core and its libraries are not the EP's.
        session.run(None, feeds)
    folders = (Path.cwd(), Path(tempfile.gettempdir()))
    expected_names = [path.name for folder in folders for path in folder.iterdir()]
    changed: dict[str, list[str]] = {}
    errors: dict[str, str] = {}

    def do(phase: str, work: Callable[[], Any]) -> Any:
        before = process_state()
        audit.phase = phase
        try:
            return work()
        except BaseException as error:  # noqa: BLE001 - SystemExit of a plugin, too, is reported
            errors[phase] = f"{type(error).__name__}: {error}"
            return None
        finally:
            audit.phase = ""
            changed.setdefault(phase, []).extend(
                describe_changes(before, process_state())
            )

    def load() -> Any:
        provider_class = _find(job["provider"])
        if threads := _name_lasting_threads():
            changed["import"] = [
                f"threads that keep the process from ending ({threads})"
            ]
        return provider_class

    def options() -> SessionOptions:
        made = SessionOptions()
        made.add_provider(registry.records()[0].name, job["options"])
        made.add_session_config_entry("ep.partition_without_computation", "keep")
        return made

    def run(model: str) -> None:
        with InferenceSession(model, options(), registry=registry) as session:
            session.run(None, feeds)

    def export() -> CompileReport:
        return ModelCompiler(
            options(), job["model"], registry=registry
        ).compile_to_file()

    sys.path[:] = job["path"]
    audit.install()
    provider = do("import", load)
    if provider is not None:
        do("registering", lambda: registry.register(provider))
        do("run", lambda: run(job["model"]))
        report = do("export", export) if job["exports"] else None
        if report is not None:
            expected_names += [file.path for file in report.outputs]
            do("load", lambda: run(str(report.output)))
    return {
        "seen": audit.seen,
        "changed": changed,
        "errors": errors,
        "known": expected_names,
    }


def main() -> None:
    """Do the job that this process was started for, store its result and end."""
    arguments = sys.argv[1:]
    if arguments == [SERVE]:
        all_checks()  # whose functions the jobs call
        arguments = serve()
    source, result = map(Path, arguments)
    job = json.loads(source.read_text("utf-8"))
    done = _call(job) if "function" in job else _observe(job)
    result.write_text(json.dumps(done), encoding="utf-8")
    if threading.active_count() > 1:
        # Threads may never end, and all that is asked for is stored.
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
