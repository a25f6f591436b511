"""Host of unmodified onnxruntime, a process for each group:
`python sharing_host.py compile FOLDER MODEL ...` compiles a share group, and
`python sharing_host.py load MODEL` loads one of its models; prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnxruntime

sys.path.extend(map(str, Path(__file__).parents[1:3]))

from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options


def make_options(**entries):
    """Return options with Qualcomm's EP."""
    import onnxruntime_qnn

    ep = PluginEP(
        ep=QNN, devices=devices(QNN, onnxruntime_qnn)[:1], options=qnn_options()
    )
    options = ep.session_options()
    for key, value in entries.items():
        options.add_session_config_entry(f"ep.{key}", value)
    return options


def compile_group(folder, *models):
    """Compile a share group; return the bytes of its binary."""
    for model in models:
        options = make_options(
            share_ep_contexts="1",
            stop_share_ep_contexts=str(int(model == models[-1])),
        )
        output = Path(folder, f"{Path(model).stem}_ctx.onnx")
        onnxruntime.ModelCompiler(options, model, False).compile_to_file(str(output))
    (binary,) = Path(folder).glob("*.bin")
    return binary.stat().st_size


def load(model):
    """Load a model; return the error."""
    # Qualcomm's simulator ends at a shared binary that is the first that it gets.
    options = make_options(context_enable="1")
    source = Path(model).with_name("first.onnx")
    onnxruntime.ModelCompiler(options, str(source), True).compile_to_bytes()
    try:
        onnxruntime.InferenceSession(model, make_options(), enable_fallback=0)
    except Exception as error:  # noqa: BLE001 - onnxruntime's have no base of their own
        return str(error)
    return ""


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    print(json.dumps({"compile": compile_group, "load": load}[command](*arguments)))
