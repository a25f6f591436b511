"""`epctx inspect`, `epctx verify` and `epctx explain`: report on a model without
compiling or running it.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import (
    CommandParser,
    add_common,
    add_providers,
    no_ep,
    session_options,
    whole_number,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.results import (
    ExplainResult,
    InspectResult,
    RequiredFile,
    VerifyResult,
)
from epctx_core.errors import InvalidArgument, one_line

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.model_facts import ModelFacts
    from epctx_core import (
        ContextNodeInfo,
        Explanation,
        ModelInfo,
        NodeExplanation,
        VerifyReport,
    )

_IN_OTHER_TABLES = ("main_context", "embed_mode", "source", "partition_name")
_COMPILER = ("distribution", "version", "sdk", "driver", "target")
_COMPILER_IN_DETAIL = ("plugin_api", "options")
_MOST_ROWS = 20
"""Operators, inputs, outputs and open dimensions without `-v`."""


def add_inspect_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx inspect`."""
    parser.add_argument(
        "model", metavar="MODEL", help="the model, or the vendor's binary, to inspect"
    )
    add_common(parser)
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace, console: Console) -> int:
    """Describe the model."""
    from epctx_cli.model_facts import read_facts
    from epctx_core import inspect_model

    native = _find_native_formats()
    if native is not None and native.inspect_binary(arguments.model, console):
        return ExitCode.DONE
    facts = None
    with console.progress("reading the model"):
        info = inspect_model(arguments.model)
        if info.path is not None and not info.ep_contexts:
            facts = read_facts(info.path)
    files = _list_files(info)
    _print_inspect(arguments.model, info, files, console)
    parts: list[Any] = []
    if facts is not None:
        _print_facts(facts, console)
        parts.append(facts)
    if native is not None and info.ep_contexts:
        parts.append(native.inspect_payloads(_open_payloads(info), console))
    _warn(info, files, console)
    result = InspectResult(
        model=arguments.model,
        sealed_by=_find_sealer(info),
        files=files,
    )
    console.result(info, result, *parts)
    return ExitCode.DONE


def _find_native_formats() -> Any:
    """Return the module that reads vendors' binaries, None if its package is not
    installed.
    """
    from epctx_core.errors import PackageMissing
    from epctx_core.ext import import_installed

    try:
        return import_installed("epctx_native_formats.commands", needed_by="inspect")
    except PackageMissing:
        return None


def _open_payloads(info: ModelInfo) -> Iterator[tuple[str, Any]]:
    """Yield the payloads of a model that can be opened, as files or bytes, by the names
    of their files, or of the nodes that hold them; what is wrong with others is said of
    the nodes.
    """
    from epctx_cli.graphs import walk_graphs
    from epctx_core.errors import InvalidGraph
    from epctx_core.ext import ModelFolder, read_with_manifest

    primaries = [node for node in info.ep_contexts if node.main_context]
    if info.path is None:
        return
    folder = ModelFolder(info.path.parent, info.path)
    for name in dict.fromkeys(n.payload_file for n in primaries if n.payload_file):
        with (
            suppress(InvalidGraph),
            folder.open(name, what="a file", node=None) as file,
        ):
            yield name, file

    if any(node.embed_mode for node in primaries):
        proto, *_ = read_with_manifest(info.path)
        nodes = chain.from_iterable(graph.node for graph in walk_graphs(proto))
        for number, node in enumerate(nodes):
            caches = [a.s for a in node.attribute if a.name == "ep_cache_context"]
            embedded = any(a.name == "embed_mode" and a.i == 0 for a in node.attribute)
            if node.op_type == "EPContext" and caches and not embedded:
                yield node.name or f"node {number}", memoryview(caches[0])


def _find_sealer(info: ModelInfo) -> str | None:
    """Return the tool that gave digests to a model that another one compiled."""
    if info.manifest is None or info.manifest.sealed is None:
        return None
    return info.manifest.sealed.by


