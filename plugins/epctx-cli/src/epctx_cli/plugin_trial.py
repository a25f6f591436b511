"""Trial of plugins in processes of their own, so that one that crashes or hangs does no
harm.

The child runs `report` of this module; both sides send JSON. Knows no command.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

from epctx_isolation.process_group import ProcessGroup

from epctx_cli.entry_points import COMMAND_GROUP, ENGINE_GROUP
from epctx_core import EpctxError, PluginRecord, PluginState
from epctx_core.plugin import Availability, Purpose

if TYPE_CHECKING:
    from epctx_core.plugin import ExecutionProvider, ProviderOption

TIMEOUT = 60.0
"""Seconds for a plugin to be imported and asked for its availability."""
_AT_ONCE = 4
_CHILD = (
    "import json, sys\n"
    "request = json.loads(sys.argv[1])\n"
    "sys.path[:] = request['path']\n"
    "from epctx_cli.plugin_trial import report\n"
    "report(request)\n"
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Result of loading one plugin.

    Attributes:
        record: the record after it.
        description: of its class, see `describe`; empty if it could not be imported.
        traceback: of a failed import, or empty.
        import_seconds: how long its import took, without that of numpy and onnx.
        import_output: what its import wrote to standard output and standard error.
        threads: names of Python's threads that run after its import and the questions
            for its availability.
    """

    record: PluginRecord
    description: Mapping[str, Any]
    traceback: str = ""
    import_seconds: float = 0.0
    import_output: str = ""
    threads: tuple[str, ...] = ()


def try_all(
    records: Sequence[PluginRecord],
    *,
    log: Callable[[str], None],
    timeout: float = TIMEOUT,
) -> list[Trial]:
    """Try each plugin that can be used, and each of several that provide one EP.

    Args:
        records: of the plugins.
        log: called with the standard error of a plugin.
        timeout: seconds for each.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda record: _try(record, timeout), records))

    for trial, written in outcomes:
        if written.strip():
            log(f"{trial.record.label} wrote:\n{written.rstrip()}")
    return [trial for trial, _ in outcomes]


def _try(record: PluginRecord, timeout: float) -> tuple[Trial, str]:
    """Return the trial of a plugin, and the standard error of its child; one that
    cannot be used has no child.
    """
    if not (record.usable or record.undecided):
        untried = Trial(record=record, description={}, traceback=record.traceback or "")
        return untried, ""

    request = {
        "name": record.name,
        "distribution": record.distribution,
        "chosen": record.usable,
    }
    reply, written = ask_child(request, timeout)
    return _make_trial(record, reply), written


def ask_child(
    request: Mapping[str, Any], timeout: float = TIMEOUT
) -> tuple[dict[str, Any], str]:
    """Have a process of its own answer a request of `report`.

    Args:
        request: for `report`.
        timeout: seconds until the process is ended.

    Returns:
        Its reply, or the state "broken" with the reason why it gave none; and its
        standard error.
    """
    text = json.dumps({"path": sys.path, **request})
    command = [sys.executable, "-c", _CHILD, text]
    # Files, not pipes: a child of the child may keep a pipe open long after both are
    # gone.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        in_time = child.wait_and_end(timeout)
        printed = _read(out)
        errors = _read(err)

    written = errors.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        reply = json.loads(printed)
        begin, end = reply.pop("written")
        output = errors[begin:end].decode(errors="replace")
        return {**reply, "output": output}, written

    ending = (
        f"its process {child.ending}"
        if in_time
        else f"it took longer than {timeout:g} s"
    )
    reason = f"{ending} while it was tried"
    lines = [line.strip() for line in written.splitlines() if line.strip()]
    if lines:
        reason += f": {lines[-1]}"
    return {"state": "broken", "reason": reason}, written


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _make_trial(record: PluginRecord, reply: Mapping[str, Any]) -> Trial:
    """Return the trial of a plugin with the reply of its child."""
    record = replace(
        record,
        state=PluginState(reply["state"]),
        reason=str(reply["reason"]),
        vendor=reply.get("vendor"),
        simulated=reply.get("simulated", record.simulated),
        availability={
            Purpose(purpose): Availability(**fields)
            for purpose, fields in reply.get("availability", {}).items()
        },
    )
    return Trial(
        record=record,
        description=reply.get("description", {}),
        traceback=reply.get("traceback") or record.traceback or "",
        import_seconds=reply.get("seconds", 0.0),
        import_output=reply.get("output", ""),
        threads=tuple(reply.get("threads", ())),
    )


def report(request: Mapping[str, Any]) -> None:
    """Load one plugin, ask for its availability, and print a description; the child
    calls this.

    Args:
        request: `name` and `distribution` of the record, and whether it is the one
            `chosen` for its name; or `group`, `name` and `value` of an entry point of
            another kind.
    """
    from epctx_cli.ending import end_in_any_case
    from epctx_cli.streams import reserved_stdout

    with reserved_stdout():
        load = _load_entry if "group" in request else _load_plugin
        reply = load(request)
        # Of an import that failed, and of an entry point, the part is not measured.
        text = json.dumps({"written": (0, 0), **reply})
    sys.stdout.write(text)
    sys.stdout.flush()
    end_in_any_case(0)


def _load_entry(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load an entry point in this process, and describe it.

    Args:
        request: its `group`, `name` and `value`.
    """
    from importlib_metadata import EntryPoint

    group = request["group"]
    name = request["name"]
    try:
        loaded = EntryPoint(name, request["value"], group).load()
        facts = {"doc": _read_first_paragraph(loaded)}
        if group == ENGINE_GROUP:
            facts["provides"] = str(loaded.name)
        if group == COMMAND_GROUP:
            facts["summary"] = _read_summary(name, loaded)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken plugin fails in many ways
        return {
            "reason": f"{type(error).__name__}: {error}".rstrip(": "),
            "traceback": "".join(traceback.format_exception(error)),
        }
    return {"facts": facts}


