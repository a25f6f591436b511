"""Share groups of `folder/a.onnx` and others in `folder/out`, driven by session
options.
"""

from __future__ import annotations

from support.share_models import sharing, write_model
from support.sim_eps import OPENVINO, QNN, VITISAI

import epctx_core as epctx

EPS = [QNN, OPENVINO, VITISAI]
ROWS = {"a": 1, "b": 8, "c": 5}


def compiled(ep, folder, *names, stop=True, **entries):
    """Compile models of a folder into a group in `folder/out`, the last one as its end
    unless told otherwise.
    """
    out = folder / "out"
    out.mkdir(exist_ok=True)
    for name in names:
        last = stop and name == names[-1]
        source = write_model(ep, folder / f"{name}.onnx", ROWS[name[0]], prefix=name)
        compiler = epctx.ModelCompiler(sharing(ep, stop=last, **entries), source)
        compiler.compile_to_file(out / f"{name}_ctx.onnx")
    return out
