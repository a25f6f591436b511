"""`epctx run`: runs a model once and describes what came out."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common, add_inputs, add_providers, session_options
from epctx_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import InferenceSession, NodeArg


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="the model, plain or compiled")
    add_providers(
        parser, ep_help="an EP to run on; may be repeated. Without it a context model finds its EPs by itself"
    )
    add_inputs(parser)
    parser.add_argument("--output", metavar="OUT.npz", help="store the outputs, by name")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Load, run, describe."""
    from epctx_cli.arrays import check_writable, save_arrays
    from epctx_core import InferenceSession

    session_settings = session_options(arguments, console)
    if arguments.output is not None:
        check_writable(arguments.output)
    start = time.perf_counter()
    with InferenceSession(arguments.model, session_settings) as session:
        loaded = time.perf_counter()
        inputs = _inputs(arguments, session, console)
        names = [output.name for output in session.get_outputs()]
        begun = time.perf_counter()
        results = dict(zip(names, session.run(None, inputs), strict=True))
        seconds = {"load": loaded - start, "run": time.perf_counter() - begun}
        outputs = [_described(output, results[output.name]) for output in session.get_outputs()]
        providers = session.get_providers()
        records = session.get_provider_records()
    if arguments.output is not None:
        save_arrays(arguments.output, results)
    _print_report(arguments, providers, outputs, seconds, console)
    simulated = console.note_simulated(record.name for record in records if record.simulated)
    console.result(
        {
            "model": arguments.model,
            "providers": providers,
            "simulated": simulated,
            "inputs": [
                {"name": name, "type": str(array.dtype), "shape": list(array.shape)}
                for name, array in inputs.items()
            ],
            "made_from_seed": None if arguments.input else arguments.seed,
            "outputs": outputs,
            "output_file": arguments.output,
            "seconds": seconds,
        }
    )
    return ExitCode.DONE


def _inputs(arguments: argparse.Namespace, session: InferenceSession, console: Console) -> Mapping[str, Any]:
    from epctx_cli.arrays import load_inputs, make_inputs

    wanted = session.get_inputs()
    if arguments.input is not None:
        return load_inputs(arguments.input, wanted)
    made = make_inputs(wanted, arguments.seed)
    console.note(f"{made_words(made, arguments.seed)} (no --input).")
    return made


def made_words(made: Mapping[str, Any], seed: int) -> str:
    """Say what inputs were made of."""
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in made.items())
    return f"Inputs made from seed {seed}: {shapes or 'none'}"


def _described(output: NodeArg, value: Any) -> dict[str, Any]:
    """Return name, type, shape, and what a look at the numbers tells."""
    import numpy as np

    known: dict[str, Any] = {"min": None, "max": None, "mean": None}
    if not isinstance(value, np.ndarray):
        return {"name": output.name, "type": output.type, "shape": None, **known}
    if value.size and value.dtype.kind not in "OUSTc":
        wide = value.astype(np.float64)
        known = {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return {"name": output.name, "type": output.type, "shape": list(value.shape), **known}


def _print_report(
    arguments: argparse.Namespace,
    providers: list[str],
    outputs: list[dict[str, Any]],
    seconds: Mapping[str, float],
    console: Console,
) -> None:
    console.say(f"EPs: {', '.join(providers)}")
    console.table(
        ("output", "type", "shape", "min", "max", "mean"),
        [
            (
                o["name"],
                o["type"],
                "-" if o["shape"] is None else str(o["shape"]),
                text.number(o["min"]),
                text.number(o["max"]),
                text.number(o["mean"]),
            )
            for o in outputs
        ],
    )
    console.say(f"\nLoaded in {seconds['load'] * 1e3:.1f} ms, ran in {seconds['run'] * 1e3:.1f} ms.")
    if arguments.output is not None:
        console.say(f"Outputs are in {arguments.output}.")