def _read_first_paragraph(loaded: Any) -> str:
    """Return the first paragraph of an object's own docstring, else of its module's."""
    docstring: str | None = None
    # Other objects have the docstring of their class.
    if callable(loaded) or inspect.ismodule(loaded):
        docstring = inspect.getdoc(loaded)
    if not docstring:
        docstring = inspect.getdoc(inspect.getmodule(loaded))
    paragraph = (docstring or "").partition("\n\n")[0]
    return " ".join(paragraph.split())


def _read_summary(name: str, declare: Callable[[Any], None]) -> str:
    """Return the description that a command gives its parser."""
    from epctx_cli.arguments import CommandParser

    parser = CommandParser(prog=f"epctx {name}")
    declare(parser)
    return parser.description or ""


def _load_plugin(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load one plugin and ask for its availability; return the facts of its record and
    what was observed.
    """
    from epctx_core import default_registry

    def record() -> PluginRecord:
        key = request["name"], request["distribution"]
        return next(r for r in default_registry.records() if r.key == key)

    description: dict[str, Any] = {}
    problem: EpctxError | None = None
    observations: dict[str, Any] = {}
    threads = set(threading.enumerate())
    try:
        if request["chosen"]:
            default_registry.prefer(
                request["name"], distribution=request["distribution"]
            )
        with suppress(EpctxError):  # raised again below
            observations = _observe(lambda: default_registry.load(record()))
        if not request["chosen"] and record().undecided:
            # imports the others of its name as a session would, to learn which are
            # simulated
            with suppress(EpctxError):
                default_registry.resolve(request["name"])
        description = describe(default_registry.load(record()))
        for purpose in Purpose:
            default_registry.availability(record(), purpose)
    except EpctxError as error:
        problem = error

    after = record()
    facts = after.as_dict()
    if problem is not None and (after.usable or not after.reason):
        # Each user of a record puts its label before the reason.
        reason = problem.message.removeprefix(f"{after.label} ")
        facts["reason"] = reason.rstrip(".")
    if problem is not None and after.usable:
        facts["state"] = PluginState.BROKEN.value
    return {
        **facts,
        **observations,
        "threads": [t.name for t in threading.enumerate() if t not in threads],
        "description": description,
        "traceback": after.traceback,
    }


def _observe(load: Callable[[], object]) -> dict[str, Any]:
    """Import a plugin; return the seconds that it took, and the part of standard error
    that it wrote.
    """
    from epctx_cli.streams import reserved_stdout

    # Each session has them, so that a plugin is not slow for being the first to import
    # them. One that cannot be imported is the plugin's to report.
    for shared in ("numpy", "onnx", "epctx_core.plugin"):
        with suppress(ImportError):
            import_module(shared)
    begin = _count_written()
    start = time.perf_counter()
    with reserved_stdout():  # its end flushes the buffers of native libraries
        load()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "written": (begin, _count_written())}


def _count_written() -> int:
    """Return the bytes that this process has written to standard error, a file."""
    sys.stderr.flush()
    return os.fstat(sys.stderr.fileno()).st_size


def describe(cls: type[ExecutionProvider]) -> dict[str, Any]:
    """Return a valid class's attributes, options, and the hooks and class methods that
    it implements.
    """
    from epctx_core.ext import implemented_hooks
    from epctx_core.plugin import ExecutionProvider

    class_methods = [
        name
        for name, member in vars(ExecutionProvider).items()
        if isinstance(member, classmethod)
    ]
    return {
        "api_version": cls.api_version,
        "binary_suffix": cls.binary_suffix or cls.name,
        "options": _options(cls.options),
        "dynamic_options": _options(cls.dynamic_options),
        "hooks": sorted(implemented_hooks(cls)),
        "class_methods": [
            name
            for name in class_methods
            if getattr(cls, name).__func__
            is not getattr(ExecutionProvider, name).__func__
        ],
        "keeps_functions": sorted(
            "::".join(filter(None, function)) for function in cls.keeps_functions
        ),
        "weightless_modes": sorted(mode.name for mode in cls.weightless_modes or ()),
    }


def _options(schema: Sequence[ProviderOption]) -> list[dict[str, Any]]:
    return [
        {
            "name": option.name,
            "type": option.type.__name__,
            "default": None if option.secret else option.default,
            "choices": list(option.choices),
            "doc": option.doc,
            "secret": option.secret,
        }
        for option in schema
    ]
