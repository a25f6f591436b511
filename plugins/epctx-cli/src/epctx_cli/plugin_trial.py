"""Trial of plugins, of EPs and others, in processes of their own, so that one that
crashes or hangs does no harm.

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
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from epctx_isolation.process_group import ProcessGroup

from epctx_cli.entry_points import COMMAND_GROUP, ENGINE_GROUP, Kind
from epctx_cli.plugin_results import EntryDetails, EntryFacts
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
    """Result of loading one EP of a plugin.

    Attributes:
        record: record of the plugin after it.
        description: description of its class, see `describe`; empty if it could not be
            imported.
        traceback: traceback of a failed import, or empty.
        import_seconds: seconds of its import, without that of numpy and onnx.
        import_output: output of its import on standard output and standard error.
        threads: names of Python's threads that run after its import and the questions
            for its availability.
    """

    record: PluginRecord
    description: Mapping[str, Any] = field(default_factory=dict)
    traceback: str = ""
    import_seconds: float = 0.0
    import_output: str = ""
    threads: Sequence[str] = ()


def try_all(
    records: Sequence[PluginRecord],
    *,
    log: Callable[[str], None],
    timeout: float = TIMEOUT,
) -> list[Trial]:
    """Try each plugin that can be used, and each of several that provide one EP.

    Args:
        records: records of the plugins.
        log: called with the standard error of a plugin.
        timeout: seconds for each.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(lambda record: _try(record, timeout), records))

    for trial, written in outcomes:
        _log_output(trial.record.label, written, log)
    return [trial for trial, _ in outcomes]


def _try(record: PluginRecord, timeout: float) -> tuple[Trial, str]:
    """Return the trial of a plugin, and the standard error of its child; one that
    cannot be used has no child.
    """
    if not (record.usable or record.undecided):
        return Trial(record=record, traceback=record.traceback or ""), ""

    request = {
        "name": record.name,
        "distribution": record.distribution,
        "chosen": record.usable,
    }
    reply, written = _ask_child(request, timeout)
    facts = {
        **reply,
        "state": PluginState(reply["state"]),
        "availability": {
            Purpose(purpose): Availability(**fields)
            for purpose, fields in reply.get("availability", {}).items()
        },
    }
    observations = facts.pop("observations", {})
    return Trial(record=replace(record, **facts), **observations), written


def try_entry(
    kind: Kind, entry: EntryFacts, *, log: Callable[[str], None]
) -> EntryDetails:
    """Load a plugin of another kind, and have it described.

    Args:
        kind: kind of the plugin.
        entry: entry point of the plugin.
        log: called with the standard error of its import.
    """
    request = {
        "group": kind.group,
        "name": entry.name,
        "value": entry.entry_point,
    }
    reply, written = _ask_child(request, TIMEOUT)
    _log_output(entry.name, written, log)
    facts: dict[str, Any] = {"traceback": "", **asdict(entry), **reply}
    return EntryDetails(kind=kind.label, **facts)


def _log_output(label: str, written: str, log: Callable[[str], None]) -> None:
    if written.strip():
        log(f"{label} wrote:\n{written.rstrip()}")


def _ask_child(
    request: Mapping[str, Any], timeout: float
) -> tuple[dict[str, Any], str]:
    """Have a process of its own answer a request of `report`.

    Args:
        request: for `report`.
        timeout: seconds until the process is ended.

    Returns:
        Its reply, or the state "broken" with the reason why it gave none; and its
        standard error.
    """
    command = [sys.executable, "-c", _CHILD, json.dumps({"path": sys.path, **request})]
    # Files, not pipes: a child of the child may keep a pipe open long after both are
    # gone.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        in_time = child.wait_and_end(timeout)
        out.seek(0)
        err.seek(0)
        printed = out.read()
        errors = err.read()

    written = errors.decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        reply = json.loads(printed)
        if observations := reply.get("observations"):
            begin, end = observations.pop("written")
            output = errors[begin:end].decode(errors="replace")
            observations["import_output"] = output
        return reply, written

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
        text = json.dumps(load(request))
    sys.stdout.write(text)
    sys.stdout.flush()
    end_in_any_case(0)


def _load_entry(request: Mapping[str, Any]) -> dict[str, Any]:
    """Load an entry point in this process; return the fields of `EntryDetails` that
    follow.

    Args:
        request: its `group`, `name` and `value`.
    """
    from importlib_metadata import EntryPoint

    group, name = request["group"], request["name"]
    try:
        loaded = EntryPoint(name, request["value"], group).load()
        facts = {"doc": _read_first_paragraph(loaded)}
        if group == ENGINE_GROUP:
            facts["provides"] = str(loaded.name)
        if group == COMMAND_GROUP:
            facts["summary"] = _read_summary(name, loaded)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a broken plugin fails in many ways
        return {
            "state": "broken",
            "reason": f"{type(error).__name__}: {error}".rstrip(": "),
            "traceback": "".join(traceback.format_exception(error)),
        }
    return {"state": "loaded", "reason": "", **facts}


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
    """Load one plugin and ask for its availability; return the fields of its record
    that follow, and as `observations` the others of its trial.
    """
    from epctx_core import default_registry

    name, distribution = request["name"], request["distribution"]

    def record() -> PluginRecord:
        key = name, distribution
        return next(r for r in default_registry.records() if r.key == key)

    observations: dict[str, Any] = {"written": (0, 0)}
    threads = set(threading.enumerate())
    problem = ""
    try:
        if request["chosen"]:
            default_registry.prefer(name, distribution=distribution)
        with suppress(EpctxError):  # raised again below
            observations |= _observe(lambda: default_registry.load(record()))
        if not request["chosen"] and record().undecided:
            # imports the others of its name as a session would, to learn which are
            # simulated
            with suppress(EpctxError):
                default_registry.resolve(name)
        observations["description"] = describe(default_registry.load(record()))
        for purpose in Purpose:
            default_registry.availability(record(), purpose)
    except EpctxError as error:
        problem = error.message.rstrip(".")

    after = record()
    known = after.as_dict()
    facts = {
        key: known[key]
        for key in ("state", "reason", "vendor", "simulated", "availability")
    }
    if problem and (after.usable or not after.reason):
        # Each user of a record puts its label before the reason.
        facts["reason"] = problem.removeprefix(f"{after.label} ")
    if problem and after.usable:
        facts["state"] = PluginState.BROKEN.value
    left = [t.name for t in threading.enumerate() if t not in threads]
    observations |= {"threads": left, "traceback": after.traceback or ""}
    return {**facts, "observations": observations}


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
    return {"import_seconds": seconds, "written": (begin, _count_written())}


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
