"""Processor time of a decoder's step by `io_binding`: the drop-in over onnxruntime.

The loops are those of `drop_in/decoders.py` in the tests of epctx-onnxruntime: a cache
of fixed length, whose two sets of memory take turns; and one that grows by a row a
step, where each result is the next input. Networks are made from a seed. The sessions
live in one process and take turns, so that what else the machine does hits all; a
second session of onnxruntime is the control.

    python benchmarks/bench_decoding.py
"""

from __future__ import annotations

import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import (
    DATA,
    combine_processes,
    measure,
    pair_turns,
    report,
    show,
    show_ratio,
)

ROOT = Path(__file__).parent.parent
FOLDER = DATA / "decoding"
STEPS = 200
TURNS = 8
BAR = 1.05
WIDTHS = {"fixed 64": (64, 2), "fixed 512": (512, 4)}
"""Width of the network and its layers."""
GROWING = ("transformers_llama_cached", "transformers_gpt2_cached")


def _make(name: str) -> Path:
    import onnx
    from drop_in.decoders import make_fixed  # type: ignore[import-not-found]

    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}.onnx"
    width, layers = WIDTHS[name]
    onnx.save(make_fixed(width=width, layers=layers), path)
    return path


def _open(ort: Any, path: Path) -> Any:
    """Return a session with one thread: pools of three sessions would compete."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options)


def _child(name: str) -> None:
    """Report the median processor time of a step, and the ratios to onnxruntime's."""
    import epctx_onnxruntime
    import onnxruntime
    from drop_in.decoders import decode_fixed, decode_growing

    grows = name in GROWING
    # GPT-2 has 64 positions.
    steps = 64 if "gpt2" in name else STEPS
    path = (
        ROOT / "tests/campaigns/zoo/models" / f"{name}.onnx" if grows else _make(name)
    )
    sessions = {
        "onnxruntime": (onnxruntime, _open(onnxruntime, path)),
        "epctx": (epctx_onnxruntime, _open(epctx_onnxruntime, path)),
        "control": (onnxruntime, _open(onnxruntime, path)),
    }

    def make_loop(ort: Any, session: Any) -> Callable[[], list[int]]:
        if grows:
            return functools.partial(decode_growing, session, steps)
        return functools.partial(decode_fixed, ort, session, steps)

    loops = {key: make_loop(*pair) for key, pair in sessions.items()}
    tokens = [loop() for loop in loops.values()]
    if tokens[1:] != tokens[:-1]:
        raise SystemExit(f"{name}: the tokens differ.")

    times: dict[str, list[float]] = {key: [] for key in loops}
    for turn in range(TURNS):
        # Whoever begins finds another cache of the processor.
        order = list(loops)[turn % 3 :] + list(loops)[: turn % 3]
        for key in order:
            begin = time.process_time()
            loops[key]()
            times[key].append((time.process_time() - begin) / steps)

    medians = {key: statistics.median(values) for key, values in times.items()}
    report(
        **{f"{key} µs": value * 1e6 for key, value in medians.items()},
        ratio=pair_turns(times["epctx"], times["onnxruntime"]),
        control=pair_turns(times["control"], times["onnxruntime"]),
    )


def main() -> None:
    """Measure all networks, or be the child that measures one."""
    sys.path.insert(0, str(ROOT / "plugins/epctx-onnxruntime/tests"))
    if len(sys.argv) > 1:
        _child(sys.argv[1])
        return
    names = [*WIDTHS, *GROWING]
    measurement = measure(__file__, {name: [name] for name in names})
    show("Steps of decoders by io_binding", measurement)
    for name in names:
        ratio = combine_processes(measurement.samples[name]["ratio"])
        show_ratio(f"{name}: epctx / onnxruntime", ratio, BAR, measurement.noise)


if __name__ == "__main__":
    main()
