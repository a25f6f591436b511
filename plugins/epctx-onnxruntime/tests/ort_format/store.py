"""Writes the stored `.ort` files of older versions of the format, with the onnxruntime
that wrote them.

    python plugins/epctx-onnxruntime/tests/ort_format/store.py 4 .venv-112/bin/python

The other interpreter has onnxruntime 1.12 (version 4 of the format; Python 3.10), or
1.13 to 1.16 (version 5). Weights that the ONNX model has, too, are cut out of the
stored file; `stored.py` puts them back.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from sources import NAMES, source

STORED = Path(__file__).parent / "stored"
CUT_FROM = 4096
"""Bytes from which a weight is cut out."""
CONVERT = """
import sys, onnxruntime
options = onnxruntime.SessionOptions()
options.optimized_model_filepath = sys.argv[2]
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
options.add_session_config_entry("session.save_model_format", "ORT")
if sys.argv[3] == "runtime":
    options.add_session_config_entry("optimization.minimal_build_optimizations", "save")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(onnxruntime.__version__)
"""


def main() -> None:
    """Convert all models with another interpreter's onnxruntime."""
    version, python = int(sys.argv[1]), sys.argv[2]
    table_file = STORED / "table.json"
    table = json.loads(table_file.read_text()) if table_file.is_file() else {}
    STORED.mkdir(exist_ok=True)
    for name in NAMES:
        # Saved runtime optimisations are what readers have to be able to leave out.
        style = "runtime" if name == "qdq" else "fixed"
        with tempfile.TemporaryDirectory() as scratch:
            before, after = Path(scratch, "model.onnx"), Path(scratch, "model.ort")
            model = source(name)
            onnx.save(model, before)
            command = [python, "-c", CONVERT, str(before), str(after), style]
            made_by = subprocess.check_output(command, text=True).split()[-1]
            data = bytearray(after.read_bytes())
        entry = {
            "onnxruntime": made_by,
            "sha256": hashlib.sha256(data).hexdigest(),
            "weights": {},
        }
        for tensor in model.graph.initializer:
            size = len(tensor.raw_data)
            at = data.find(tensor.raw_data) if size >= CUT_FROM else -1
            if at >= 0:
                entry["weights"][tensor.name] = at
                data[at : at + size] = bytes(size)
        file = f"{name}.v{version}.ort.xz"
        (STORED / file).write_bytes(lzma.compress(bytes(data), preset=9))
        table[file] = entry
    table_file.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
