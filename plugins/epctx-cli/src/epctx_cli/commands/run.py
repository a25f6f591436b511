"""`epctx run` and `epctx compare`: run models on the same inputs, and show where
outputs differ.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import (
    CommandParser,
    add_common,
    add_inputs,
    add_providers,
    parse_dimension,
    session_options,
)
from epctx_cli.exit_codes import ExitCode
from epctx_cli.profiling import add_profile, profiling
from epctx_cli.results import (
    ComparedModel,
    CompareResult,
    Durations,
    InputFacts,
    OutputFacts,
    RunResult,
)
from epctx_core.errors import InvalidArgument, one_line

if TYPE_CHECKING:
    from epctx_bench.partition_errors import PartitionErrors

    from epctx_cli.arrays import Lengths
    from epctx_cli.comparison import Comparison, Difference, InnerDifference, Model
    from epctx_cli.console import Console
    from epctx_cli.node_counts import NodeCounts
    from epctx_cli.reduction import Reduction
    from epctx_core import InferenceSession, NodeArg, SessionOptions


def add_run_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx run`."""
    parser.add_argument("model", metavar="MODEL", help="a plain or compiled model")
    add_providers(
        parser,
        ep_help=(
            "an EP to run on; may be repeated (default: the EPs of a context model)"
        ),
    )
    add_inputs(parser)
    parser.add_argument(
        "--output", metavar="OUT.npz", help="write the outputs, by name"
    )
    parser.add_flag(
        "--placement",
        "show nodes and weights of each EP, and why EPs left nodes to the CPU EP",
    )
    add_profile(parser)
    add_common(parser)
    parser.set_defaults(run=run_run)


def run_run(arguments: argparse.Namespace, console: Console) -> int:
    """Load and run the model, and describe its outputs."""
    from epctx_cli.arrays import check_writable, explain_made_lengths, save_arrays
    from epctx_cli.node_counts import count_nodes
    from epctx_core import InferenceSession

    session_settings = session_options(arguments, console)
    if arguments.output is not None:
        check_writable(arguments.output)
    with (
        console.progress() as progress,
        profiling(arguments, session_settings, console),
    ):
        progress.watch(session_settings)
        start = time.perf_counter()
        with InferenceSession(arguments.model, session_settings) as session:
            loaded = time.perf_counter()
            inputs, lengths = _inputs(arguments, session, console)
            names = [output.name for output in session.get_outputs()]
            begun = time.perf_counter()
            with explain_made_lengths(lengths):
                results = dict(zip(names, session.run(None, inputs), strict=True))
            seconds = Durations(load=loaded - start, run=time.perf_counter() - begun)
            outputs = [
                _describe_output(output, results[output.name])
                for output in session.get_outputs()
            ]
            nodes = count_nodes(session)
            placement = session.placement() if arguments.placement else None
    if arguments.output is not None:
        save_arrays(arguments.output, results)
    _print_run(arguments, nodes, outputs, seconds, console)
    if placement is not None:
        console.say(f"\n{placement}", wrap=False)
    simulated = console.note_simulated(nodes.simulated)
    console.result(
        RunResult(
            model=arguments.model,
            providers=list(nodes.by_ep),
            nodes=dict(nodes.by_ep),
            simulated=simulated,
            inputs=[
                InputFacts(name=name, type=str(array.dtype), shape=list(array.shape))
                for name, array in inputs.items()
            ],
            made_from_seed=None if arguments.input else arguments.seed,
            outputs=outputs,
            output_file=arguments.output,
            seconds=seconds,
            placement=placement,
        )
    )
    return ExitCode.DONE


def _inputs(
    arguments: argparse.Namespace, session: InferenceSession, console: Console
) -> tuple[Mapping[str, Any], Lengths]:
    """Return the inputs, and the lengths of those that were made."""
    from epctx_cli.arrays import (
        describe_inputs,
        load_inputs,
        make_inputs,
        merge_lengths,
    )

    expected = session.get_inputs()
    if arguments.input is not None:
        return load_inputs(arguments.input, expected), {}
    lengths = merge_lengths(expected)
    inputs = make_inputs(expected, lengths, arguments.seed)
    console.note(describe_inputs(inputs, lengths, arguments.seed))
    return inputs, lengths


