"""Command line of epctx."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments without the program's name; None for those of the process,
            which then ends even if a plugin left threads.

    Returns:
        The exit code; see `epctx_cli.exit_codes`.
    """
    if argv is not None:
        from epctx_cli.entry import run

        return run(list(argv))
    try:
        return _run_process()
    except KeyboardInterrupt:
        # While modules are imported, before there is a command that could say so.
        import sys

        sys.stderr.write("error: interrupted.\n")
        return 130


def _run_process() -> int:
    import os
    import sys
    import threading

    from epctx_cli.entry import run

    # For plugins that import onnxruntime, and for the processes of commands.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    code = run(sys.argv[1:])
    if threading.active_count() > 1:
        from epctx_cli.ending import end_in_any_case

        end_in_any_case(code)
    return code
