"""`epctx gate`: compare the facts of a model with a baseline, with one exit code."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from dataclasses import replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from epctx_cli.arguments import (
    CommandParser,
    add_common,
    add_providers,
    no_ep,
    session_options,
)
from epctx_cli.exit_codes import ExitCode
from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_cli.gate_results import Baseline, GateResult
    from epctx_core import ModelInfo, SessionOptions


_VERSIONS = ("distribution", "version", "sdk", "driver", "target")


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
    add_providers(
        parser, ep_help="an EP to compile with; may be repeated, in order of priority"
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Measure, compare and report; 1 if a fact is worse than its tolerance allows."""
    from epctx_cli.gate_results import (
        PASSED,
        REGRESSED,
        Baseline,
        load_baseline,
        write_baseline,
    )

    path = Path(arguments.baseline)
    baseline = Baseline()
    if path.exists() or not arguments.update:
        baseline = load_baseline(path)

    with (
        console.progress("measuring the model"),
        TemporaryDirectory(prefix="epctx-gate-") as folder,
    ):
        result = _measure(arguments, baseline, folder, console)

    if arguments.update:
        write_baseline(
            path,
            replace(baseline, facts=result.facts, made_from=result.made_from),
        )
    console.note_simulated(result.simulated)
    for check in result.checks:
        if console.verbose or check.status != PASSED:
            console.say(f"{check.status}: {check.message}")
        if check.status == REGRESSED:
            console.say(f"  {check.command}", wrap=False)
    for line in (*result.changes, result.summary):
        console.say(line)
    console.result(result)
    return ExitCode.DONE if result.passed else ExitCode.FAILED


def _measure(
    arguments: argparse.Namespace,
    baseline: Baseline,
    folder: str,
    console: Console,
) -> GateResult:
    """Compile a plain model into a folder, and compare the facts."""
    from epctx_cli.gate_results import judge
    from epctx_core import ModelCompiler, __version__, inspect_model
    from epctx_core.ext import digest_model

    session = session_options(arguments, console)
    model, source = arguments.model, arguments.source
    nodes = None
    info = inspect_model(model)
    if not info.ep_contexts:
        if not arguments.ep:
            raise no_ep("gate")
        model, source = str(Path(folder, "gate_ctx.onnx")), arguments.model
        nodes = ModelCompiler(session, source).compile_to_file(model).assignments
        info = inspect_model(model)
    if source is None and baseline.facts.get("errors"):
        raise InvalidArgument(
            f"{arguments.baseline} has errors of results, which need the source.",
            hint="Add --source MODEL, the model that this one was compiled from.",
        )

    loading = _make_load_options(arguments, source, console)
    facts = _list_facts(model, info, loading, source)
    if nodes is not None:
        facts["nodes"] = dict(nodes)
    made_from = {
        "model": digest_model(arguments.model, session).sha256,
        "epctx": __version__,
    }
    plugins = [node.plugin for node in info.ep_contexts if node.plugin]
    for plugin in plugins:
        ep = str(plugin["ep"])
        known = {**info.compiled_by.get(ep, {}), **plugin}
        made_from[ep] = ", ".join(f"{k} {known[k]}" for k in _VERSIONS if known.get(k))
    commands = _make_commands(arguments, is_plain=nodes is not None)
    return judge(
        baseline,
        facts,
        made_from,
        commands,
        named=arguments,
        simulated=sorted({str(p["ep"]) for p in plugins if p["simulated"]}),
    )


def _make_load_options(
    arguments: argparse.Namespace, source: str | None, console: Console
) -> tuple[SessionOptions, SessionOptions]:
    """Return options to load the context model, and its source on the CPU EP."""
    config = [each for each in arguments.config if not each.startswith("ep.context_")]
    given = argparse.Namespace(**{**vars(arguments), "config": config})
    plain = session_options(given, console)
    plain.providers = []
    # The context model has these lengths already.
    given.free_dimension = []
    loading = session_options(given, console)
    if source is not None:
        loading.add_session_config_entry("ep.context_source_model_path", source)
    return loading, plain


def _list_facts(
    model: str,
    info: ModelInfo,
    options: tuple[SessionOptions, SessionOptions],
    source: str | None,
) -> dict[str, dict[str, Any]]:
    """Return the facts of a context model; it is run if it is sound and has a
    source.
    """
    from epctx_cli.comparison import Tolerance, compare_models
    from epctx_cli.gate_results import CPU_EP
    from epctx_core import get_model_compatibility, verify_model

    loading, plain = options
    counts = Counter(node.source for node in info.ep_contexts)
    payloads = {
        (node.source, node.payload_file or node.name): node.payload_bytes or 0
        for node in info.ep_contexts
    }
    sizes = Counter[str]()
    for (ep, _), size in payloads.items():
        sizes[ep] += size
    verdict = verify_model(model, loading).verdict
    errors: dict[str, float | None] = {}
    if source is not None and verdict != "not-ok":
        differences = compare_models(
            (model, loading),
            (source, plain),
            tolerance=Tolerance(absolute=0.0, relative=0.0),
            note=str,
        ).differences
        errors = {each.name: _round(each.max_rel) for each in differences}

    verdicts = {}
    for ep in counts:
        # A session names an EP with or without its ending.
        given = [values for name, values in loading.providers if ep.startswith(name)]
        verdicts[ep] = get_model_compatibility(model, ep, *given[:1]).name
    return {
        "bytes": dict(sizes),
        "errors": errors,
        "nodes": {**counts, CPU_EP: info.other_nodes},
        "partitions": dict(counts),
        "verdicts": verdicts,
        "verification": {"payloads": verdict},
    }


def _round(error: float | None) -> float | None:
    """Return an error in three digits; None without a finite one."""
    if error is None or not isfinite(error):
        return None
    return float(f"{error:.3g}")


def _make_commands(arguments: argparse.Namespace, *, is_plain: bool) -> dict[str, str]:
    """Return the command that shows more, by fact, and for others; values of -p may be
    secret.
    """
    model = shlex.quote(arguments.model)
    eps = "".join(f" --ep {shlex.quote(ep)}" for ep in arguments.ep)
    if is_plain:
        looked = f"epctx explain {model}{eps}"
        others = f"epctx compile {model}{eps} --check"
        return {"nodes": looked, "partitions": looked, "": others}
    looked = f"epctx inspect {model}"
    source = shlex.quote(arguments.source or "SOURCE")
    return {
        "bytes": looked,
        "errors": f"epctx compare {model} {source}{eps}",
        "nodes": looked,
        "partitions": looked,
        "": f"epctx verify {model}{eps}",
    }
