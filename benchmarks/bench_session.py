"""Creating sessions: context models against onnxruntime on the source; time to the first result; memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from harness import DATA, Bar, measure, report, resident_memory, seconds, show

ROOT = Path(__file__).parent.parent
BARS = {"resnet50": 0.3, "densenet121": 0.3, "bert": 0.7}


def make_models() -> None:
    """Write the networks and their context models, once."""
    import epctx_core as epctx

    DATA.mkdir(exist_ok=True)
    so = epctx.SessionOptions()
    so.add_provider("QNN")
    for name in BARS:
        path = DATA / f"{name}.onnx"
        if not path.exists():
            source = ROOT / "tests" / "models" / name / "model.onnx"
            if source.exists():
                shutil.copyfile(source, path)
            else:
                script = ROOT / "tests" / "networks" / "fill.py"
                subprocess.check_call([sys.executable, script, name, path], stdout=subprocess.DEVNULL)
        epctx.ModelCompiler(so, path).compile_to_file()


def create(who: str, name: str) -> None:
    """Create a session and run once, both libraries imported and warm."""
    import numpy as np
    import onnxruntime
    from onnx import parser

    import epctx_core as epctx

    small = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = Relu(x) }'
    )
    onnxruntime.InferenceSession(small.SerializeToString())
    epctx.InferenceSession(small.SerializeToString(), providers=["QNN"]).close()
    path = DATA / f"{name}.onnx"
    before = resident_memory()
    sessions = []
    if who == "onnxruntime":
        created = seconds(lambda: sessions.append(onnxruntime.InferenceSession(str(path))))
    else:
        context = path.with_name(f"{name}_ctx.onnx")
        created = seconds(lambda: sessions.append(epctx.InferenceSession(context)))
    session = sessions[0]
    random = np.random.default_rng(0)
    feeds = {
        v.name: random.standard_normal(v.shape, np.float32)
        if "float" in v.type
        else random.integers(0, 2, v.shape)
        for v in session.get_inputs()
    }
    first = seconds(lambda: session.run(None, feeds))
    report(s=created, with_first_run_s=created + first, resident_bytes=resident_memory() - before)


def main() -> None:
    """Measure everything and print the tables."""
    make_models()
    for name, bar in BARS.items():
        medians = measure(__file__, {"epctx": ("epctx", name), "onnxruntime": ("onnxruntime", name)})
        show(f"session creation, {name}", medians, [Bar(ours="epctx", peer="onnxruntime", at_most=bar)])
        show_ratio(medians, "with_first_run_s", 0.6)
        show_ratio(medians, "resident_bytes", 1.1)


def show_ratio(medians: dict[str, dict[str, float]], figure: str, bar: float) -> None:
    """Print one more ratio of the same measurement."""
    ratio = medians["epctx"][figure] / medians["onnxruntime"][figure]
    print(f"\n{figure}: **{ratio:.3g}** (bar {bar:g}: {'reached' if ratio <= bar else 'MISSED'})")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        create(sys.argv[1], sys.argv[2])
    else:
        main()
