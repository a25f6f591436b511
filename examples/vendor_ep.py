"""A network on each EP of a vendor that is installed and works on this machine.

    python examples/vendor_ep.py [FOLDER]

docs/how-to/eps/real-hardware.md has the devices, and the options of each EP.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from network import write_network

import epctx_core as epctx
from epctx_core.plugin import Purpose

TOLERANCE = 2e-2  # devices compute in 16 bits what a model has in 32
TARGET = {"soc_model": "60", "htp_arch": "73", "enable_htp_fp16_precision": "1"}
"""Device to compile for, by an EP that compiles for others than this machine's."""


def find_eps() -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the vendors' EPs that can compile here, each with its options."""
    registry = epctx.default_registry
    for record in epctx.plugins():
        try:
            cls = registry.load(record)
            if cls.simulated:
                continue
            said = registry.availability(record, Purpose.EXPORT)
        except epctx.EpctxError as error:
            print(f"{record.name} of {record.distribution}: {error.message}")
            continue
        if said.available:
            declared = {option.name for option in cls.options}
            chosen = {key: TARGET[key] for key in TARGET if key in declared}
            yield f"{record.distribution}:{record.name}", chosen
        else:
            print(f"{record.name} of {record.distribution}: {said.reason}")


def compile_and_compare(source: Path, ep: str, chosen: dict[str, str]) -> None:
    """Compile for an EP, run the result, and compare with the CPU EP."""
    options = epctx.SessionOptions()
    options.add_provider(ep, chosen)
    begun = time.perf_counter()
    output = source.with_name("pictures_ctx.onnx")
    report = epctx.ModelCompiler(options, source).compile_to_file(output)
    seconds = time.perf_counter() - begun
    taken = ", ".join(f"{name} {n} nodes" for name, n in report.assignments.items())
    print(f"{ep}: compiled in {seconds:.2f} s; {taken}")

    feeds = {"image": np.ones((1, 3, 32, 32), np.float32)}
    with (
        epctx.InferenceSession(output, options) as device,
        epctx.InferenceSession(source) as cpu,
    ):
        (scores,), (expected,) = device.run(None, feeds), cpu.run(None, feeds)
    close = np.allclose(scores, expected, atol=TOLERANCE)
    print(f"{ep}: results {'agree' if close else 'DIFFER'}")


def main(folder: Path) -> None:
    """Try each EP, or say what to install."""
    found = list(find_eps())
    if not found:
        print("No EP of a vendor works here. On an x86-64 CPU, Intel's does:")
        print("  pip install ./plugins/epctx-openvino")
        print("Qualcomm's compiles, and runs on a simulator:")
        print("  pip install './plugins/epctx-onnxruntime[qnn]'")
        return

    folder.mkdir(parents=True, exist_ok=True)
    source = write_network(folder / "pictures.onnx")
    for ep, chosen in found:
        compile_and_compare(source, ep, chosen)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "examples-output"))
