"""`epctx gate`: compare the facts of a model with a baseline, with one exit code."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from epctx_cli.arguments import (
    CommandParser,
    add_common,
    add_inputs,
    add_providers,
    get_stem,
    no_ep,
    provider_options,
    require_plugin,
    session_options,
    whole_number,
)
from epctx_cli.exit_codes import ExitCode
from epctx_core.errors import InvalidArgument, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from epctx_cli.console import Console
    from epctx_cli.gate_results import Check, Value
    from epctx_core import ModelInfo

_VERSIONS = ("distribution", "version", "sdk", "driver", "target")
_STATUS = {
    "slower": "regressed",
    "faster": "improved",
    "not slower": "passed",
    "too noisy": "undecided",
}
"""Status of a check by the verdict of epctx-bench."""


def add_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx gate`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the model, which is compiled for the EPs, or a context model",
    )
    parser.add_argument(
        "--baseline",
        metavar="FILE",
        required=True,
        help="JSON with the facts of the model as it may ship, and tolerances",
    )
    parser.add_flag(
        "--update", "write the baseline, with the tolerances of the one before"
    )
    parser.add_argument(
        "--source",
        metavar="MODEL",
        help="the model that a context model was compiled from, to compare results",
    )
    parser.add_argument(
        "--time",
        metavar="FILE",
        help="measure MODEL, and judge the times by the report in FILE, which --update "
        "writes (needs epctx-bench and onnxruntime)",
    )
    parser.add_argument(
        "--turns",
        type=whole_number,
        default=15,
        metavar="N",
        help="measure each time N times (default: 15)",
    )
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        metavar="FILE",
        help="write a report, too, by its ending: JUnit (.xml), SARIF (.sarif) or a "
        "comment (.md); may be repeated",
    )
    add_providers(
        parser, ep_help="an EP to compile with; may be repeated, in order of priority"
    )
    add_inputs(parser)
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure, compare and report; 1 if a fact is worse than its tolerance allows."""
    from epctx_cli.gate_reports import MAKERS, list_lines
    from epctx_cli.gate_results import (
        Baseline,
        GateResult,
        compare_facts,
        load_baseline,
        write_baseline,
    )
    from epctx_cli.written_files import write_file

    _check_arguments(arguments)
    path = Path(arguments.baseline)
    baseline = Baseline()
    if path.exists() or not arguments.update:
        baseline = load_baseline(path)

    with TemporaryDirectory(prefix="epctx-gate-") as folder:
        facts, info = _measure(arguments, folder, console)
    checks: list[Check] = []
    if baseline.facts:
        # A context model is not compiled.
        is_plain = folder in str(info.path)
        commands = _make_commands(arguments, is_plain=is_plain)
        checks = compare_facts(baseline, facts, commands)
    if arguments.time is not None:
        checks += _judge_times(arguments, baseline.tolerances["times"], console)
    made_from = _describe_origin(arguments, info)
    if arguments.update:
        write_baseline(path, replace(baseline, facts=facts, made_from=made_from))

    simulated = console.note_simulated(
        str(node.plugin["ep"])
        for node in info.ep_contexts
        if node.plugin and node.plugin["simulated"]
    )
    passed, summary = _summarise(checks)
    result = GateResult(
        model=arguments.model,
        baseline=arguments.baseline,
        passed=arguments.update or passed,
        summary=f"{path} is written" if arguments.update else summary,
        changes=_list_changes(baseline.made_from, made_from),
        checks=checks,
        facts=facts,
        made_from=made_from,
        simulated=simulated,
    )
    for line in list_lines(result, verbose=console.verbose):
        console.say(line, wrap=not line.startswith(" "))
    for name in arguments.output:
        write_file(Path(name), MAKERS[Path(name).suffix](result).encode())
    console.result(result)
    return ExitCode.DONE if result.passed else ExitCode.FAILED