def _describe_output(output: NodeArg, value: Any) -> OutputFacts:
    """Return name, type, shape, and the range of the numbers."""
    import numpy as np

    facts = OutputFacts(
        name=output.name, type=output.type, shape=None, min=None, max=None, mean=None
    )
    if not isinstance(value, np.ndarray):
        return facts
    facts = replace(facts, shape=list(value.shape))
    if not value.size or value.dtype.kind in "OUSTc":
        return facts
    wide = value.astype(np.float64)
    return replace(
        facts,
        min=float(wide.min()),
        max=float(wide.max()),
        mean=float(wide.mean()),
    )


def _print_run(
    arguments: argparse.Namespace,
    nodes: NodeCounts,
    outputs: list[OutputFacts],
    seconds: Durations,
    console: Console,
) -> None:
    console.say(f"EPs: {nodes}")
    rows = []
    for output in outputs:
        shape = "-" if output.shape is None else str(output.shape)
        numbers = map(text.number, (output.min, output.max, output.mean))
        rows.append((output.name, output.type, shape, *numbers))
    console.table(("output", "type", "shape", "min", "max", "mean"), rows)
    console.say(
        f"\nLoaded in {seconds.load * 1e3:.1f} ms, ran in {seconds.run * 1e3:.1f} ms."
    )
    if arguments.output is not None:
        console.say(f"Outputs are in {arguments.output}.")


DEFAULT_ATOL = 1e-6
DEFAULT_RTOL = 1e-4


def add_compare_arguments(parser: CommandParser) -> None:
    """Declare the options of `epctx compare`."""
    parser.add_argument("model", metavar="A", help="a plain or compiled model")
    parser.add_argument("reference", metavar="B", help="the reference, another model")
    add_providers(
        parser,
        ep_help=(
            "an EP for both models; may be repeated (default: the EPs of context "
            "models)"
        ),
    )
    add_inputs(parser)
    _add_partition_arguments(parser)
    parser.add_argument(
        "--atol",
        type=float,
        default=DEFAULT_ATOL,
        help=f"largest max_abs (default: {DEFAULT_ATOL:g})",
    )
    parser.add_argument(
        "--rtol",
        type=float,
        default=DEFAULT_RTOL,
        help="largest max_rel, max|a-b| / (max|b| + 1e-6) (default: "
        f"{DEFAULT_RTOL:g}); an output is equal if it is within either",
    )
    add_common(parser)
    parser.set_defaults(run=run_compare)


def _add_partition_arguments(parser: CommandParser) -> None:
    parser.add_flag(
        "--by-partition",
        "show the error that each partition of A makes on the reference's values of "
        "its inputs, and the one that it inherits; B runs without EPs (needs "
        "epctx-bench and epctx-files)",
    )
    parser.add_argument(
        "--inputs",
        metavar="DIR",
        help="compare partitions on every .npz file of a folder",
    )
    parser.add_argument(
        "--reduce",
        metavar="DIR",
        help=(
            "write the smallest part of B in which the worst partition's error is "
            "found, compiled with the EPs and options of A"
        ),
    )