def _list_files(info: ModelInfo) -> list[RequiredFile]:
    """Return each required file with its size, or the reason why it cannot be
    opened.
    """
    import os

    from epctx_core.errors import InvalidGraph
    from epctx_core.ext import ModelFolder

    if info.path is None:
        return []
    folder = ModelFolder(info.path.parent, info.path)
    files = []
    for name in info.required_files:
        size = None
        problem = ""
        try:
            with folder.open(name, what="the file", node=None) as file:
                size = os.fstat(file.fileno()).st_size
        except InvalidGraph as error:
            problem = error.message
        files.append(RequiredFile(name=name, bytes=size, problem=problem))
    return files


def _print_inspect(
    model: str, info: ModelInfo, files: Sequence[RequiredFile], console: Console
) -> None:
    maker = text.cut(info.producer)
    if info.manifest is not None and info.manifest.sealed is None:
        # A context model has the producer of its source.
        maker = f"epctx from a model of {maker}" if maker else "epctx"
    made_by = f", written by {maker}" if maker else ""
    count = text.count_nodes(info.other_nodes, info.inside_nodes)
    nodes = f"{count}, no EPContext node"
    if contexts := len(info.ep_contexts):
        others = text.counted(info.other_nodes, "other node")
        nodes = f"{text.counted(contexts, 'EPContext node')}, {others}"
        if info.inside_nodes:
            nodes += f", {info.inside_nodes:,} of all inside subgraphs and functions"
    console.say(f"{model}: {nodes}{made_by}")
    _print_values(info, console)
    _print_nodes(info.ep_contexts, console)
    _print_compilers(info, console)
    if sealer := _find_sealer(info):
        console.say(f"\nCompiled by an unknown tool, sealed by {text.cut(sealer)}.")
    console.table(
        ("custom operators", "library to register"), [*info.custom_domains.items()]
    )
    console.table(
        ("", ""),
        [(file.name, _describe_size(file.bytes)) for file in files],
        title="Required files, beside the model:",
    )
    if info.source_files:
        sources = " and ".join(map(text.cut, info.source_files))
        console.say(
            f"\nCompiled in weightless mode {info.weightless_mode}: weights stay in "
            f"the source model {sources}, needed "
            "beside this one or where session options say."
        )


def _print_values(info: ModelInfo, console: Console) -> None:
    """Print the inputs and outputs, with `-v` all of them."""
    kinds = {"input": info.inputs, "output": info.outputs}
    shown = None if console.verbose else _MOST_ROWS
    rows = [
        (kind, *each)
        for kind, values in kinds.items()
        for each in [*values.items()][:shown]
    ]
    console.table(("", "", ""), rows)
    for kind, values in kinds.items():
        if shown is not None and (left := len(values) - shown) > 0:
            console.say(f"  and {text.counted(left, f'more {kind}')}; see -v")


def _print_open_dimensions(facts: ModelFacts, console: Console) -> None:
    from epctx_cli.model_facts import FIX_UNNAMED

    if not facts.open_dimensions:
        return
    unnamed = facts.unnamed_dimensions
    names = facts.open_dimensions[:-1] if unnamed else facts.open_dimensions
    shown = len(names) if console.verbose else _MOST_ROWS
    words = ", ".join(map(text.cut, names[:shown]))
    further = len(names[shown:])
    if further:
        words += f" and {further:,} more"
    if unnamed:
        words += f"{' and ' if words else ''}{unnamed:,} without a name"
    words += "; see -v" if further else ""
    console.say(f"Open dimensions of inputs: {words}")
    if unnamed:
        console.say(f"A length without a name is set by\n{FIX_UNNAMED}", wrap=False)


