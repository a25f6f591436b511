"""The command line. Knows every other part of the core; none of them knows it."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: what follows the program's name; None for the process's own arguments.

    Returns:
        The exit code; see `epctx_core.cli.exit_codes`.
    """
    import sys

    from epctx_core.cli.entry import run

    return run(sys.argv[1:] if argv is None else list(argv))
