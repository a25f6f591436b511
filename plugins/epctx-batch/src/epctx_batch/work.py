"""Work on one task, in a process of a batch: the model is compiled into the cache, and
its files are put into the task's folder.

A folder has `task.json` (the task and its versions), `log.txt` (all that was printed
and logged), the context model with its files, its report page if that is wanted, and at
the end `result.json`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from epctx_cache.shared import hide_user

from epctx_batch.results import CPU_EP, TaskError, TaskResult
from epctx_core import (
    ModelCompiler,
    SessionOptions,
    default_registry,
    inspect_model,
)
from epctx_core.errors import EpctxError, Fail
from epctx_core.ext import (
    SESSION_OPTIONS,
    Publication,
    import_installed,
    read_small_file,
)

if TYPE_CHECKING:
    from epctx_batch.fleet import Task

TASK: Final = "task.json"
LOG: Final = "log.txt"
RESULT: Final = "result.json"
PAGE: Final = "report.html"
HTML: Final = "epctx batch --html"
HIDDEN: Final = "(hidden)"
MOST_FACTS: Final = 4 << 20
"""Bytes of a task's JSON."""
_MOST: Final = 1 << 63
_ATTEMPTS: Final = 3
"""Compiles of a model whose entry the cache removes before its files are taken."""


def run_task(task: Task) -> TaskResult:
    """Compile a model for a target into the task's folder, which is made; return and
    store the result.

    Errors are part of the result; all that is printed meanwhile goes into the log, so
    the process should do nothing else.
    """
    folder = Path(task.folder)
    start = time.monotonic()
    try:
        make_task_folder(folder)
        (folder / PAGE).unlink(missing_ok=True)
        with _logged(folder / LOG) as warnings:
            _write_json(folder / TASK, _hide_secrets(task))
            result = _try_to_compile(task, folder)
            seconds = time.monotonic() - start
            result = replace(result, seconds=seconds, warnings=list(warnings))
            # Before the page: the compile counts if making that ends the process.
            _write_json(folder / RESULT, result.as_dict())
            if task.html and result.output is not None:
                _try_to_write_page(result.output, folder / PAGE)
    except OSError as error:
        return make_failed(task, "FAIL", f"its folder cannot be written: {error}.")
    return result


def make_task_folder(folder: Path) -> None:
    """Make the folder of a task, in which files are replaced and removed; one that is
    there has to be this user's.

    Raises:
        OSError: it is a link, it belongs to another user, or it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise OSError(f"{folder} is a link")
    if status.st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to another user")


def make_failed(task: Task, code: str, message: str, hint: str = "") -> TaskResult:
    """Return the result of a task that failed."""
    return TaskResult(
        id=task.id,
        model=task.model,
        target=task.target,
        state="failed",
        was_cached=False,
        seconds=0.0,
        nodes={},
        output=None,
        bytes=0,
        error=TaskError(code=code, message=message, hint=hint),
        versions={},
    )


def store_failure(folder: Path, result: TaskResult) -> None:
    """Leave the result of a task that failed in its folder, and no context model of an
    earlier one that might be taken for its own.

    Raises:
        OSError: the folder cannot be written.
    """
    make_task_folder(folder)
    for path in folder.iterdir():
        if path.name not in {TASK, LOG, RESULT} and path.is_file():
            path.unlink()
    _write_json(folder / RESULT, result.as_dict())


def read_result(folder: Path) -> TaskResult | None:
    """Return the result in a task's folder, None if there is none, or no whole one."""
    try:
        result = parse_result(read_small_file(folder / RESULT, MOST_FACTS))
    except (OSError, ValueError):
        return None
    return result if result.id == folder.name else None


