"""`epctx verify`: every check of a context model that needs no device; all findings are listed."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.arguments import CommandParser, add_common, add_providers, session_options
from epctx_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from epctx_cli.console import Console
    from epctx_core import VerifyReport

_CALLED = {"error": "error", "warning": "warning", "info": "note"}
_NO_MODEL = "model-unreadable"
_BROKEN = "plugin-broken"


def add_arguments(parser: CommandParser) -> None:
    """Declare the command's options."""
    parser.add_argument("model", metavar="MODEL", help="the context model to check, with the files beside it")
    add_providers(
        parser,
        ep_help="an EP that a load would have; without it the sources of the nodes decide; may be repeated",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit 1 if no byte of a payload could be judged, although nothing is wrong",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, console: Console) -> int:
    """Check the model and list what was found."""
    from epctx_core import verify_model

    report = verify_model(arguments.model, session_options(arguments, console))
    _print_report(arguments.model, report, console)
    console.result({"model": arguments.model, **report.as_dict()})
    return _exit_code(report, strict=arguments.strict)


def _exit_code(report: VerifyReport, *, strict: bool) -> int:
    """Return 1 for a faulty model, or one that was not checked if that is asked; 2 without a model.

    3 if nothing but a plugin is to blame.
    """
    errors = {finding.code for finding in report.findings if finding.severity.value == "error"}
    if _NO_MODEL in errors:
        return ExitCode.USAGE
    if errors == {_BROKEN}:
        return ExitCode.PLUGIN
    return ExitCode.FAILED if errors or (strict and not report.checked) else ExitCode.DONE


def _print_report(model: str, report: VerifyReport, console: Console) -> None:
    nodes = text.counted(report.nodes, "EPContext node")
    console.say(f"{model}: {nodes}, {text.counted(len(report.payloads), 'payload')}")
    console.table(
        ("payload", "size", "digests", "looked into by"),
        [
            (p.name, text.byte_size(p.size), "right" if p.digests else "-", p.looked_into_by or "nobody")
            for p in report.payloads
        ],
    )
    for finding in report.findings:
        console.say(f"\n{_CALLED[finding.severity.value]} {finding.code}")
        for words in filter(None, (finding.message, finding.hint)):
            console.say(text.indented(words))
    counts = Counter(finding.severity.value for finding in report.findings)
    found = ", ".join(text.counted(counts[kind], word) for kind, word in _CALLED.items() if counts[kind])
    verdict = "not ok" if not report.ok else "ok" if report.checked else "not checked"
    console.say(f"\n{verdict}: {found or 'nothing found'}")
