"""`epctx batch FLEET.toml` and `epctx batch show ID`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli.command import (
    CommandParser,
    Console,
    ExitCode,
    add_common,
    byte_size,
)

from epctx_batch.results import BatchResult, ShowResult, TaskResult
from epctx_batch.table import Table, describe_nodes, describe_sums, make_table
from epctx_core.errors import InvalidArgument, NoSuchFile, one_line

if TYPE_CHECKING:
    import argparse

_SHOW = "show"
_LEVELS = 3
"""Of a task: itself, its options, and those of an EP."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx batch`."""
    parser.description = (
        "Compile each model of a file for each of its targets, through the compile "
        "cache, on all processors. A task that fails does not stop the others. "
        "`epctx batch show ID` describes one of them."
    )
    parser.add_argument(
        "fleet", metavar="FLEET.toml", help="models and targets, or the word show"
    )
    parser.add_argument(
        "id", metavar="ID", nargs="?", help="with show: the task, or how its ID begins"
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help=(
            "a Dask scheduler, such as tcp://host:8786: its workers take the tasks "
            "(needs epctx-batch[dask])"
        ),
    )
    parser.add_argument(
        "--html",
        action="store_true",
        help=(
            "write index.html with the table of models and targets into the folder of "
            "the results, and a report page for each (needs epctx-report)"
        ),
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="with show: the folder of the results (default: all *-results here)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Run a batch, or show a task."""
    if arguments.fleet == _SHOW:
        return _show(arguments.id, arguments.output, console)
    if arguments.output is not None:
        raise InvalidArgument(
            "--output is an option of show alone.",
            hint="The file says where its results go: output in [batch].",
        )
    if arguments.id is not None:
        raise InvalidArgument(
            f"{arguments.id!r} is one argument too many.",
            hint=f"epctx batch {_SHOW} ID shows a task.",
        )
    return _run(arguments, console)


# -- a batch
# --------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    from epctx_batch.batch import run_batch
    from epctx_batch.counts import Counts

    counts = Counts()
    with console.progress("compiling", in_logs=True) as progress:

        def note(result: TaskResult, done: int, total: int) -> None:
            counts.add(result, time.monotonic())
            progress(
                "compile",
                done,
                total,
                unit="tasks",
                notes=counts.describe(),
                seconds_left=counts.estimate_seconds(total - done),
            )
            words = "nothing compiled" if result.is_plain else ""
            if result.error is not None:
                words = f"{result.error.message} {result.error.hint}".strip()
            elif result.is_plain and result.warnings:
                words = result.warnings[-1]
            if words:
                console.warn(f"{result.id}: {one_line(words)}")

        result = run_batch(
            arguments.fleet,
            scheduler=arguments.scheduler,
            html=arguments.html,
            progress=note,
        )

    table = make_table(result)
    rows = [
        (
            model,
            *(describe_nodes(row[t]) if t in row else "-" for t in table.targets),
        )
        for model, row in table.rows.items()
    ]
    console.table(("model", *table.targets), rows)
    _print_sums(table, result, console)
    if result.page is not None:
        size = Path(result.page).stat().st_size
        console.say(f"wrote {result.page} ({byte_size(size)})")
    console.result(result)
    return ExitCode.DONE if result.ok else ExitCode.FAILED


def _print_sums(table: Table, result: BatchResult, console: Console) -> None:
    output = result.output
    console.say()
    console.say(f"{describe_sums(table)} in {output}")
    console.say("EPContext nodes + nodes of the CPU EP, by model and target.")
    if table.plain and not (result.ok or table.failed):
        console.note(
            "Nothing was compiled in some tasks. free_dimensions of a [[model]] fixes "
            "open dimensions; with allow_uncompiled = true in [batch] this exits with "
            "0."
        )
    if table.failed or table.plain:
        console.say(f"epctx batch show ID --output {output} has the log of a task.")


# -- a task
# --------------------------------------------------------------------------------------


def _show(wanted: str | None, output: str | None, console: Console) -> ExitCode:
    from epctx_batch.work import LOG, RESULT, TASK, read_result
    from epctx_core.ext import read_small_file

    folder = _find_folder(wanted, output)
    facts = _read_task(folder / TASK)
    result = read_result(folder)
    try:
        log = read_small_file(folder / LOG).decode(errors="replace")
    except FileNotFoundError:
        log = ""
    except OSError as error:
        log = f"The log is not shown: {error}."

    console.say(f"{folder.name}: {_describe_state(folder / RESULT, result)}")
    rows = [
        (str(key), value if isinstance(value, str) else json.dumps(value))
        for key, value in facts.items()
    ]
    if result is not None:
        rows += [(f"node of {ep}", f"{count:,}") for ep, count in result.nodes.items()]
        rows += result.versions.items()
        rows.append(("seconds", f"{result.seconds:.2f}"))
        if result.output is not None:
            rows.append(("output", result.output))
    console.table(("", ""), rows)
    if result is not None and result.is_plain:
        console.say("\nNothing was compiled.")
        for words in result.warnings:
            console.say(one_line(words))
    if result is not None and result.error is not None:
        console.say()
        for words in filter(None, (result.error.message, result.error.hint)):
            console.say(one_line(words))
    console.say()
    console.say(f"{folder / LOG}:")
    for line in log.splitlines():
        console.say(f"  {one_line(line)}")
    console.result(ShowResult(task=result, options=dict(facts), log=log))
    return ExitCode.DONE


def _describe_state(path: Path, result: TaskResult | None) -> str:
    if result is not None:
        return result.state
    if os.path.lexists(path):
        return f"the result cannot be read ({path.name} is none of this task)"
    return "not ended"


def _find_folder(wanted: str | None, output: str | None) -> Path:
    """Return the folder of a task.

    Raises:
        InvalidArgument: no ID was given, or several tasks have such an ID.
        NoSuchFile: there is no such task.
    """
    if not wanted or Path(wanted).name != wanted:
        raise InvalidArgument(
            "epctx batch show needs the ID of a task.",
            hint="It is the name of the task's folder in the folder of the results.",
        )
    folders = [Path(output)] if output else sorted(Path().glob("*-results"))
    found = sorted(
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if path.name.startswith(wanted) and path.is_dir()
    )
    exact = [path for path in found if path.name == wanted]
    if len(exact or found) > 1:
        raise InvalidArgument(
            f"{len(found)} tasks have an ID that begins with {wanted!r}.",
            hint=f"Give more of it, such as {found[0].name}.",
        )
    if not found:
        where = ", ".join(map(str, folders)) or "*-results here"
        raise NoSuchFile(
            f"there is no task {wanted!r} in {where}.",
            hint="Name the folder of the results: --output FOLDER.",
        )
    return (exact or found)[0]


def _read_task(path: Path) -> Mapping[str, Any]:
    from epctx_batch.work import MOST_FACTS
    from epctx_core.ext import read_small_file

    try:
        facts = json.loads(read_small_file(path, MOST_FACTS))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error}.") from error
    if not isinstance(facts, dict) or not _is_flat(facts, _LEVELS):
        raise InvalidArgument(f"{str(path)!r} is not of the form of a task.")
    return facts


def _is_flat(value: object, levels: int) -> bool:
    """Return whether lists and objects lie in each other at most some levels deep:
    deeper ones could be read, but not printed.
    """
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_flat(item, levels - 1) for item in items)