def run_compare(arguments: argparse.Namespace, console: Console) -> int:
    """Run both models and compare them, also inside if outputs differ."""
    from epctx_cli.comparison import Tolerance, compare_models, first_difference

    if not (arguments.atol >= 0 and arguments.rtol >= 0):
        raise InvalidArgument("--atol and --rtol must be 0 or more.")
    tolerance = Tolerance(absolute=arguments.atol, relative=arguments.rtol)
    files = _list_input_files(arguments)
    a, b = _pair_with_options(arguments, console)
    inside = partitions = None
    with console.progress() as progress:
        progress.watch(a[1], b[1])
        comparison = compare_models(
            a,
            b,
            tolerance=tolerance,
            note=console.note,
            input_path=files[0] if files else None,
            seed=arguments.seed,
        )
        equal = all(d.equal for d in comparison.differences)
        if arguments.by_partition:
            partitions = _compare_partitions(arguments, a, b, comparison, files)
        elif not equal:
            try:
                inside = first_difference(a, b, comparison.inputs, tolerance)
            except Exception as error:  # noqa: BLE001 - the report of the outputs is complete without it
                console.debug(
                    f"Values inside the models could not be compared: {error}"
                )
    _print_compare(arguments, comparison, inside, console)
    if partitions is not None:
        _print_partitions(*partitions, console)
        if arguments.reduce is not None and partitions[1] is None:
            console.say("\nNo partition has an error of its own.")
    simulated = console.note_simulated(
        ep for nodes in comparison.nodes for ep in nodes.simulated
    )
    console.result(
        CompareResult(
            equal=equal,
            outputs=comparison.differences,
            models=[
                ComparedModel(
                    path=path, providers=list(nodes.by_ep), nodes=dict(nodes.by_ep)
                )
                for (path, _), nodes in zip((a, b), comparison.nodes, strict=True)
            ],
            simulated=simulated,
            made_from_seed=None if files else arguments.seed,
            atol=arguments.atol,
            rtol=arguments.rtol,
            first_inside=inside,
            by_partition=partitions and partitions[0],
            reduction=partitions and partitions[1],
        )
    )
    return ExitCode.DONE if equal else ExitCode.FAILED


def _list_input_files(arguments: argparse.Namespace) -> list[str]:
    """Return the files of `--input` or `--inputs`.

    Raises:
        InvalidArgument: an option is given without the one that it belongs to, or the
            folder has no such files.
    """
    for name in ("inputs", "reduce"):
        if getattr(arguments, name) is not None and not arguments.by_partition:
            raise InvalidArgument(
                f"--{name} has no effect without --by-partition.",
                hint="Add --by-partition.",
            )
    if arguments.inputs is None:
        return [arguments.input] if arguments.input is not None else []
    if arguments.input is not None:
        raise InvalidArgument("--input and --inputs exclude each other.")
    files = sorted(map(str, Path(arguments.inputs).glob("*.npz")))
    if not files:
        raise InvalidArgument(
            f"there are no .npz files in {arguments.inputs!r}.",
            path=arguments.inputs,
            hint="Write each with numpy.savez(file, input_name=array, …).",
        )
    return files


def _compare_partitions(
    arguments: argparse.Namespace,
    a: Model,
    b: Model,
    comparison: Comparison,
    files: Sequence[str],
) -> tuple[PartitionErrors, Reduction | None]:
    """Compare the partitions, and reduce the worst with `--reduce`."""
    from epctx_cli.arrays import load_inputs
    from epctx_core import InferenceSession
    from epctx_core.ext import import_installed

    import_installed("epctx_files", needed_by="--by-partition")
    module = import_installed(
        "epctx_bench.partition_errors", needed_by="--by-partition"
    )
    if arguments.reduce is not None:
        from epctx_cli.reduction import make_folder, reduce_partition

        make_folder(Path(arguments.reduce))
    inputs: list[Callable[[], Mapping[str, Any]]] = [lambda: comparison.inputs]
    if files:
        with InferenceSession(*b) as session:
            expected = session.get_inputs()
        inputs = [partial(load_inputs, file, expected) for file in files]
    errors = module.compare_partitions(a, b, inputs)
    worst = errors.rows[0] if errors.rows else None
    if arguments.reduce is None or worst is None or not worst.own.worst.max_rel:
        return errors, None
    return errors, reduce_partition(a, b, worst, inputs, Path(arguments.reduce))


