"""Behaviours of an EP that compiles: onnxruntime's with the wheel `onnxruntime-qnn`,
epctx's with its simulation.

Only `make differential` tries them, and only where that wheel is installed: it may take
the process with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import onnxruntime_qnn
from differential.behaviours import ERROR_IF_EXISTS, behaviour
from differential.harness import HEAD, Harness

QNN = "QNNExecutionProvider"
TEXT = HEAD + "(float[4, 8] x) => (float[4, 8] y) { a = Relu(x) y = Sigmoid(a) }"
FEED = {"x": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)}
NAMES = "names in `ep_cache_context`"

onnxruntime.register_execution_provider_library(QNN, onnxruntime_qnn.get_library_path())


def qnn(s: Harness, given: dict[str, str] | None = None, **entries: object) -> Any:
    """Return session options with the EP."""
    o = s.options(**entries)
    options = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": "60",
        "htp_arch": "73",
        **(given or {}),
    }
    if s.ort is onnxruntime:
        devices = [device for device in s.ort.get_ep_devices() if device.ep_name == QNN]
        o.add_provider_for_devices(
            devices[:1], {**options, "enable_htp_fp16_precision": "1"}
        )
    else:
        o.add_provider(QNN, options)
    return o


def compiled(s: Harness, name: str = "out.onnx", *, embed: bool = False) -> str:
    s.ort.ModelCompiler(qnn(s), s.model(TEXT), embed).compile_to_file(s.out(name))
    return s.out(name)


def loaded(s: Harness, model: Any, **entries: object) -> list[Any]:
    """Load and run; one decimal, for one of the two computes in float16."""
    (y,) = s.ort.InferenceSession(model, qnn(s, **entries)).run(None, FEED)
    return [y.shape, np.round(y, 1)]


def changed(s: Harness, **attributes: object) -> str:
    """Compile, and change attributes of the node; None removes one."""
    path = compiled(s)
    proto = onnx.load(path, load_external_data=False)
    (node,) = proto.graph.node
    for name, value in attributes.items():
        for old in [a for a in node.attribute if a.name == name]:
            node.attribute.remove(old)
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(name, value))
    onnx.save(proto, path)
    return path


@behaviour(1)
def qnn_writes_a_model_and_a_binary(s):
    return [node.op_type for node in onnx.load(compiled(s)).graph.node]


@behaviour(differs="binary's name")
def qnn_names_the_binary_of_a_ctx_model(s):
    compiled(s, "out_ctx.onnx")


@behaviour(2, 17)
def qnn_embeds(s):
    return loaded(s, compiled(s, embed=True))


@behaviour(18)
def qnn_loads_from_a_file(s):
    return loaded(s, compiled(s))


@behaviour(42)
def qnn_keeps_an_output_that_exists_under_the_flag(s):
    path = compiled(s)
    s.ort.ModelCompiler(qnn(s), s.model(TEXT), flags=ERROR_IF_EXISTS).compile_to_file(
        path
    )


@behaviour(40)
def qnn_writes_from_a_session(s):
    o = qnn(s, ep__context_enable=1, ep__context_file_path=s.out())
    return np.round(s.ort.InferenceSession(s.model(TEXT), o).run(None, FEED)[0], 1)


@behaviour(43)
def qnn_never_replaces_from_a_session(s):
    path = compiled(s)
    o = qnn(s, ep__context_enable=1, ep__context_file_path=path)
    s.ort.InferenceSession(s.model(TEXT), o)


@behaviour(47, differs="compiling a compiled model, also by `ep.context_enable=1`")
def qnn_compiles_a_compiled_model(s):
    s.ort.ModelCompiler(qnn(s), compiled(s)).compile_to_file(s.out("again.onnx"))


@behaviour(51, differs="missing output folder")
def qnn_writes_into_a_missing_folder(s):
    compiled(s, "none/out.onnx")


@behaviour(66)
def qnn_may_not_compile(s):
    s.ort.InferenceSession(s.model(TEXT), qnn(s, session__disable_model_compile=1))


@behaviour(66)
def qnn_need_not_compile(s):
    return loaded(s, compiled(s), session__disable_model_compile=1)


@behaviour(59)
def qnn_takes_its_short_source(s):
    return loaded(s, changed(s, source="qnn"))


@behaviour(59)
def qnn_takes_no_other_source(s):
    loaded(s, changed(s, source="Other"))


@behaviour(59)
def qnn_takes_no_node_without_a_source(s):
    loaded(s, changed(s, source=None))


@behaviour(55, 57)
def qnn_with_another_partition_name_and_another_node_name(s):
    path = changed(s, partition_name=None)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.node[0].name = "other"
    onnx.save(proto, path)
    return loaded(s, path)


@behaviour(71, 72)
def qnn_without_its_binary(s):
    path = compiled(s)
    Path(s.out("out_qnn.bin")).unlink()
    loaded(s, path)


@behaviour(73)
def qnn_with_an_empty_name(s):
    loaded(s, changed(s, ep_cache_context=""))


@behaviour(73)
def qnn_without_a_name(s):
    loaded(s, changed(s, ep_cache_context=None))


@behaviour(74)
def qnn_with_an_absolute_name(s):
    loaded(s, changed(s, ep_cache_context=s.out("out_qnn.bin")))


@behaviour(75)
def qnn_with_a_name_that_leaves(s):
    loaded(s, changed(s, ep_cache_context=f"../{s.folder.name}/out_qnn.bin"))


@behaviour(76, differs=NAMES)
def qnn_with_a_name_that_leaves_a_sub_folder(s):
    (s.folder / "sub").mkdir()
    return loaded(s, changed(s, ep_cache_context="sub/../out_qnn.bin"))


@behaviour(84)
def qnn_with_an_empty_binary(s):
    path = compiled(s)
    Path(s.out("out_qnn.bin")).write_bytes(b"")
    loaded(s, path)


@behaviour(84)
def qnn_with_a_binary_of_junk(s):
    path = compiled(s)
    Path(s.out("out_qnn.bin")).write_bytes(b"junk" * 1000)
    loaded(s, path)


@behaviour(85)
def qnn_with_a_name_for_an_embedded_payload(s):
    loaded(s, changed(s, embed_mode=1))


@behaviour(
    63,
    differs="a model from bytes with a binary in a file, and no `ep.context_file_path`",
)
def qnn_from_bytes_without_a_folder(s):
    loaded(s, Path(compiled(s)).read_bytes())


@behaviour(63)
def qnn_from_bytes_with_a_folder(s):
    return loaded(
        s, Path(compiled(s)).read_bytes(), ep__context_file_path=s.out("any.onnx")
    )


@behaviour(135, differs="provider options")
def qnn_with_an_option_that_nobody_has(s):
    s.ort.InferenceSession(s.model(TEXT), qnn(s, {"no_such_option": "1"}))


@behaviour(87, differs="`ep_sdk_version`, `hardware_architecture` of a node")
def qnn_with_another_sdk_version(s):
    return loaded(s, changed(s, ep_sdk_version="v9.99.0"))
