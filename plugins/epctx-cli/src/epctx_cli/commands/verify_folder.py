"""`epctx verify` of a folder: a comparison of its files with its digest."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from epctx_cli import text
from epctx_cli.exit_codes import ExitCode
from epctx_core.errors import InvalidArgument, one_line
from epctx_core.ext import import_installed

if TYPE_CHECKING:
    from epctx_cli.console import Console

_MEANINGS = {
    "missing": "it is not in the folder",
    "added": "it was not in the folder when this was sealed",
    "older": "it is the file of an earlier build",
    "newer": "it has other content, and was written after the folder was sealed",
    "foreign": "it has other content",
}


def run_verify_folder(arguments: argparse.Namespace, console: Console) -> ExitCode:
    """Compare the files, and list those that differ; 1 if there are any."""
    if arguments.ep or arguments.strict:
        raise InvalidArgument("--ep and --strict are for models, not folders.")
    folders = import_installed("epctx_files.folders", needed_by="a folder")
    verifier = None
    if arguments.public_key is not None:
        library = import_installed(
            "model_signing.verifying",
            needed_by="--public-key",
            distribution="model-signing",
        )
        try:
            verifier = library.Config().use_elliptic_key_verifier(
                public_key=arguments.public_key
            )
        except (OSError, ValueError) as error:
            raise InvalidArgument(
                f"--public-key {arguments.public_key!r} is not a public key: {error}.",
                path=arguments.public_key,
                hint="Name a file in PEM form, of an elliptic curve.",
            ) from error

    with console.progress("comparing the files"):
        report = folders.verify_folder(arguments.model, verifier=verifier)
    files = text.counted(report.checked, "file")
    console.say(f"{arguments.model}: {files}{', signed' if report.signed else ''}")
    sealed = report.sealed
    facts = [("for", sealed.purpose), ("sealed by", sealed.tool)]
    facts += [("compiled by", each) for each in sealed.compiled_by]
    console.table(("", ""), [(word, one_line(fact)) for word, fact in facts if fact])
    for finding in report.findings:
        console.say(f"\nerror {finding.problem}")
        console.say(f"  {one_line(finding.name)}: {_MEANINGS[finding.problem]}.")
    count = text.counted(len(report.findings), "error")
    console.say(f"\nfaulty: {count}" if report.findings else "\nok: nothing found")
    console.result(report)
    return ExitCode.FAILED if report.findings else ExitCode.DONE
