"""The command `epctx`, and `python -m epctx_core`: run epctx-cli, or say how to install
it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (None: that of the process) and return its exit code, 3 if
    epctx-cli is not installed.
    """
    try:
        from epctx_cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "epctx_cli":
            raise
        from epctx_core.installing import install_command

        sys.stderr.write(
            "error: the package epctx-cli, which contains the commands, is not "
            "installed.\n"
        )
        sys.stderr.write(f"  {install_command('epctx-core[cli]')}\n")
        return 3
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