def _print_facts(facts: ModelFacts, console: Console) -> None:
    """Print the facts of a plain model."""
    opsets = ", ".join(f"{text.cut(name)} {n}" for name, n in facts.opsets.items())
    console.say(f"\nIR version {facts.ir_version}, opsets: {opsets or 'none'}")
    _print_open_dimensions(facts, console)
    others = {"subgraph": facts.subgraphs, "function": facts.functions}
    if parts := [text.counted(count, noun) for noun, count in others.items() if count]:
        console.say(f"Counted with the main graph: {' and '.join(parts)}")

    shown = len(facts.operators) if console.verbose else _MOST_ROWS
    operators = [*facts.operators.items()]
    console.table(("operator", "nodes"), operators[:shown])
    if left := operators[shown:]:
        nodes = text.counted(sum(count for _, count in left), "node")
        console.say(f"  and {text.counted(len(left), 'operator')} of {nodes}; see -v")
    console.table(("quantization", "nodes"), [*facts.quantization.items()])
    _print_weights(facts, console)


def _print_weights(facts: ModelFacts, console: Console) -> None:
    from epctx_cli.model_facts import count_elements

    size = text.byte_size(facts.weight_bytes)
    outside = facts.external_weights
    place = "a file of its own" if outside == 1 else "files of their own"
    where = f" ({outside:,} in {place})" if outside else ""
    weights = sum(total["weights"] for total in facts.weight_types.values())
    console.say(
        f"\n{text.counted(weights, 'weight')}{where}: "
        f"{text.counted(facts.parameters, 'parameter')}, {size}"
    )
    rows = [
        (name, total["weights"], total["parameters"], text.byte_size(total["bytes"]))
        for name, total in facts.weight_types.items()
    ]
    console.table(("type", "weights", "parameters", "size"), rows)
    largest = []
    for each in facts.largest_weights:
        lengths = ",".join(map(str, each.shape))
        is_possible = count_elements(each.shape) is not None
        bytes_ = text.byte_size(each.bytes) if is_possible else "-"
        largest.append((each.name, f"{each.type}[{lengths}]", bytes_))
    console.table(("largest weights", "type", "size"), largest)


def _print_compilers(info: ModelInfo, console: Console) -> None:
    """Print the EPs of the compile."""
    # With `-v` also digests of the options.
    facts = [*_COMPILER, *(_COMPILER_IN_DETAIL if console.verbose else ())]
    columns = [fact.replace("_", " ") for fact in facts]
    rows = []
    for ep, compiler in info.compiled_by.items():
        values = [str(compiler.get(fact) or "-") for fact in facts]
        rows.append((ep, *values))
    console.table(("compiled by", *columns), rows)


def _print_nodes(nodes: Sequence[ContextNodeInfo], console: Console) -> None:
    rows = [
        (
            node.name,
            node.source or "-",
            _describe_payload(node),
            _describe_size(node.payload_bytes),
            _describe_loader(node),
        )
        for node in nodes
    ]
    console.table(("EPContext node", "source", "payload", "size", "given to"), rows)
    renamed = [(n.name, n.partition_name) for n in nodes if n.partition_name != n.name]
    console.table(("EPContext node", "partition_name"), renamed)

    groups: dict[object, list[ContextNodeInfo]] = {}
    for node in nodes:
        groups.setdefault((node.source, *_list_attributes(node)), []).append(node)
    for members in groups.values():
        attributes = [_list_attributes(node) for node in members]
        values = [
            (key, _join_values([each[key] for each in attributes]))
            for key in attributes[0]
        ]
        console.table(("", ""), values, title=_make_title(members, nodes))


def _describe_size(count: int | None) -> str:
    return "-" if count is None else text.byte_size(count)


def _describe_payload(node: ContextNodeInfo) -> str:
    if not node.main_context:
        return "in a primary node"
    if node.embed_mode:
        return "embedded"
    return node.payload_file or "none"


def _describe_loader(node: ContextNodeInfo) -> str:
    if node.plugin is None:
        return "no plugin"
    distribution = node.plugin["distribution"] or "host"
    version = node.plugin["version"] or ""
    state = node.plugin["state"]
    simulated = ", simulated" if node.plugin["simulated"] else ""
    return f"{distribution} {version} ({state}{simulated})"


