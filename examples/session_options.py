"""Session options that an application sets most often, one after the other.

    python examples/session_options.py [FOLDER]

docs/reference/options.md has all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from network import write_network

import epctx_core as epctx


def main(folder: Path) -> None:
    """Compile with options of each kind, load with others, and show a wrong one."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_network(folder / "pictures.onnx", batch="batch")

    output = folder / "pictures_ctx.onnx"
    report = epctx.ModelCompiler(compile_options(), source).compile_to_file(output)
    print("wrote", ", ".join(report.required_files))
    for ep, nodes in report.assignments.items():
        print(f"  {ep}: {nodes} nodes")
    for skipped in report.skipped_providers:
        print(f"  skipped {skipped.name}: {skipped.reason}")

    # The nodes say which EP loads them: none is named here.
    with epctx.InferenceSession(output, load_options()) as session:
        image = np.ones((1, 3, 32, 32), np.float32)
        (scores,) = session.run(["scores"], {"image": image})
    print(f"loaded and run: {scores.shape}")

    try:
        epctx.SessionOptions().add_session_config_entry("ep.context_embed", "1")
    except epctx.InvalidArgument as error:
        print(f"refused: {error.message}")


def compile_options() -> epctx.SessionOptions:
    """Return the options of a compile."""
    options = epctx.SessionOptions()
    # EPs in order of priority. The second takes of what the first left, and a machine
    # may lack it.
    options.add_provider("QNN", {"htp_arch": "73"})
    options.add_provider("AcmeNpu", optional=True)
    # QNN needs static shapes: the open length gets a value.
    options.add_free_dimension_override_by_name("batch", 1)
    # One file instead of a context model with a binary beside it.
    options.add_session_config_entry("ep.context_embed_mode", "1")
    return options


def load_options() -> epctx.SessionOptions:
    """Return the options of a session that loads."""
    options = epctx.SessionOptions()
    # Threads for the nodes that no EP took.
    options.intra_op_num_threads = 2
    # Every byte is checked at this load, whatever this machine has checked before.
    options.add_session_config_entry("ep.context_verify", "full")
    # Fail if a node would run on the CPU EP.
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return options


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
