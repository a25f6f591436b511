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
    import os
    import sys
    import threading

    from epctx_cli.entry import run

    if argv is not None:
        return run(list(argv))
    # For plugins that import onnxruntime, and for the processes of commands.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    code = run(sys.argv[1:])
    if threading.active_count() > 1:
        from epctx_cli.ending import end_in_any_case

        end_in_any_case(code)
    return code
