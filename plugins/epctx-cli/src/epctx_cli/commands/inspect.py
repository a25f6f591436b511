"""`epctx inspect`: show the content of a context model; nothing is loaded or imported."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common
from epctx_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import ContextNodeInfo, ModelInfo

_IN_OTHER_TABLES = ("main_context", "embed_mode", "source", "partition_name")
_COMPILER = ("distribution", "version", "sdk", "driver", "target")
_COMPILER_IN_DETAIL = ("plugin_api", "options")
_LONGEST_VALUE = 100


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="the model to look into")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Describe the model."""
    from epctx_core import inspect_model

    info = inspect_model(arguments.model)
    files = _files(info)
    _print_report(arguments.model, info, files, console)
    console.result({"model": arguments.model, **info.as_dict(), "files": files})
    return ExitCode.DONE


def _files(info: ModelInfo) -> list[dict[str, Any]]:
    """Return each required file with its size, or the reason why it cannot be opened."""
    import os

    from epctx_core.errors import InvalidGraph
    from epctx_core.ext import ModelFolder

    if info.path is None:
        return []
    folder = ModelFolder(info.path.parent, info.path)
    files: list[dict[str, Any]] = []
    for name in info.required_files:
        entry: dict[str, Any] = {"name": name, "bytes": None, "problem": ""}
        try:
            with folder.open(name, what="the file", node=None) as file:
                entry["bytes"] = os.fstat(file.fileno()).st_size
        except InvalidGraph as error:
            entry["problem"] = error.message
        files.append(entry)
    return files


def _print_report(model: str, info: ModelInfo, files: Sequence[Mapping[str, Any]], console: Console) -> None:
    made_by = f", written by {info.producer}" if info.producer else ""
    nodes = text.counted(len(info.ep_contexts), "EPContext node")
    console.say(f"{model}: {nodes}, {text.counted(info.other_nodes, 'other node')}{made_by}")
    values = [("input", name, kind) for name, kind in info.inputs.items()]
    values += [("output", name, kind) for name, kind in info.outputs.items()]
    console.table(("", "", ""), values)
    _print_nodes(info.ep_contexts, console)
    _print_compilers(info.compiled_by, console)
    console.table(
        ("", ""), [(f["name"], _size(f["bytes"])) for f in files], title="Required files, beside the model:"
    )
    if info.source_files:
        console.say(
            f"\nCompiled in weightless mode {info.weightless_mode}: weights stay in the source model "
            f"{' and '.join(info.source_files)}, needed beside this one or where session options say."
        )
    _warn(info, files, console)


def _print_nodes(nodes: Sequence[ContextNodeInfo], console: Console) -> None:
    console.table(
        ("EPContext node", "source", "payload", "size", "given to"),
        [(n.name, n.source or "-", _payload(n), _size(n.payload_bytes), _loader(n)) for n in nodes],
    )
    renamed = [(n.name, n.partition_name) for n in nodes if n.partition_name != n.name]
    console.table(("EPContext node", "partition_name"), renamed)
    groups: dict[object, list[ContextNodeInfo]] = {}
    for node in nodes:
        groups.setdefault((node.source, *_attributes(node)), []).append(node)
    for members in groups.values():
        attributes = [_attributes(node) for node in members]
        rows = [(key, _values([each[key] for each in attributes])) for key in attributes[0]]
        console.table(("", ""), rows, title=_attributes_title(members, nodes))


def _print_compilers(compiled_by: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    """Print the plugins, SDKs and drivers that compiled the model; with `-v` also digests of their options."""
    facts = [*_COMPILER, *(_COMPILER_IN_DETAIL if console.verbose else ())]
    console.table(
        ("compiled by", *(fact.replace("_", " ") for fact in facts)),
        [(ep, *(str(known.get(fact) or "-") for fact in facts)) for ep, known in compiled_by.items()],
    )


def _size(count: int | None) -> str:
    return "-" if count is None else text.byte_size(count)


def _payload(node: ContextNodeInfo) -> str:
    if not node.main_context:
        return "in a primary node"
    if node.embed_mode:
        return "embedded"
    return node.payload_file or "none"


def _loader(node: ContextNodeInfo) -> str:
    if node.plugin is None:
        return "no plugin"
    simulated = ", simulated" if node.plugin["simulated"] else ""
    version = node.plugin["version"] or ""
    return f"{node.plugin['distribution'] or 'host'} {version} ({node.plugin['state']}{simulated})"


def _attributes(node: ContextNodeInfo) -> dict[str, Any]:
    return {key: value for key, value in sorted(node.attributes.items()) if key not in _IN_OTHER_TABLES}


def _values(values: Sequence[object]) -> str:
    """Return the values of one attribute: once if all are equal, else in the order of the nodes."""
    if all(value == values[0] for value in values):
        return _shorten(values[0])
    return _shorten(", ".join(map(_shorten, values)))


def _attributes_title(members: Sequence[ContextNodeInfo], nodes: Sequence[ContextNodeInfo]) -> str:
    if len(members) == len(nodes):
        return "Attributes:" if len(nodes) == 1 else "Attributes of every node:"
    if len(members) == 1:
        return f"Attributes of {members[0].name}:"
    return f"Attributes of {members[0].name} and {len(members) - 1} more:"


def _shorten(value: object) -> str:
    if isinstance(value, bytes):
        return f"{text.byte_size(len(value))} of bytes"
    words = str(value)
    return words if len(words) <= _LONGEST_VALUE else f"{words[:_LONGEST_VALUE]}… ({len(words):,} characters)"


def _warn(info: ModelInfo, files: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Warn of everything that keeps the model from being loaded here."""
    from epctx_core import default_registry

    problems = [n.problem for n in info.ep_contexts if n.problem]
    reported = {n.payload_file for n in info.ep_contexts if n.problem}
    problems += [f["problem"] for f in files if f["problem"] and f["name"] not in reported]
    for problem in dict.fromkeys(problems):
        console.warn(problem)
    usable = {"discovered", "loaded", "unavailable"}
    lacking = {n.source for n in info.ep_contexts if n.plugin is None or n.plugin["state"] not in usable}
    for source in sorted(lacking):
        why, hint = default_registry.explain_missing(source)
        console.warn(f"{why}\n{hint}")