def _pair_with_options(
    arguments: argparse.Namespace, console: Console
) -> list[tuple[str, SessionOptions]]:
    """Return both models with their session options. A length is one for the models
    that have its dimension open, or of which that is not known; if neither has, for
    both, which refuse it. With `--by-partition` EPs are those of the first model.
    """
    from epctx_cli.model_facts import read_open_dimensions

    lengths = arguments.free_dimension
    paths = arguments.model, arguments.reference
    open_in = [read_open_dimensions(Path(path)) if lengths else [] for path in paths]
    pair: list[Model] = []
    for path, own in zip(paths, open_in, strict=True):
        applying = [
            text
            for text in lengths
            for name, _ in [parse_dimension(text)]
            if own is None
            or name in own
            or not any(name in each for each in open_in if each is not None)
        ]
        changed = {"free_dimension": applying}
        if arguments.by_partition and pair:
            changed |= {"ep": [], "provider_option": []}
        given = argparse.Namespace(**{**vars(arguments), **changed})
        pair.append((path, session_options(given, console)))
    return pair


def _print_compare(
    arguments: argparse.Namespace,
    comparison: Comparison,
    inside: InnerDifference | None,
    console: Console,
) -> None:
    for label, model, nodes in zip(
        "AB", (arguments.model, arguments.reference), comparison.nodes, strict=True
    ):
        console.say(f"{label}: {model}, {nodes}")
    wrong = print_differences(comparison.differences, console)
    if not wrong:
        console.say(
            f"\nEqual, with --atol {arguments.atol:g} --rtol {arguments.rtol:g}."
        )
        return
    name = text.cut(wrong[0].name)
    console.say(f"\nThey differ first in the output '{name}', {wrong[0].describe()}.")
    if inside is not None:
        values = text.counted(inside.compared, "value")
        console.say(
            f"Inside, the first of {values} of the same name that differs is "
            f"{inside.name!r} (max_rel {text.number(inside.max_rel)}):\n"
            "  in A it comes from "
            f"{one_line(inside.from_a)}\n  in B it comes from "
            f"{one_line(inside.from_b)}"
        )
    console.debug(f"See also: {shlex.join(['epctx', 'inspect', arguments.model])}")


_MOST_BODIES = 8
"""Largest number of subgraphs that are named."""


def _print_partitions(
    errors: PartitionErrors, reduction: Reduction | None, console: Console
) -> None:
    console.table(
        ("partition", "output", "own", "SNR dB", "cosine", "inherited", "total"),
        [
            (
                row.partition,
                text.cut(row.output),
                text.number(row.own.worst.max_rel),
                f"{row.own.worst.snr_db:.1f}",
                f"{row.own.worst.cosine:.6f}",
                text.number(row.inherited.worst.max_rel),
                text.number(row.total.worst.max_rel),
            )
            for row in errors.rows
        ],
        title="\nErrors by partition, relative, the worst of "
        f"{text.counted(errors.inputs, 'input')}",
    )
    bodies = [one_line(each.body) for each in errors.uncompared if each.body]
    if bodies:
        console.warn(
            f"{text.counted(len(bodies), 'partition')} in subgraphs could not be "
            f"compared, as values there cannot be outputs of a model: "
            f"{text.operators(bodies, _MOST_BODIES)}."
        )
    for each in errors.uncompared:
        if not each.body:
            console.warn(f"{each.partition} could not be compared: {each.reason}")
    if reduction is None:
        return
    nodes = text.counted(reduction.nodes, "node")
    error = text.number(reduction.error.max_rel)
    found = (
        f"{reduction.ep} has an error of {error} in {nodes}"
        if reduction.reproduced
        else f"The error of {error} is in the context model alone: compiled again, the "
        f"part of B is right. The whole part, {nodes}"
    )
    operators = text.operators(reduction.operators, 8)
    console.say(
        f"\n{found} ({operators}): {one_line(reduction.model)}, with inputs.npz, "
        "expected.npz and model_ctx.onnx."
    )


def print_differences(
    differences: Sequence[Difference], console: Console, *, title: str = ""
) -> list[Difference]:
    """Print the differences of outputs, and return those beyond the tolerance."""
    console.table(
        ("output", "max_abs", "max_rel", "verdict"),
        [
            (
                d.name,
                text.number(d.max_abs),
                text.number(d.max_rel),
                "equal" if d.equal else "DIFFERENT",
            )
            for d in differences
        ],
        title=title,
    )
    return [d for d in differences if not d.equal]
