"""Uses of `ModelCompiler` and of what its callbacks are given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import CPU

X = models.X
EP = "QNNExecutionProvider"


def compiler(**settings) -> ort.ModelCompiler:
    Path("linear.onnx").write_bytes(models.linear())
    options = ort.SessionOptions()
    options.add_provider(CPU[0], {})
    return ort.ModelCompiler(options, "linear.onnx", **settings)


def loaded(model) -> list:
    opened = ort.InferenceSession(model, providers=CPU)
    return plain(opened.run(None, {"x": X}))


@uses("ModelCompiler", "ModelCompiler.compile_to_file")
def compiled_to_file():
    compiler().compile_to_file("made.onnx")
    compiler(embed_compiled_data_into_model=True).compile_to_file(
        output_model_path="other.onnx"
    )
    return [loaded("made.onnx"), loaded("other.onnx")]


@uses("ModelCompiler", case="all arguments")
def compiler_with_all_arguments():
    made = ort.ModelCompiler(
        sess_options=ort.SessionOptions(),
        input_model_path_or_bytes=models.linear(),
        embed_compiled_data_into_model=True,
        external_initializers_file_path=None,
        external_initializers_size_threshold=1024,
        flags=ort.OrtCompileApiFlags.NONE,
        graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        get_initializer_location_func=None,
    )
    return loaded(made.compile_to_bytes())


@uses("ModelCompiler", case="weights in a file")
def compiled_with_weights_in_a_file():
    compiler(
        external_initializers_file_path="weights.bin",
        external_initializers_size_threshold=16,
    ).compile_to_file("heavy.onnx")
    return [Path("weights.bin").exists(), loaded("heavy.onnx")]


@uses(
    "OrtExternalInitializerInfo",
    "OrtExternalInitializerInfo.filepath",
    "OrtExternalInitializerInfo.file_offset",
    "OrtExternalInitializerInfo.byte_size",
)
def weights_placed_by_the_host():
    asked = []
    with Path("mine.bin").open("wb") as file:

        def place(name, value, given):
            asked.append([name, value.data_type(), value.shape(), given is None])
            if value.tensor_size_in_bytes() < 16:
                return None
            start = file.tell()
            file.write(value.numpy().tobytes())
            return ort.OrtExternalInitializerInfo(
                "mine.bin", start, value.tensor_size_in_bytes()
            )

        made = compiler(get_initializer_location_func=place)
        made.compile_to_file("placed.onnx")
    info = ort.OrtExternalInitializerInfo("a.bin", 8, 16)
    return [
        sorted(asked),
        loaded("placed.onnx"),
        [info.filepath, info.file_offset, info.byte_size],
    ]


@uses("ModelCompiler.compile_to_bytes")
def compiled_to_bytes():
    made = compiler(embed_compiled_data_into_model=True).compile_to_bytes()
    return [type(made).__name__, loaded(made)]


@uses("ModelCompiler.compile_to_stream")
def compiled_to_stream():
    parts = []
    compiler(embed_compiled_data_into_model=True).compile_to_stream(parts.append)
    return [[type(each).__name__ for each in parts[:1]], loaded(b"".join(parts))]


@uses("ModelCompiler.set_ep_context_binary_information")
def binary_information():
    made = compiler()
    made.set_ep_context_binary_information("./", "linear")
    made.compile_to_file("informed.onnx")
    return [
        loaded("informed.onnx"),
        caught(compiler().set_ep_context_binary_information, "", ""),
    ]


@uses("ModelCompiler", case="wrong uses")
def wrong_compilers():
    options = ort.SessionOptions()
    return [
        caught(ort.ModelCompiler, options, ""),
        caught(ort.ModelCompiler, options, b""),
        caught(ort.ModelCompiler, options, 3),
        caught(ort.ModelCompiler, "options", models.linear()),
        caught(
            ort.ModelCompiler,
            options,
            models.linear(),
            external_initializers_file_path=3,
        ),
        caught(
            ort.ModelCompiler,
            options,
            models.linear(),
            external_initializers_file_path="a.bin",
            get_initializer_location_func=lambda name, value, given: None,
        ),
    ]


@uses("ModelCompiler", case="a source that is missing")
def missing_source():
    def run():
        made = ort.ModelCompiler(ort.SessionOptions(), "nowhere.onnx")
        made.compile_to_file("made.onnx")

    return caught(run)


@uses("ModelCompiler", case="an output that exists")
def existing_output():
    flags = ort.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
    Path("there.onnx").write_bytes(b"")
    return caught(compiler(flags=flags).compile_to_file, "there.onnx")


@uses("ModelCompiler", case="nothing to compile")
def nothing_compiled():
    flags = ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED
    return caught(compiler(flags=flags).compile_to_file, "nothing.onnx")


@uses(
    "ModelCompiler.set_ep_context_data_write_func",
    "ModelCompiler.clear_ep_context_data_write_func",
)
def data_writer():
    made = compiler()
    made.set_ep_context_data_write_func(lambda name, data: None)
    made.set_ep_context_data_write_func(write_func=lambda name, data: None)
    made.clear_ep_context_data_write_func()
    made.compile_to_file("unwritten.onnx")
    return [
        loaded("unwritten.onnx"),
        caught(compiler().set_ep_context_data_write_func, 3),
    ]


@uses(
    "OrtEpContextData",
    "OrtEpContextData.read",
    "OrtEpContextData.size",
    "OrtEpContextDataBuffer",
    "OrtEpContextDataBuffer.allocate",
    "OrtEpContextDataBuffer.is_allocated",
    "OrtEpContextDataBuffer.max_size",
    "OrtEpContextDataBuffer.size",
    "OrtEpContextDataBuffer.write",
)
def payloads_kept_by_the_host():
    if EP not in ort.get_available_providers():
        return "no EP here compiles"
    kept, told = {}, []

    def write(name, data):
        half = data.size // 2
        kept[name] = data.read(0, half) + data.read(offset=half, length=None)
        told.append([isinstance(data, ort.OrtEpContextData), len(data.read())])

    def read(name, buffer):
        before = buffer.is_allocated
        buffer.allocate(len(kept[name]))
        buffer.write(kept[name][:10])
        buffer.write(data=kept[name][10:], offset=10)
        told.append(
            [
                isinstance(buffer, ort.OrtEpContextDataBuffer),
                before,
                buffer.is_allocated,
                buffer.max_size,
                buffer.size == len(kept[name]),
            ]
        )

    options = ort.SessionOptions()
    options.add_provider(EP, {})
    made = ort.ModelCompiler(options, models.two_outputs())
    made.set_ep_context_data_write_func(write)
    model = made.compile_to_bytes()

    options = ort.SessionOptions()
    options.set_ep_context_data_read_func(read, 1 << 20)
    opened = ort.InferenceSession(model, options, providers=[EP, *CPU])
    ones = np.ones((2, 2), np.float32)
    nodes = {node.op_type for node in onnx.load_from_string(model).graph.node}
    # Not the size: it is the EP's.
    shown = [each[:1] if len(each) == 2 else each for each in told]
    return [sorted(nodes), shown, plain(opened.run(None, {"a": ones, "b": ones}))]
