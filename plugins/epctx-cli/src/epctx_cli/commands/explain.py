"""`epctx explain`: who would take which node, and why the others are refused; a gate for builds."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import CPU_EP, CommandParser, add_common, add_providers, no_ep, session_options
from epctx_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import Explanation, NodeExplanation

_SHOWN_OPERATORS = 6


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="the ONNX model to explain; nothing is compiled")
    add_providers(parser, ep_help="an EP to ask; repeat it, the first has priority, CPU comes last")
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Ask the EPs and tell; 1 if something is left to the CPU EP."""
    from epctx_core import explain_model

    if not arguments.ep:
        raise no_ep("explain")
    explanation = explain_model(arguments.model, session_options(arguments, console))
    _print_report(arguments.model, explanation, console)
    console.result({"model": arguments.model, **explanation.as_dict()})
    return ExitCode.FAILED if explanation.left else ExitCode.DONE


def _print_report(model: str, explanation: Explanation, console: Console) -> None:
    nodes = explanation.nodes
    console.say(f"{model}: {text.counted(len(nodes), 'node')}, {len(explanation.left):,} left to the CPU EP")
    console.table(
        ("taken by", "nodes", "partitions", "operators"),
        [_share(ep, [node for node in nodes if node.ep == ep]) for ep in _takers(explanation)],
    )
    _print_refusals(explanation, console)
    if console.verbose:
        console.table(
            ("node", "operator", "taken by", "partition", "refused by"),
            [
                (
                    node.name,
                    node.operator,
                    node.ep,
                    "-" if node.partition is None else f"{node.partition}",
                    "; ".join(f"{ep}: {reason}" for ep, reason in node.refusals),
                )
                for node in nodes
            ],
        )
    elif nodes:
        console.say("\n-v lists every node.")


def _takers(explanation: Explanation) -> list[str]:
    """Return who was asked, then who else has nodes, the CPU EP last."""
    others = (node.ep for node in explanation.nodes if node.ep != CPU_EP)
    return list(dict.fromkeys([*explanation.eps, *others, CPU_EP]))


def _share(ep: str, nodes: Sequence[NodeExplanation]) -> tuple[str, int, int, str]:
    compiled = sum(node.compiled for node in nodes)
    label = f"{ep} (compiled already)" if compiled and compiled == len(nodes) else ep
    partitions = {node.partition for node in nodes if node.partition is not None}
    return (
        label,
        len(nodes),
        len(partitions) + compiled,
        text.operators((n.operator for n in nodes), _SHOWN_OPERATORS),
    )


def _print_refusals(explanation: Explanation, console: Console) -> None:
    """List each reason once, the one that concerns most nodes first."""
    refused: dict[tuple[str, str], list[NodeExplanation]] = {}
    for node in explanation.nodes:
        for refusal in node.refusals:
            refused.setdefault(refusal, []).append(node)
    if refused:
        console.say("\nRefused:")
    for (ep, reason), nodes in sorted(refused.items(), key=lambda item: -len(item[1])):
        console.say(
            f"  {ep}: {reason.rstrip('.')} ({text.counted(len(nodes), 'node')}, such as {nodes[0].name!r})"
        )