def _list_attributes(node: ContextNodeInfo) -> dict[str, Any]:
    return {
        key: value
        for key, value in sorted(node.attributes.items())
        if key not in _IN_OTHER_TABLES
    }


def _join_values(values: Sequence[object]) -> str:
    """Return the values of one attribute: once if all are equal, else in the order of
    the nodes.
    """
    if all(value == values[0] for value in values):
        return _shorten(values[0])
    return _shorten(", ".join(map(_shorten, values)))


def _make_title(
    members: Sequence[ContextNodeInfo], nodes: Sequence[ContextNodeInfo]
) -> str:
    if len(members) == len(nodes):
        return "Attributes:" if len(nodes) == 1 else "Attributes of every node:"
    first = text.cut(members[0].name)
    if len(members) == 1:
        return f"Attributes of {first}:"
    return f"Attributes of {first} and {len(members) - 1} more:"


def _shorten(value: object) -> str:
    if isinstance(value, bytes):
        return f"{text.byte_size(len(value))} of bytes"
    return text.cut(value)


def _warn(info: ModelInfo, files: Sequence[RequiredFile], console: Console) -> None:
    """Warn of everything that keeps the model from being loaded here."""
    from epctx_core import default_registry

    problems = [n.problem for n in info.ep_contexts if n.problem]
    reported = {n.payload_file for n in info.ep_contexts if n.problem}
    problems += [
        file.problem for file in files if file.problem and file.name not in reported
    ]
    for problem in dict.fromkeys(problems):
        console.warn(problem)
    usable = {"discovered", "loaded"}
    lacking = {
        n.source
        for n in info.ep_contexts
        if n.plugin is None or n.plugin["state"] not in usable
    }
    for source in sorted(lacking):
        why, hint = default_registry.explain_missing(source)
        console.warn(f"{one_line(why)}\n{hint}")


_LABELS = {"error": "error", "warning": "warning", "info": "note"}
_NO_MODEL = "model-unreadable"
_BROKEN = "plugin-broken"


