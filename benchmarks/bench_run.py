"""Cost of `run`: one tiny partition, a real network, alternating EPs, many threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

from harness import DATA, Bar, measure, report, show

ROOT = Path(__file__).parent.parent
TINY = (
    '<ir_version: 9, opset_import: ["": 17]> g (float[1,16] x) => (float[1,16] y) { a '
    "= Relu(x) y = Neg(a) }"
)
THREADS = 16


def make_models() -> dict[str, Path]:
    """Write the tiny and the real model with their context models, once."""
    from onnx import parser, save

    DATA.mkdir(exist_ok=True)
    models = {"tiny": DATA / "tiny.onnx", "resnet50": DATA / "resnet50.onnx"}
    if not models["tiny"].exists():
        save(parser.parse_model(TINY), models["tiny"])
    if not models["resnet50"].exists():
        script = ROOT / "tests/support/networks" / "fill.py"
        subprocess.check_call(
            [sys.executable, script, "resnet50", models["resnet50"]],
            stdout=subprocess.DEVNULL,
        )
    return models


def compile_models(models: dict[str, Path]) -> None:
    """Compile both for the simulated QNN EP."""
    import epctx_core as epctx

    so = epctx.SessionOptions()
    so.add_provider("QNN")
    for path in models.values():
        epctx.ModelCompiler(so, path).compile_to_file()


def sessions(who: str, path: Path):  # noqa: ANN201 - either library's session
    """Return a session and feeds for it."""
    import numpy as np
    import onnxruntime

    import epctx_core as epctx

    plain = onnxruntime.InferenceSession(str(path))
    feeds = {
        v.name: np.random.default_rng(0).standard_normal(v.shape, np.float32)
        for v in plain.get_inputs()
    }
    if who == "onnxruntime":
        return plain, feeds
    del plain
    return epctx.InferenceSession(path.with_name(path.stem + "_ctx.onnx")), feeds


def time_run(who: str, model: str) -> None:
    """Report the time of one `run`."""
    session, feeds = sessions(who, DATA / f"{model}.onnx")
    count = 20_000 if model == "tiny" else 20
    for _ in range(count // 10 + 1):
        session.run(None, feeds)
    start = time.perf_counter()
    for _ in range(count):
        session.run(None, feeds)
    report(s=(time.perf_counter() - start) / count)


def time_threads(who: str, model: str) -> None:
    """Report seconds a run when 16 threads share one session."""
    session, feeds = sessions(who, DATA / f"{model}.onnx")
    count = 1_000 if model == "tiny" else 4
    session.run(None, feeds)

    def work() -> None:
        for _ in range(count):
            session.run(None, feeds)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report(s=(time.perf_counter() - start) / count / THREADS)


CHILDREN = {"run": time_run, "threads": time_threads}


def main() -> None:
    """Measure everything and print the tables."""
    compile_models(make_models())
    for kind, title, bars in (
        ("run", "one `run`", {"tiny": 1.0, "resnet50": 1.05}),
        (
            "threads",
            f"one `run` among {THREADS} threads on one session",
            {"tiny": 1 / 0.95, "resnet50": 1 / 0.95},
        ),
    ):
        for model, bar in bars.items():
            measurement = measure(
                __file__,
                {
                    "epctx": (kind, "epctx", model),
                    "onnxruntime": (kind, "onnxruntime", model),
                },
            )
            show(
                f"{title}, {model}",
                measurement,
                [Bar(ours="epctx", peer="onnxruntime", at_most=bar)],
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
