"""Conversion between ONNX and ONNX Runtime's own file format (`.ort`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from epctx_core import GraphOptimizationLevel, SessionOptions, default_registry
from epctx_core.errors import (
    Fail,
    InvalidArgument,
    NotImplementedByProvider,
    convert_errors,
)
from epctx_core.ext import Publication, Request
from epctx_onnxruntime import ort_format
from epctx_onnxruntime.graphs import is_detached
from epctx_onnxruntime.guards import folds_recurrent
from epctx_onnxruntime.real import onnxruntime
from epctx_onnxruntime.versions import CPU_EP, FATAL_ONLY, make_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onnx import ModelProto

    from epctx_core.plugin import TensorView

ONNX = ".onnx"
ORT = ".ort"
_MOST_BYTES = (1 << 31) - 1
_UNWRITABLE = "Failed to save ORT format model"
_PLATFORMS = (None, "arm", "amd64")


@convert_errors("converting the model")
def convert_model(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL,  # noqa: E501 - ONNX Runtime's names
    save_runtime_optimizations: bool = False,
    target_platform: Literal["arm", "amd64"] | None = None,
) -> Path:
    """Write a model in the other format, or an old `.ort` file in the newest version of
    its format.

    The name of the output says which format: `.onnx` or `.ort`. The three choices count
    for `.ort` only and are those of onnxruntime's own `convert_onnx_models_to_ort`.

    Args:
        model: an ONNX model or an `.ort` file.
        output: is replaced, whole or not at all; its folder is made.
        graph_optimization_level: of the `.ort` file. From ORT_ENABLE_LAYOUT on with
            `amd64` it fits processors like this one only.
        save_runtime_optimizations: keep the operators, and save optimisations for
            minimal builds in the file.
        target_platform: `arm` takes signed weights in quantised operators, `amd64`
            layouts for x86.

    Returns:
        The output's path.

    Raises:
        NoSuchFile, InvalidProtobuf, InvalidGraph: the model cannot be read.
        InvalidArgument: an argument is wrong, or there is nothing to convert.
        NotImplementedByProvider: onnxruntime refuses the model, which for `.ort` needs
            a kernel for each node.
        Fail: the output cannot be written, or would have 2 GiB or more.
    """
    source = Path(model)
    target = Path(output)
    kind = target.suffix.lower()
    if kind not in {ONNX, ORT}:
        raise InvalidArgument(
            f"the format of {target.name!r} is unknown: its name ends in neither "
            f"{ONNX} nor {ORT}.",
            path=target,
        )
    level = GraphOptimizationLevel(graph_optimization_level)
    if target_platform not in _PLATFORMS:
        raise InvalidArgument(
            f"target_platform is {target_platform!r:.80}, not one of "
            f"{', '.join(map(repr, _PLATFORMS))}.",
            hint=(
                "It is the family of processors of an .ort file; leave it out for any."
            ),
        )
    request = Request.from_options(source, SessionOptions(), default_registry, ())
    opened = request.read_model()
    with source.open("rb") as file:
        from_ort = ort_format.recognizes(file.read(8))
    _check_convertible(opened, source, kind, from_ort=from_ort)
    proto = opened.source.proto
    weights = opened.source.weights
    content = (
        _serialize_with_weights(proto, weights, source) if from_ort else str(source)
    )
    with Publication(target.parent) as publication:
        staged = publication.create(target.name)
        if isinstance(content, bytes) and kind == ONNX:
            staged.write(content)
        else:
            options = _make_options(level, save_runtime_optimizations, target_platform)
            options["sess_options"].optimized_model_filepath = str(staged.name)
            _save_as_ort(content, source.name, options, target)
        publication.commit([target.name])
    return target


def _check_convertible(model: Any, source: Path, kind: str, *, from_ort: bool) -> None:
    """Raise InvalidArgument, Fail or NotImplementedByProvider for a model that cannot
    be converted.
    """
    nodes = model.context_nodes
    if nodes and kind == ORT:
        raise InvalidArgument(
            f"{source.name} is a context model: onnxruntime cannot write EPContext "
            f"nodes to an {ORT} file.",
            node=nodes[0].name,
            hint="Convert the model that it was compiled from, and compile the result.",
        )
    if kind == ONNX and not from_ort:
        raise InvalidArgument(f"{source.name} is an ONNX model already.", path=source)
    _check_size(sum(weight.nbytes for weight in model.source.weights.values()), source)
    if kind == ORT and folds_recurrent(model.source.proto):
        raise NotImplementedByProvider(
            f"{source.name} has a recurrent operator with constants alone for inputs: "
            "onnxruntime computes it while it converts, and ends the process if they "
            "are empty.",
            path=source,
            hint="Replace the operator by its result.",
        )


def _save_as_ort(
    model: str | bytes, name: str, options: dict[str, Any], target: Path
) -> None:
    try:
        onnxruntime.InferenceSession(
            model, providers=[CPU_EP], enable_fallback=0, **options
        )
    except Exception as error:
        # onnxruntime's exception classes have no base of their own, and its words do
        # not say why the system refused.
        if _UNWRITABLE in str(error):
            raise Fail(
                f"{str(target)!r} cannot be written: onnxruntime could not save the "
                "model there.",
                path=target,
                hint="Free some space on that disk, or choose another folder.",
            ) from error
        raise NotImplementedByProvider(
            f"onnxruntime does not convert {name}: {' '.join(str(error).split())}",
            hint=f"An {ORT} file can hold only what onnxruntime has a kernel for.",
        ) from error


def _serialize_with_weights(
    proto: ModelProto, weights: Mapping[str, TensorView], source: Path
) -> bytes:
    """Return a model's bytes with all its weights inside.

    Raises:
        Fail: it is larger than a protobuf can be.
    """
    for tensor in proto.graph.initializer:
        if is_detached(tensor):
            tensor.ClearField("data_location")
            tensor.ClearField("external_data")
            tensor.raw_data = b"".join(weights[tensor.name].chunks())
    _check_size(proto.ByteSize(), source)
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def _check_size(size: int, source: Path) -> None:
    """Raise Fail if a model cannot be in one file of either format."""
    if size > _MOST_BYTES:
        raise Fail(
            f"{source.name} has {size:,} bytes with its weights: a file of either "
            "format, which holds them, has less than 2 GiB.",
            path=source,
            hint=f"Use the {ONNX} model as it is, with its weights in files of their "
            "own; sessions and compiles take it.",
        )


def _make_options(
    level: GraphOptimizationLevel,
    save_runtime_optimizations: bool,
    target_platform: str | None,
) -> dict[str, Any]:
    """Return the arguments of onnxruntime's session, as its own converter sets them."""
    options = make_options()
    options.log_severity_level = FATAL_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel(int(level))
    options.add_session_config_entry("session.save_model_format", "ORT")
    options.add_session_config_entry(
        "session.qdqisint8allowed", "1" if target_platform == "arm" else "0"
    )
    if save_runtime_optimizations:
        options.add_session_config_entry(
            "optimization.minimal_build_optimizations", "save"
        )
    # Its layouts fit one processor.
    layouts = (
        level >= GraphOptimizationLevel.ORT_ENABLE_LAYOUT and target_platform != "amd64"
    )
    return {
        "sess_options": options,
        "disabled_optimizers": ["NchwcTransformer"] if layouts else None,
    }
