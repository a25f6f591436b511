"""Rotary embeddings, which OpenVINO's CPU device fuses into one operator and does not
export in full.

OpenVINO 2026.4 leaves out of a program how wide the tables of cosines and sines are. An
imported program takes them to be as wide as the heads, and reads halves of them, as
ONNX's RotaryEmbedding has, at wrong places.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from epctx_openvino.native import import_openvino, working_core

if TYPE_CHECKING:
    import openvino

_FUSED = "RoPE"
_TIMES = 4
"""Compilations until nothing is fused: each pattern that is broken may leave another
one, of which few exist.
"""


def compile_exportable(
    model: openvino.Model, device: str, config: dict[str, Any]
) -> openvino.CompiledModel:
    """Compile a model so that an import of it computes the same; it changes the model
    to that end.

    Raises:
        RuntimeError: OpenVINO does not compile it, or fuses what it would not import as
            it was.
    """
    compiled = working_core().compile_model(model, device, config)
    for _ in range(_TIMES):
        fused = _find_fused(compiled, device)
        if not fused:
            return compiled
        _keep_apart(model, fused)
        compiled = working_core().compile_model(model, device, config)
    raise RuntimeError(
        f"it fuses a rotary embedding that it does not export in full: {min(fused)}"
    )


def _find_fused(compiled: openvino.CompiledModel, device: str) -> set[str]:
    """Return the last operator of each fused rotary embedding whose tables are not as
    wide as its heads.
    """
    if "CPU" not in device:
        return set()
    return {
        each.get_friendly_name()
        for each in compiled.get_runtime_model().get_ops()
        if each.get_rt_info()["layerType"].value == _FUSED
        and each.input(1).get_partial_shape()[-1]
        != each.output(0).get_partial_shape()[-1]
    }


def _keep_apart(model: openvino.Model, names: set[str]) -> None:
    """Put the maximum of each value and itself before operators: no pattern has it, and
    nothing removes it.
    """
    import_openvino()
    from openvino import opset13

    for each in [each for each in model.get_ops() if each.get_friendly_name() in names]:
        for port in each.inputs():
            source = port.get_source_output()
            if source.get_element_type().is_real():
                port.replace_source_output(opset13.maximum(source, source).output(0))
