"""Batches of any size on an EP that needs static shapes: a context model for each of a
few sizes, all with one binary, and the smallest that fits is run.

    python examples/dynamic_shapes.py [FOLDER]

docs/how-to/models/dynamic-shapes.md says which EPs take open lengths as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from network import write_network

import epctx_core as epctx

SIZES = (1, 4, 16)


class Batches:
    """Sessions of one network for several sizes of a batch."""

    def __init__(self, models: dict[int, Path]) -> None:
        options = epctx.SessionOptions()
        options.add_session_config_entry("ep.share_ep_contexts", "1")
        self._sessions = {
            size: epctx.InferenceSession(model, options)
            for size, model in sorted(models.items())
        }

    def run(self, images: np.ndarray) -> tuple[int, np.ndarray]:
        """Return the size that was run, and the scores of these pictures."""
        size = next((n for n in self._sessions if n >= len(images)), None)
        if size is None:
            raise ValueError(
                f"{len(images)} pictures are more than {max(self._sessions)}, the "
                "largest batch that was compiled; split them"
            )
        padded = np.zeros((size, *images.shape[1:]), images.dtype)
        padded[: len(images)] = images
        (scores,) = self._sessions[size].run(None, {"image": padded})
        return size, scores[: len(images)]

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            session.close()


def compile_sizes(source: Path, folder: Path) -> dict[int, Path]:
    """Compile a network for each size; return the context models by size."""
    with epctx.ShareGroup(output_dir=folder) as group:
        for size in SIZES:
            options = epctx.SessionOptions()
            options.add_provider("QNN")
            options.add_free_dimension_override_by_name("batch", size)
            group.compile(source, options, name=f"{source.stem}_{size}")

    report = group.report
    print(f"{len(report.members)} sizes, {report.saved_bytes:,} bytes stored once")
    return {
        size: member.output
        for size, member in zip(SIZES, report.members, strict=True)
        if member.output
    }


def main(folder: Path) -> None:
    """Compile, then run batches of other sizes than the compiled ones."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_network(folder / "batched.onnx", batch="batch")
    batches = Batches(compile_sizes(source, folder / "sizes"))

    random = np.random.default_rng(1)
    with epctx.InferenceSession(source) as plain:
        for count in (1, 3, 11):
            images = random.standard_normal((count, 3, 32, 32), np.float32)
            size, scores = batches.run(images)
            (expected,) = plain.run(None, {"image": images})
            close = np.allclose(scores, expected, atol=1e-5)
            said = "results agree" if close else "results DIFFER"
            print(f"{count} pictures in the model for {size}: {said}")
    batches.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
