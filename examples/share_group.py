"""Two networks that differ in the last layer, with all other weights stored once.

    python examples/share_group.py [FOLDER]

docs/how-to/models/weight-sharing.md says what can share and what cannot.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from network import write_network

import epctx_core as epctx


def main(folder: Path) -> None:
    """Compile both networks into one share group, then load them together."""
    folder.mkdir(parents=True, exist_ok=True)
    sources = [
        write_network(folder / f"{name}.onnx", classes=classes)
        for name, classes in {"animals": 90, "plants": 40}.items()
    ]

    report = compile_group(sources, folder / "shared")
    for file in report.outputs:
        print(f"wrote {file.path}: {file.bytes:,} bytes")
    print(f"separate binaries would have {report.saved_bytes:,} bytes more")

    image = np.ones((1, 3, 32, 32), np.float32)
    sessions = open_together(
        [member.output for member in report.members if member.output]
    )
    for source, session in zip(sources, sessions, strict=True):
        with session, epctx.InferenceSession(source) as plain:
            feeds = {"image": image}
            (scores,), (expected,) = session.run(None, feeds), plain.run(None, feeds)
        close = np.allclose(scores, expected, atol=1e-5)
        print(f"{source.stem}: results {'agree' if close else 'DIFFER'}")


def compile_group(sources: list[Path], folder: Path) -> epctx.ShareReport:
    """Compile networks into one group: its files appear together, or none does."""
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    with epctx.ShareGroup(output_dir=folder) as group:
        for source in sources:
            group.compile(source, options)
    return group.report


def open_together(models: list[Path]) -> list[epctx.InferenceSession]:
    """Return sessions that use one mapping of the group's binary."""
    options = epctx.SessionOptions()
    options.add_session_config_entry("ep.share_ep_contexts", "1")
    return [epctx.InferenceSession(model, options) for model in models]


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