def _summarise(checks: Sequence[Check]) -> tuple[bool, str]:
    """Return whether no check is a regression, and how many have each status."""
    from epctx_cli.gate_results import REGRESSED, UNDECIDED

    counts = Counter(check.status for check in checks)
    found = ", ".join(f"{count} {status}" for status, count in counts.items())
    if REGRESSED in counts:
        return False, f"FAILED: {found}"
    # It exits like a success, and must not read like one.
    return True, f"{'UNDECIDED' if UNDECIDED in counts else 'passed'}: {found}"


def _list_changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return how the model and versions differ from those of the baseline."""
    return [
        one_line(f"{name} is {value}, {before[name]} in the baseline")
        for name, value in now.items()
        if before.get(name, value) != value
    ]


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse what would fail after minutes of measuring.

    Raises:
        InvalidArgument: an ending of a report is unknown.
        NoSuchFile, InvalidArgument, Fail: there is no report of times to compare with.
        PackageMissing: epctx-bench is not installed.
        Fail: a folder cannot be written.
    """
    from epctx_cli.gate_reports import MAKERS
    from epctx_core.ext import Publication, import_installed

    for name in arguments.output:
        if Path(name).suffix not in MAKERS:
            raise InvalidArgument(
                f"-o {name!r} is no report: its name ends in none of "
                f"{', '.join(MAKERS)}.",
                path=name,
            )
    written = [arguments.baseline, arguments.time] if arguments.update else []
    for name in filter(None, [*arguments.output, *written]):
        Publication.check_folder(Path(name).parent)
    if arguments.time is not None:
        module = import_installed("epctx_bench", needed_by="--time")
        if not arguments.update:
            module.load_report(arguments.time)


def _measure(
    arguments: argparse.Namespace, folder: str, console: Console
) -> tuple[dict[str, Value], ModelInfo]:
    """Compile a plain model into a folder; return the facts of the context model, and
    what is known of it.

    Raises:
        InvalidArgument: there is no EP to compile with, or times of a context model are
            asked for.
        EpctxError: it cannot be compiled, loaded or run.
    """
    from epctx_core import ModelCompiler, inspect_model

    model, source = arguments.model, arguments.source
    info = inspect_model(model)
    if info.ep_contexts:
        if arguments.time is not None:
            raise InvalidArgument(
                "--time needs a plain model: times are judged by their ratio to "
                "onnxruntime's, which runs no context model of these EPs.",
                hint="Name the source, and its EPs with --ep.",
            )
        return _list_facts(model, source, info, arguments, console), info

    if not arguments.ep:
        raise no_ep("gate")
    session = session_options(arguments, console)
    model, source = str(Path(folder, "gate_ctx.onnx")), arguments.model
    with console.progress("compiling the model") as progress:
        progress.watch(session)
        report = ModelCompiler(session, source).compile_to_file(model)
    info = inspect_model(model)
    facts = _list_facts(model, source, info, arguments, console)
    nodes = {f"nodes {ep}": count for ep, count in report.assignments.items()}
    return {**facts, **nodes}, info


def _list_facts(
    model: str,
    source: str | None,
    info: ModelInfo,
    arguments: argparse.Namespace,
    console: Console,
) -> dict[str, Value]:
    """Return the facts of a context model; it is run if it is sound and has a
    source.
    """
    from epctx_cli.gate_results import CPU_EP, INCOMPARABLE
    from epctx_cli.source_check import compare_with_source, make_options
    from epctx_core import get_model_compatibility, verify_model

    facts: dict[str, Value] = {f"nodes {CPU_EP}": info.other_nodes}
    for ep, count in Counter(node.source for node in info.ep_contexts).items():
        facts |= {f"nodes {ep}": count, f"partitions {ep}": count, f"bytes {ep}": 0}
    payloads = {
        (node.source, node.payload_file or node.name): node.payload_bytes or 0
        for node in info.ep_contexts
    }
    for (ep, _), size in payloads.items():
        facts[f"bytes {ep}"] += size  # type: ignore[operator]

    for ep in {node.source for node in info.ep_contexts}:
        require_plugin(ep)
        given = provider_options(arguments.provider_option, arguments.ep).items()
        options = [each for name, each in given if get_stem(name) == get_stem(ep)]
        facts[f"verdicts {ep}"] = get_model_compatibility(model, ep, *options[:1]).name
    loading, _ = make_options(source, arguments, console)
    verdict = facts["verification payloads"] = verify_model(model, loading).verdict
    if source is None or verdict == "not-ok":
        return facts
    differences = compare_with_source(model, source, arguments, console)
    for each in differences:
        error = each.max_rel
        is_known = error is not None and isfinite(error)
        facts[f"errors {each.name}"] = (
            float(f"{error:.3g}") if is_known else INCOMPARABLE
        )
    return facts


