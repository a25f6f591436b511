"""A compile that shows its progress, and that Ctrl-C or a button cancels.

    python examples/progress_and_cancel.py [FOLDER]

The first compile is left to end. The second is cancelled, and the files of the first
stay as they are.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from network import write_network

import epctx_core as epctx


def compile_model(
    source: Path,
    output: Path,
    options: epctx.SessionOptions,
    progress: Callable[[str, int, int], None],
) -> bool:
    """Compile a model unless it is cancelled; return whether it was compiled."""
    # The flag belongs to the options and is never reset by a compile: each job has
    # options of its own. A flag is set from any thread and from signal handlers.
    before = signal.signal(
        signal.SIGINT, lambda *_: options.set_load_cancellation_flag(True)
    )
    try:
        epctx.ModelCompiler(options, source, progress=progress).compile_to_file(output)
    except epctx.ModelLoadCanceled:
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def show(stage: str, done: int, total: int) -> None:
    """Print one line of progress; a total of 0 is not known."""
    amount = f"{done} of {total}" if total else f"{done:,} bytes"
    print(f"  {stage}: {amount}")


def make_options() -> epctx.SessionOptions:
    """Return new options for QNN."""
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    # An EP that never looks at the flag is ended five seconds later, because it works
    # in a process of its own.
    options.add_session_config_entry("ep.isolate", "compile")
    return options


def main(folder: Path) -> None:
    """Compile once to the end, then once more and cancel."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_network(folder / "pictures.onnx")
    output = folder / "pictures_ctx.onnx"

    print("compile (Ctrl-C cancels):")
    if not compile_model(source, output, make_options(), show):
        print("cancelled")
        return
    compiled = output.read_bytes()

    options = make_options()

    def cancel(stage: str, done: int, total: int) -> None:
        show(stage, done, total)
        if stage == "compile":
            options.set_load_cancellation_flag(True)  # as a button would

    print("compile again, and cancel:")
    write_network(source, classes=20)
    ended = compile_model(source, output, options, cancel)
    kept = output.read_bytes() == compiled
    print("compiled all the same" if ended else "cancelled", end="; ")
    print(f"{output.name} is {'as before' if kept else 'CHANGED'}")
    epctx.InferenceSession(output).close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