def add_verify_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx verify`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help=(
            "the context model to check, with the files beside it; or a folder with a "
            "digest, as `epctx seal FOLDER` writes it"
        ),
    )
    add_providers(
        parser,
        ep_help=(
            "an EP of the load; may be repeated (default: the sources of the nodes)"
        ),
    )
    parser.add_flag("--strict", "exit with 1 if no byte of a payload could be checked")
    parser.add_argument(
        "--public-key",
        metavar="KEY.pem",
        help="require a signature of the folder by this key (needs model-signing)",
    )
    add_common(parser)
    parser.set_defaults(run=run_verify)


def run_verify(arguments: argparse.Namespace, console: Console) -> int:
    """Check the model and list the findings.

    Returns:
        1 for a faulty model or folder, or with `--strict` for a model that was not
        checked; 2 for an unreadable one; 3 if all errors are of plugins.
    """
    from epctx_core import verify_model

    if Path(arguments.model).is_dir():
        from epctx_cli.commands.verify_folder import run_verify_folder

        return run_verify_folder(arguments, console)
    if arguments.public_key is not None:
        raise InvalidArgument("--public-key is for folders, not models.")
    session = session_options(arguments, console)
    with console.progress("checking the model") as progress:
        progress.watch(session)
        report = verify_model(arguments.model, session)
    _print_verify(arguments.model, report, console)
    console.result(report, VerifyResult(model=arguments.model))
    errors = {
        finding.code for finding in report.findings if finding.severity.value == "error"
    }
    if _NO_MODEL in errors:
        return ExitCode.USAGE
    if errors == {_BROKEN}:
        return ExitCode.PLUGIN
    return (
        ExitCode.FAILED
        if errors or (arguments.strict and not report.checked)
        else ExitCode.DONE
    )


def _print_verify(model: str, report: VerifyReport, console: Console) -> None:
    nodes = text.counted(report.nodes, "EPContext node")
    payloads = text.counted(len(report.payloads), "payload")
    console.say(f"{model}: {nodes}, {payloads}")
    rows = [
        (
            payload.name,
            text.byte_size(payload.size),
            "right" if payload.digests else "-",
            payload.looked_into_by or "nobody",
        )
        for payload in report.payloads
    ]
    console.table(("payload", "size", "digests", "checked by"), rows)

    for finding in report.findings:
        console.say(f"\n{_LABELS[finding.severity.value]} {finding.code}")
        for words in filter(None, (finding.message, finding.hint)):
            console.say(f"  {one_line(words)}")

    counts = Counter(finding.severity.value for finding in report.findings)
    summary = ", ".join(
        text.counted(counts[kind], word)
        for kind, word in _LABELS.items()
        if counts[kind]
    )
    verdict = report.verdict.replace("-", " ")
    console.say(f"\n{verdict}: {summary or 'nothing found'}")


_SHOWN_OPERATORS = 6
_SHOWN_LENGTHS = 3


def add_explain_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx explain`."""
    parser.add_argument(
        "model", metavar="MODEL", help="the ONNX model to explain; nothing is compiled"
    )
    add_providers(parser, ep_help="an EP to ask; may be repeated, in order of priority")
    parser.add_argument(
        "--fail-on-cpu",
        nargs="?",
        const=0,
        default=0,
        type=whole_number,
        metavar="N",
        help=(
            "exit with 1 if more than N nodes are left to the CPU EP (default: 0, also "
            "without this option)"
        ),
    )
    parser.add_argument(
        "--annotate",
        metavar="OUT.onnx",
        help=(
            "write a copy of the model, without weights and of IR version 10 at least, "
            "whose nodes name EP, partition and refusals, for Netron and Model Explorer"
        ),
    )
    parser.add_argument(
        "--html",
        metavar="OUT.html",
        help="write a page that shows the cut and the refusals (needs epctx-report)",
    )
    add_common(parser)
    parser.set_defaults(run=run_explain)


def run_explain(arguments: argparse.Namespace, console: Console) -> int:
    """Ask the EPs; 1 if more nodes are left to the CPU EP than `--fail-on-cpu` says."""
    from epctx_core import explain_model
    from epctx_core.ext import import_installed

    if not arguments.ep:
        raise no_ep("explain")
    model = Path(arguments.model)
    annotated = _check_output("--annotate", arguments.annotate, ".onnx")
    page = _check_output("--html", arguments.html, ".html")
    reporting = None
    if page is not None:
        reporting = import_installed("epctx_report.report", needed_by="--html")
    session = session_options(arguments, console)
    with console.progress("asking the EPs") as progress:
        progress.watch(session)
        explanation = explain_model(arguments.model, session)
    _print_explain(arguments.model, explanation, console)
    written = []
    if annotated is not None:
        from epctx_cli.annotation import annotate
        from epctx_cli.written_files import write_file

        copy = annotate(explanation)
        write_file(annotated, copy.SerializeToString(deterministic=True))
        written.append(annotated)
    if page is not None and reporting is not None:
        report = reporting.make_report(
            model, sess_options=session, explanation=explanation
        )
        written.append(report.write(page))
    if written:
        console.say()
    for path in written:
        console.say(f"wrote {path} ({text.byte_size(path.stat().st_size)})")
    placement = explanation.placement
    result = ExplainResult(
        model=arguments.model,
        left=placement.eps[-1]["nodes"],
        total_nodes=placement.total_nodes,
        inside_nodes=placement.inside_nodes,
        folded_nodes=placement.folded_nodes,
        written=[str(path) for path in written],
    )
    console.result(explanation, result)
    if result.left > arguments.fail_on_cpu:
        return ExitCode.FAILED
    return ExitCode.DONE


def _check_output(option: str, name: str | None, ending: str) -> Path | None:
    """Return the path of a file to write, None if the option was not given.

    Raises:
        InvalidArgument: it has another ending, or is a model that is no annotated
            copy.
        Fail: its folder cannot be written.
    """
    from epctx_cli.annotation import is_annotated
    from epctx_core.ext import Publication

    if name is None:
        return None
    path = Path(name)
    # Viewers choose by the ending, and no file of weights is replaced by mistake.
    if path.suffix.lower() != ending or path.is_dir():
        raise InvalidArgument(
            f"{option} {name!r} is not the name of a file that ends in {ending}.",
            path=path,
            hint=f"Choose a name such as explained{ending}.",
        )
    if path.exists() and ending == ".onnx" and not is_annotated(path):
        raise InvalidArgument(
            f"{option} {name!r} exists and is no annotated copy: it was not replaced.",
            path=path,
            hint="Choose another name, or remove it first.",
        )
    Publication.check_folder(path.parent)
    return path


def _print_explain(model: str, explanation: Explanation, console: Console) -> None:
    nodes = explanation.nodes
    placement = explanation.placement
    count = text.count_nodes(
        placement.total_nodes,
        placement.inside_nodes,
        placement.folded_nodes,
    )
    left = placement.eps[-1]["nodes"]
    console.say(f"{model}: {count}, {left:,} left to the CPU EP")
    partitions = Counter(
        ep for ep, _ in {(n.ep, n.partition) for n in nodes if n.partition is not None}
    )
    compiled = Counter(node.ep for node in nodes if node.compiled)
    console.table(
        ("taken by", "nodes", "partitions", "operators"),
        [
            (
                f"{row['ep']} (compiled already)"
                if compiled[row["ep"]] == row["nodes"] > 0
                else row["ep"],
                row["nodes"],
                partitions[row["ep"]] + compiled[row["ep"]],
                text.operators(row["operators"], _SHOWN_OPERATORS),
            )
            for row in placement.eps
        ],
    )
    _print_reasons(explanation, console)
    if console.verbose:
        columns = ("node", "operator", "taken by", "partition", "refused by")
        console.table(columns, [_describe_node(node) for node in nodes])
    elif nodes:
        console.say("\n-v lists every node.")


def _describe_node(node: NodeExplanation) -> tuple[str, str, str, str, str]:
    """Return the row of a node in the table of `-v`."""
    from epctx_cli.annotation import join_refusals

    return (
        node.name,
        node.operator,
        node.ep,
        "-" if node.partition is None else f"{node.partition}",
        join_refusals(node),
    )


def _print_reasons(explanation: Explanation, console: Console) -> None:
    """List each reason once, in the order of the numbers of nodes; one that follows
    from another is counted there.
    """
    from epctx_conformance.refusals import Refused

    from epctx_cli.model_facts import FIX_UNNAMED, list_open_dimensions

    lines = text.describe_refusals(
        Refused(ep, reason, node.name, node.operator, node.follows.get(ep), node.inside)
        for node in explanation.nodes
        for ep, reason in node.refusals
    )
    if lines:
        console.say("\nRefused:")
    for line in lines:
        console.say(f"  {line}")
    names, unnamed = list_open_dimensions(explanation.model)
    if lines and names:
        shown = ", ".join(map(text.cut, names))
        # Parts of a command to paste, which foreign text may not change.
        usable = [n for n in names if n.isprintable() and text.cut(n) == n]
        fixes = [
            f"--free-dimension {shlex.quote(name)}=…"
            for name in (usable or ["NAME"])[:_SHOWN_LENGTHS]
        ]
        end = " and so on" if len(names) > _SHOWN_LENGTHS else ""
        console.say(
            f"\nOpen dimensions of inputs: {shown}. For EPs that take static shapes "
            f"only, fix them at the lengths that you use: {' '.join(fixes)}{end}"
        )
    if lines and unnamed:
        console.say(
            f"\nInputs have {text.counted(unnamed, 'open dimension')} without a name. "
            "For EPs that take static shapes only, set the lengths in the model by"
        )
        console.say(FIX_UNNAMED, wrap=False)