def _judge_times(
    arguments: argparse.Namespace, limit: float, console: Console
) -> list[Check]:
    """Measure the model, and judge its times by the saved ones, or save them."""
    from epctx_cli.gate_results import Check
    from epctx_core.ext import import_installed

    module = import_installed("epctx_bench", needed_by="--time")
    session = session_options(arguments, console)
    settings = module.BenchSettings(
        turns=arguments.turns,
        time_limit=60 * arguments.turns,
        config=dict(session.config_entries),
        free_dimensions=dict(session.model_overrides.dimensions),
    )
    with console.progress() as progress:
        report = module.bench(
            arguments.model,
            eps=[tuple(arguments.ep)],
            provider_options=provider_options(arguments.provider_option, arguments.ep),
            settings=settings,
            progress=progress,
        )
    if arguments.update:
        report.save(arguments.time)
        return []
    saved = module.load_report(arguments.time)
    judgement = module.judge(saved, report.as_dict(), fail_above=limit)
    model = _join_model(arguments)
    command = f"epctx bench {model} --against {shlex.quote(arguments.time)}"
    found = [
        (f"{row.row} of {row.column}", _STATUS[row.verdict], row.change, f"{row}")
        for row in judgement.rows
    ]
    if not found:
        why = [c.error for c in report.columns if c.error] or judgement.notes
        found = [("", "regressed", None, f"no times were judged: {' '.join(why)}")]
    return [
        Check(
            name=f"times {subject}",
            status=status,
            baseline=1.0,
            now=change,
            message=one_line(message),
            command=command,
        )
        for subject, status, change, message in found
    ]


def _describe_origin(arguments: argparse.Namespace, info: ModelInfo) -> dict[str, str]:
    """Return the digest of the model, and versions of epctx and of the EPs."""
    from epctx_core import SessionOptions, __version__
    from epctx_core.ext import digest_model

    digest = digest_model(arguments.model, SessionOptions()).sha256
    made_from = {"model": digest, "epctx": __version__}
    for plugin in (node.plugin for node in info.ep_contexts if node.plugin):
        ep = str(plugin["ep"])
        known = {**info.compiled_by.get(ep, {}), **plugin}
        made_from[ep] = ", ".join(f"{k} {known[k]}" for k in _VERSIONS if known.get(k))
    return made_from


def _join_model(arguments: argparse.Namespace) -> str:
    """Return the model and the EPs as arguments of another command."""
    words = [arguments.model, *(word for ep in arguments.ep for word in ("--ep", ep))]
    return shlex.join(words)


def _make_commands(arguments: argparse.Namespace, *, is_plain: bool) -> dict[str, str]:
    """Return the command that shows more, by the kind of fact, and for others."""
    model = _join_model(arguments)
    looked = f"epctx explain {model}"
    others = errors = f"epctx compile {model} --check"
    if not is_plain:
        looked = f"epctx inspect {shlex.quote(arguments.model)}"
        others = f"epctx verify {model}"
        source = shlex.quote(arguments.source or "SOURCE")
        errors = f"epctx compare {model} {source}"
    # Values of options may be secret.
    is_bare = not any(
        (arguments.config, arguments.provider_option, arguments.free_dimension)
    )
    same = "" if is_bare else " (with the same -c, -p and --free-dimension)"
    kinds = {"nodes": looked, "partitions": looked, "errors": errors, "": others}
    return {kind: f"{command}{same}" for kind, command in kinds.items()}
