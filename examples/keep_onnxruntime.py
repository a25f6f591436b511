"""A program that keeps onnxruntime: its model is compiled for an NPU once, and loaded
from a cache after that.

    python examples/keep_onnxruntime.py MODEL CACHE [EP [KEY=VALUE ...]]

    python examples/keep_onnxruntime.py model.onnx cache QNNExecutionProvider
    soc_model=60 htp_arch=73

Without an EP it takes onnxruntime's CPU EP, which compiles nothing.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnxruntime
from epctx_onnxruntime.cached import load_or_compile

TYPES = {
    "tensor(float)": np.float32,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
}


def main(
    model: str, cache: str, ep: str = "CPUExecutionProvider", *settings: str
) -> None:
    """Start twice as a program would, and say how long it took."""
    vendor_options = dict(setting.split("=", 1) for setting in settings)
    for start in ("first", "second"):
        begun = time.perf_counter()
        session = open_session(model, cache, ep, vendor_options)
        seconds = time.perf_counter() - begun
        print(f"{start} start: {seconds:.2f} s, {', '.join(session.get_providers())}")
    outputs = session.run(None, make_inputs(session))
    print(f"results: {', '.join(str(output.shape) for output in outputs)}")


def open_session(
    model: str, cache: str, ep: str, vendor_options: dict[str, str]
) -> onnxruntime.InferenceSession:
    """Return the program's session; before, this was
    `onnxruntime.InferenceSession(model, options)`.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return load_or_compile(
        model, options, provider=ep, provider_options=vendor_options, cache_dir=cache
    )


def make_inputs(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    """Return ones for every input; open dimensions have the length 1."""
    return {
        value.name: np.ones(
            [n if isinstance(n, int) else 1 for n in value.shape], TYPES[value.type]
        )
        for value in session.get_inputs()
    }


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
