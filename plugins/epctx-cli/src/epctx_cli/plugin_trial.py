"""Trial of plugins in processes of their own, so that one that crashes or hangs does no
harm.

The child runs `report` of this module; both sides send JSON. Knows no command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from epctx_isolation.process_group import ProcessGroup

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
        outcomes = list(
            pool.map(
                lambda r: (
                    _try(r, timeout) if r.usable or r.undecided else (_trial(r, {}), "")
                ),
                records,
            )
        )
    for trial, written in outcomes:
        if written.strip():
            log(f"{trial.record.label} wrote:\n{written.rstrip()}")
    return [trial for trial, _ in outcomes]


class Answer(NamedTuple):
    """Reply of a child, and its standard error.

    Attributes:
        reply: the object that it printed; empty if there is none.
        ending: why there is none; empty if there is one.
        written: its standard error.
    """

    reply: Mapping[str, Any]
    ending: str
    written: str


def _try(record: PluginRecord, timeout: float) -> tuple[Trial, str]:
    """Return a trial, and the standard error of its child."""
    answer = ask_child(
        {
            "name": record.name,
            "distribution": record.distribution,
            "chosen": record.usable,
        },
        timeout,
    )
    if answer.ending:
        broken = {"state": "broken", "reason": answer.ending}
        return _trial(record, broken), answer.written
    return _trial(record, answer.reply), answer.written


def ask_child(request: Mapping[str, Any], timeout: float = TIMEOUT) -> Answer:
    """Have a process of its own answer a request of `report`.

    Args:
        request: for `report`.
        timeout: seconds until the process is ended.
    """
    text = json.dumps({"path": sys.path, **request})
    command = [sys.executable, "-c", _CHILD, text]
    # Files, not pipes: a child of the child may keep a pipe open long after both are
    # gone.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = ProcessGroup(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        in_time = child.wait_and_end(timeout)
        written = _read(err).decode(errors="replace")
        with suppress(ValueError, KeyError, TypeError):
            reply = json.loads(_read(out))
            begin, end = reply.pop("written")
            output = _read(err)[begin:end].decode(errors="replace")
            return Answer({**reply, "output": output}, "", written)
        ending = (
            f"its process {child.ending}"
            if in_time
            else f"it took longer than {timeout:g} s"
        )
        last = next(
            (line for line in reversed(written.splitlines()) if line.strip()), ""
        )
        reason = f"{ending} while it was tried" + (f": {last.strip()}" if last else "")
        return Answer({}, reason, written)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _trial(record: PluginRecord, reply: Mapping[str, Any]) -> Trial:
    """Return a trial with the reply of the child, which is empty for a plugin that was
    not tried.
    """
    if reply:
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
        if "group" in request:
            from epctx_cli.entry_trial import load_entry

            reply = json.dumps(load_entry(request))
        else:
            reply = json.dumps(_load_plugin(request))
    sys.stdout.write(reply)
    sys.stdout.flush()
    end_in_any_case(0)


def _load_plugin(request: Mapping[str, Any]) -> dict[str, Any]:
    from epctx_core import default_registry

    def record() -> PluginRecord:
        key = request["name"], request["distribution"]
        return next(r for r in default_registry.records() if r.key == key)

    description: dict[str, Any] = {}
    problem: EpctxError | None = None
    observed: dict[str, Any] = {"written": (0, 0)}
    threads = set(threading.enumerate())
    try:
        if request["chosen"]:
            default_registry.prefer(
                request["name"], distribution=request["distribution"]
            )
        with suppress(EpctxError):  # raised again below
            observed = _observe(lambda: default_registry.load(record()))
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
        said = problem.message.removeprefix(f"{after.label} ")
        facts["reason"] = said.rstrip(".")
    if problem is not None and after.usable:
        facts["state"] = PluginState.BROKEN.value
    left = [t.name for t in threading.enumerate() if t not in threads]
    return {
        **facts,
        **observed,
        "threads": left,
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

    asked = [
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
            for name in asked
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