def parse_result(data: bytes) -> TaskResult:
    """Return a result from its JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        facts = json.loads(data)
        error = facts.pop("error")
        result = TaskResult(
            **facts, error=None if error is None else TaskError(**error)
        )
        is_sound = _is_sound(result)
    except (TypeError, KeyError, AttributeError, RecursionError) as fault:
        raise ValueError(f"it is no result: {fault!r}") from fault
    if not is_sound:
        raise ValueError("it is no result")
    return result


def _is_sound(result: TaskResult) -> bool:
    """Return whether each field of a result that anyone may have written is of its
    type, and of a value that a task can have.
    """
    error = result.error
    texts: list[object] = [result.id, result.model, result.target]
    texts += [*result.versions.values(), *result.warnings]
    texts += [result.output] if error is None else vars(error).values()
    counts = [result.bytes, *result.nodes.values()]
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(count) is int and 0 <= count < _MOST for count in counts)
        and type(result.seconds) in {int, float}
        and 0 <= result.seconds < _MOST
        and type(result.was_cached) is bool
        and result.state == ("done" if error is None else "failed")
        and (result.output is None) == (error is not None)
    )


def _try_to_compile(task: Task, folder: Path) -> TaskResult:
    try:
        return _compile(task, folder)
    except EpctxError as error:
        logging.getLogger("epctx.batch").exception("the task failed")
        return make_failed(task, error.code.name, error.message, error.hint or "")


def _hide_secrets(task: Task) -> dict[str, Any]:
    """Return the task as JSON, without values of EPs' secret options and of session
    options that epctx does not know, and without the users of addresses.
    """
    facts = task.as_dict()
    for ep, values in facts["options"].items():
        try:
            options = default_registry.load(default_registry.resolve(ep)).options
        except EpctxError:
            options = ()  # the compile says why
        shown = {option.name for option in options if not option.secret}
        facts["options"][ep] = _hide_others(values, shown)
    facts["config"] = _hide_others(task.config, SESSION_OPTIONS)
    if task.shared_cache is not None:
        facts["shared_cache"] = hide_user(task.shared_cache)
    return facts


def _hide_others(values: Mapping[str, str], shown: Container[str]) -> dict[str, str]:
    return {name: value if name in shown else HIDDEN for name, value in values.items()}


def _try_to_write_page(model: str, path: Path) -> None:
    """Write a report page; the compile is worth as much without it."""
    try:
        reporting = import_installed("epctx_report.report", needed_by=HTML)
        reporting.make_report(model).write(path)
    except Exception:
        logging.getLogger("epctx.batch").exception("its report page was not made")


def _compile(task: Task, folder: Path) -> TaskResult:
    from epctx_cache import compile_cached

    options = SessionOptions()
    for ep in task.eps:
        options.add_provider(ep, task.options.get(ep, {}))
    # A compiler that dies takes its own process with it, and this one goes on.
    limit = "" if task.timeout is None else str(task.timeout)
    entries = {"ep.isolate": "compile", "ep.compile_timeout": limit}
    for key, value in (entries | dict(task.config)).items():
        options.add_session_config_entry(key, value)
    for name, length in task.free_dimensions.items():
        options.add_free_dimension_override_by_name(name, length)

    stages: set[str] = set()
    for _ in range(_ATTEMPTS):
        entry = compile_cached(
            task.model,
            options,
            task.cache_dir,
            shared_cache=task.shared_cache,
            progress=lambda stage, _done, _total: stages.add(stage),
        )
        try:
            info = inspect_model(entry)
            output, size = _deliver(entry, [*info.required_files, entry.name], folder)
            break
        except (EpctxError, OSError):
            # Other processes may need the room meanwhile.
            if entry.exists():
                raise
    else:
        raise Fail(
            f"the cache removed the entry of {task.model!r} {_ATTEMPTS} times before "
            "it could be taken from there.",
            hint="Raise the limit of the cache (EPCTX_CACHE_SIZE).",
        )

    was_cached = stages <= {"pull"}
    if was_cached and not info.ep_contexts:
        # The cache does not keep why: a compile, whose result nobody takes, says it.
        with suppress(EpctxError):
            compiler = ModelCompiler(
                options, task.model, embed_compiled_data_into_model=True
            )
            compiler.compile_to_stream(lambda _: None)

    nodes: dict[str, int] = {}
    for node in info.ep_contexts:
        nodes[node.source] = nodes.get(node.source, 0) + 1
    if info.other_nodes:
        nodes[CPU_EP] = info.other_nodes
    return TaskResult(
        id=task.id,
        model=task.model,
        target=task.target,
        state="done",
        was_cached=was_cached,
        seconds=0.0,
        nodes=nodes,
        output=str(output),
        bytes=size,
        error=None,
        versions=_list_versions(info.compiled_by),
    )


def _deliver(entry: Path, names: Sequence[str], folder: Path) -> tuple[Path, int]:
    """Put an entry's files into a folder, as links where the system can; return the
    model's path and the size of all.

    A file that others may write to becomes a copy: a link outside of the cache's
    private folder would let them change the entry.
    """
    with Publication(folder) as publication:
        for name in names:
            mode = (entry.parent / name).stat().st_mode
            is_shared = mode & (stat.S_IWGRP | stat.S_IWOTH)
            if is_shared or not publication.link(name, entry.parent / name):
                with (entry.parent / name).open("rb") as source:
                    shutil.copyfileobj(source, publication.create(name))
        publication.commit([entry.name])
    size = sum((folder / name).stat().st_size for name in names)
    return folder / entry.name, size


def _list_versions(makers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    found = {"epctx-core": version("epctx-core")}
    for facts in makers.values():
        if facts.get("distribution"):
            found[str(facts["distribution"])] = str(facts.get("version"))
    return found


@contextmanager
def _logged(path: Path) -> Iterator[list[str]]:
    """Write what the process and its children print, and what epctx logs, into a file;
    yield the warnings among the latter, a list that grows.

    Also what native code prints: the descriptors are redirected.
    """
    warnings: list[str] = []

    def keep_warning(record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            warnings.append(record.getMessage())
        return True

    logger = logging.getLogger("epctx")
    handler = logging.StreamHandler()
    handler.addFilter(keep_warning)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    path.unlink(missing_ok=True)  # it may be a link
    with path.open("x", encoding="utf-8") as file:
        handler.setStream(file)
        logger.addHandler(handler)
        sys.stdout.flush()
        sys.stderr.flush()
        before = [os.dup(descriptor) for descriptor in (1, 2)]
        try:
            for descriptor in (1, 2):
                os.dup2(file.fileno(), descriptor)
            yield warnings
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, saved in zip((1, 2), before, strict=True):
                os.dup2(saved, descriptor)
                os.close(saved)
            logger.removeHandler(handler)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that is whole whenever it is there."""
    # On a network drive a lost worker may still write, too.
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    part.write_text(f"{json.dumps(value, indent=2)}\n", "utf-8")
    part.replace(path)
