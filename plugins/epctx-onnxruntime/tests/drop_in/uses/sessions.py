"""Uses of `InferenceSession`, and of what it tells of its model."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto
from uses import models
from uses.recording import caught, plain, uses

CPU = ["CPUExecutionProvider"]
X = models.X


def session(model: bytes = b"", options=None) -> ort.InferenceSession:
    return ort.InferenceSession(model or models.linear(), options, providers=CPU)


@uses("InferenceSession")
def opened_by_path_or_bytes():
    Path("linear.onnx").write_bytes(models.linear())
    opened = [
        ort.InferenceSession("linear.onnx"),
        ort.InferenceSession(models.linear()),
        ort.InferenceSession("linear.onnx", ort.SessionOptions()),
        ort.InferenceSession("linear.onnx", None, CPU, [{}]),
        ort.InferenceSession("linear.onnx", providers=[(CPU[0], {})]),
        ort.InferenceSession(
            path_or_bytes="linear.onnx",
            sess_options=ort.SessionOptions(),
            providers=CPU,
            provider_options=[{"use_arena": "1"}],
            disabled_optimizers=["MatMulAddFusion"],
            enable_fallback=1,
        ),
    ]
    return [plain(each.run(["y"], {"x": X})) for each in opened]


@uses("InferenceSession", case="EPs that are not here")
def opened_with_eps_that_are_not_here():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        one = ort.InferenceSession(
            models.linear(), providers=["CUDAExecutionProvider", *CPU]
        )
        two = ort.InferenceSession(
            models.linear(),
            providers=[("TensorrtExecutionProvider", {"device_id": 0}), *CPU],
        )
    kinds = [each.category.__name__ for each in told]
    return [one.get_providers(), two.get_providers(), kinds]


@uses("InferenceSession", case="an EP that nobody knows")
def opened_with_an_ep_that_nobody_knows():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return caught(
            ort.InferenceSession,
            models.linear(),
            providers=["NoSuchExecutionProvider", *CPU],
        )


@uses("InferenceSession", case="a file that is missing")
def missing_file():
    return caught(ort.InferenceSession, "nowhere.onnx", providers=CPU)


@uses("InferenceSession", case="bytes that are no model")
def no_model():
    return caught(ort.InferenceSession, b"\xff\xff no model", providers=CPU)


@uses("InferenceSession", case="a file that is no model")
def no_model_in_a_file():
    Path("text.onnx").write_text("<html>404</html>")
    return caught(ort.InferenceSession, "text.onnx", providers=CPU)


@uses("InferenceSession", case="a model with an operator of nobody")
def operator_of_nobody():
    node = onnx.helper.make_node("NoSuchOperator", ["x"], ["y"])
    made = models.build([node], [models.tensor("x", [1])], [models.tensor("y", [1])])
    return caught(ort.InferenceSession, made.SerializeToString(), providers=CPU)


@uses("InferenceSession", case="an argument of a wrong type")
def wrong_type_of_model():
    return [
        caught(ort.InferenceSession, 3),
        caught(ort.InferenceSession, None),
    ]


@uses("InferenceSession", case="an EP that is no text")
def no_ep():
    return caught(
        ort.InferenceSession, models.linear(), providers=[3], enable_fallback=0
    )


@uses("InferenceSession", case="options for other EPs")
def wrong_provider_options():
    return caught(
        ort.InferenceSession,
        models.linear(),
        providers=CPU,
        provider_options=[{}, {}],
        enable_fallback=0,
    )


@uses("InferenceSession.run")
def run():
    two = session(models.two_outputs())
    feed = {"a": np.full((2, 2), 3, np.float32), "b": np.eye(2, dtype=np.float32)}
    return plain(
        [
            two.run(None, feed),
            two.run([], feed),
            two.run(["difference"], feed),
            two.run(["difference", "sum"], feed, ort.RunOptions()),
            session().run(
                output_names=["y"], input_feed={"x": X}, run_options=ort.RunOptions()
            ),
            session().run(None, {"x": X, "b": np.zeros(3, np.float32)}),
            session().run(None, {"x": X.tolist()}),
            session().run(None, {"x": np.zeros((0, 4), np.float32)}),
            session().run(None, {"x": np.asfortranarray(X)}),
        ]
    )


@uses("InferenceSession.run", case="other types of values")
def run_on_other_types():
    texts = np.array(["a", "bc", ""], dtype=object)
    rows = session(models.splits()).run(None, {"x": X[:, :3]})[0]
    return plain(
        [
            session(models.identity(TensorProto.STRING, ["n"])).run(None, {"x": texts}),
            session(models.identity(TensorProto.STRING, ["n"])).run(
                None, {"x": np.array(["a", "bc"])}
            ),
            session(models.identity(TensorProto.FLOAT16, [2])).run(
                None, {"x": np.array([1, 2], np.float16)}
            ),
            session(models.identity(TensorProto.BOOL, [2])).run(
                None, {"x": np.array([True, False])}
            ),
            session(models.identity(TensorProto.INT64, [])).run(
                None, {"x": np.array(5, np.int64)}
            ),
            rows,
            session(models.joins()).run(None, {"rows": rows}),
            session(models.maps()).run(None, {"x": X[:, :2]}),
            session(models.optional()).run(None, {"x": np.ones(2, np.float32)}),
            session(models.optional()).run(None, {"x": None}),
        ]
    )


@uses("InferenceSession.run", case="values of onnxruntime as inputs")
def run_on_ort_values():
    value = ort.OrtValue.ortvalue_from_numpy(X)
    return plain(session().run(["y"], {"x": value}))


@uses("InferenceSession.run", case="an input that is missing")
def missing_input():
    return caught(session().run, None, {})


@uses("InferenceSession.run", case="an input that the model has not")
def unknown_input():
    return caught(session().run, None, {"x": X, "z": X})


@uses("InferenceSession.run", case="an output that the model has not")
def unknown_output():
    return caught(session().run, ["z"], {"x": X})


@uses("InferenceSession.run", case="an input of a wrong type")
def wrong_type():
    return [
        caught(session().run, None, {"x": X.astype(np.float64)}),
        caught(session().run, None, {"x": X.astype(np.int32)}),
    ]


@uses("InferenceSession.run", case="an input of a wrong shape")
def wrong_shape():
    return [
        caught(session().run, None, {"x": X[:, :3]}),
        caught(session().run, None, {"x": X[0]}),
    ]


@uses("InferenceSession.run", case="an input that is no array")
def no_array():
    return [
        caught(session().run, None, {"x": "text"}),
        caught(session().run, None, {"x": object()}),
    ]


@uses("InferenceSession.run", case="a kernel that fails")
def failing_kernel():
    gathers = session(models.gathers())
    good = gathers.run(None, {"rows": np.array([2, 0])})
    return [plain(good), caught(gathers.run, None, {"rows": np.array([9])})]


@uses("InferenceSession.run_async")
def run_async():
    over, told = threading.Event(), []

    def keep(results, user_data, error):
        told.append([plain(results), user_data, error])
        over.set()

    opened = session()
    opened.run_async(["y"], {"x": X}, keep, "mine")
    assert over.wait(20)
    over.clear()
    opened.run_async(None, {"x": X}, keep, {"a": 1}, ort.RunOptions())
    assert over.wait(20)
    return told


@uses("InferenceSession.run_async", case="a kernel that fails")
def run_async_and_fail():
    over, told = threading.Event(), []

    def keep(results, user_data, error):
        told.append([plain(results), user_data, bool(error)])
        over.set()

    opened = session(models.gathers())
    opened.run_async(None, {"rows": np.array([9])}, keep, None)
    assert over.wait(20)
    return told


@uses("InferenceSession.run_async", case="an input that is missing")
def run_async_without_input():
    return caught(session().run_async, None, {}, print, None)


@uses("InferenceSession.run_with_ort_values")
def run_with_ort_values():
    value = ort.OrtValue.ortvalue_from_numpy(X)
    opened = session()
    results = [
        opened.run_with_ort_values(["y"], {"x": value}),
        opened.run_with_ort_values(None, {"x": value}, ort.RunOptions()),
        opened.run_with_ort_values(
            output_names=["y"], input_dict_ort_values={"x": value}, run_options=None
        ),
    ]
    return [
        [type(v).__name__, v.data_type(), v.device_name(), plain(v.numpy())]
        for (v,) in results
    ]


@uses("InferenceSession.run_with_ort_values", case="other types of values")
def run_with_other_ort_values():
    x = ort.OrtValue.ortvalue_from_numpy(X[:, :3])
    (rows,) = session(models.splits()).run_with_ort_values(None, {"x": x})
    (joined,) = session(models.joins()).run_with_ort_values(None, {"rows": rows})
    number = ort.OrtValue.ortvalue_from_numpy(np.array([1, 2], np.int64))
    (text,) = session(models.spelt()).run_with_ort_values(["y"], {"x": number})
    two = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(X[:, :2]))
    (scores,) = session(models.maps()).run_with_ort_values(None, {"x": two})
    return [
        [rows.data_type(), rows.is_tensor_sequence()],
        [joined.data_type(), plain(joined.numpy())],
        [text.data_type(), plain(text.numpy())],
        [scores.data_type(), scores.is_tensor()],
    ]


@uses("InferenceSession.run_with_ort_values", case="bfloat16")
def run_with_bfloat16():
    bits = np.array([0x3F80, 0x4000], np.uint16)
    value = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    opened = session(models.identity(TensorProto.BFLOAT16, [2]))
    (result,) = opened.run_with_ort_values(["y"], {"x": value})
    return [result.data_type(), result.shape(), result.element_type()]


@uses("InferenceSession.run_with_ort_values", case="wrong uses")
def run_with_wrong_ort_values():
    value = ort.OrtValue.ortvalue_from_numpy(X)
    opened = session()
    return [
        caught(opened.run_with_ort_values, None, {}),
        caught(opened.run_with_ort_values, ["z"], {"x": value}),
        caught(
            opened.run_with_ort_values,
            None,
            {"x": ort.OrtValue.ortvalue_from_numpy(X.astype(np.float64))},
        ),
    ]


@uses("InferenceSession.run_with_ortvaluevector")
def run_with_ortvaluevector():
    from onnxruntime.capi.onnxruntime_pybind11_state import OrtDevice, OrtValueVector

    feeds, fetches = OrtValueVector(), OrtValueVector()
    feeds.push_back(ort.OrtValue.ortvalue_from_numpy(X)._get_c_value())
    cpu = OrtDevice(OrtDevice.cpu(), OrtDevice.default_memory(), 0)
    session().run_with_ortvaluevector(
        ort.RunOptions(), ["x"], feeds, ["y"], fetches, [cpu]
    )
    return [plain(ort.OrtValue(value).numpy()) for value in fetches]


@uses("InferenceSession.get_inputs", "NodeArg", "NodeArg.name", "NodeArg.shape")
def inputs():
    return [
        [type(each).__name__, each.name, each.shape]
        for model in (models.linear(), models.denoted(), models.splits())
        for each in session(model).get_inputs()
    ]


@uses("InferenceSession.get_outputs", "NodeArg.type")
def outputs():
    return [
        [each.name, each.shape, each.type]
        for model in (
            models.linear(),
            models.two_outputs(),
            models.identity(TensorProto.STRING, ["n"]),
            models.identity(TensorProto.BFLOAT16, [2, "m"]),
            models.splits(),
            models.maps(),
        )
        for each in session(model).get_outputs()
    ]


@uses("InferenceSession.get_outputs", case="a length without a name")
def length_without_a_name():
    opened = session(models.identity(TensorProto.FLOAT, [2, None]))
    return [opened.get_inputs()[0].shape, opened.get_outputs()[0].shape]


@uses("NodeArg", case="as text")
def node_arg_as_text():
    return [str(each) for each in session().get_inputs()]


@uses("InferenceSession.get_overridable_initializers")
def overridable_initializers():
    return [
        [each.name, each.shape, each.type]
        for each in session().get_overridable_initializers()
    ]


@uses("InferenceSession.get_modelmeta", "ModelMetadata")
def modelmeta():
    return type(session().get_modelmeta()).__name__


@uses(
    "ModelMetadata.custom_metadata_map",
    "ModelMetadata.description",
    "ModelMetadata.domain",
    "ModelMetadata.graph_description",
    "ModelMetadata.graph_name",
    "ModelMetadata.producer_name",
    "ModelMetadata.version",
)
def metadata():
    meta = session().get_modelmeta()
    return [
        meta.custom_metadata_map,
        meta.description,
        meta.domain,
        meta.graph_description,
        meta.graph_name,
        meta.producer_name,
        meta.version,
    ]


@uses("InferenceSession.get_providers")
def providers():
    return [
        list(session().get_providers()),
        ort.InferenceSession(models.linear()).get_providers(),
    ]


@uses("InferenceSession.get_provider_options")
def provider_options():
    return session().get_provider_options()


@uses("InferenceSession.set_providers")
def set_providers():
    opened = session()
    opened.set_providers(CPU)
    opened.set_providers(providers=CPU, provider_options=[{}])
    opened.set_providers([(CPU[0], {})])
    return [opened.get_providers(), plain(opened.run(None, {"x": X}))]


@uses("InferenceSession.enable_fallback", "InferenceSession.disable_fallback")
def fallback():
    opened = session()
    opened.disable_fallback()
    opened.enable_fallback()
    return plain(opened.run(None, {"x": X}))


@uses("InferenceSession.get_session_options")
def session_options():
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    shown = session(options=options).get_session_options()
    return [
        type(shown).__name__,
        shown.intra_op_num_threads,
        shown.graph_optimization_level.name,
        session().get_session_options().intra_op_num_threads,
    ]


@uses(
    "InferenceSession.get_provider_graph_assignment_info",
    "OrtEpAssignedNode",
    "OrtEpAssignedNode.domain",
    "OrtEpAssignedNode.name",
    "OrtEpAssignedNode.op_type",
    "OrtEpAssignedSubgraph",
    "OrtEpAssignedSubgraph.ep_name",
    "OrtEpAssignedSubgraph.get_nodes",
)
def assignment():
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    opened = session(options=options)
    return [
        [
            type(group).__name__,
            group.ep_name,
            [
                [type(node).__name__, node.name, node.domain, node.op_type]
                for node in group.get_nodes()
            ],
        ]
        for group in opened.get_provider_graph_assignment_info()
    ]


@uses("InferenceSession.get_provider_graph_assignment_info", case="not recorded")
def assignment_that_was_not_recorded():
    return caught(session().get_provider_graph_assignment_info)


@uses("InferenceSession.get_input_memory_infos")
def input_memory():
    # What onnxruntime returns lies in the session, and is garbage without it.
    opened = session()
    return [_memory(each) for each in opened.get_input_memory_infos()]


@uses("InferenceSession.get_output_memory_infos")
def output_memory():
    opened = session(models.two_outputs())
    return [_memory(each) for each in opened.get_output_memory_infos()]


def _memory(info):
    return plain(
        [
            info.name,
            info.device_id,
            info.mem_type,
            info.device_mem_type,
            info.device_vendor_id,
            info.allocator_type,
        ]
    )


@uses("InferenceSession.get_input_epdevices")
def input_epdevices():
    return [each and each.ep_name for each in session().get_input_epdevices()]


@uses("InferenceSession.create_ortvalue_from_shape_and_type")
def session_value():
    opened = session()
    made = [
        opened.create_ortvalue_from_shape_and_type([2, 4], np.float32, "cpu"),
        opened.create_ortvalue_from_shape_and_type(
            shape=[2, 4], element_type=TensorProto.FLOAT, device_type="cpu", device_id=0
        ),
    ]
    for each in made:
        each.update_inplace(X)
    return [
        [each.shape(), plain(opened.run_with_ort_values(["y"], {"x": each})[0].numpy())]
        for each in made
    ]


@uses("InferenceSession.release_captured_graph")
def released_graph():
    opened = session()
    return [
        opened.release_captured_graph(),
        opened.release_captured_graph(1),
        opened.release_captured_graph(graph_annotation_id=0),
    ]


@uses("InferenceSession.get_tuning_results", "InferenceSession.set_tuning_results")
def tuning():
    opened = session()
    results = opened.get_tuning_results()
    opened.set_tuning_results(results)
    opened.set_tuning_results(results, error_on_invalid=True)
    return results


@uses("InferenceSession.set_ep_dynamic_options")
def dynamic_options():
    return caught(session().set_ep_dynamic_options, {})


@uses("InferenceSession.set_ep_dynamic_options", case="for the CPU EP")
def dynamic_options_of_the_cpu_ep():
    return caught(session().set_ep_dynamic_options, {"ep.dynamic.workload_type": "a"})


@uses(
    "InferenceSession.end_profiling",
    "SessionOptions.enable_profiling",
    "SessionOptions.profile_file_prefix",
)
def profiling():
    import json
    from pathlib import Path

    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = "mine"
    opened = session(options=options)
    opened.run(None, {"x": X})
    path = Path(opened.end_profiling())
    return [path.name.startswith("mine"), len(json.loads(path.read_text())) > 1]


@uses("InferenceSession.get_profiling_start_time_ns")
def profiling_start():
    return session().get_profiling_start_time_ns() >= 0


@uses("InferenceSession.io_binding", "IOBinding", "InferenceSession.run_with_iobinding")
def bound():
    opened = session()
    binding = opened.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    opened.run_with_iobinding(iobinding=binding, run_options=ort.RunOptions())
    other = ort.IOBinding(opened)
    return [
        type(binding).__name__,
        isinstance(other, ort.IOBinding),
        plain(binding.copy_outputs_to_cpu()),
    ]


@uses("InferenceSession.run_with_iobinding", case="wrong uses")
def wrongly_bound():
    opened = session()
    nothing, half = opened.io_binding(), opened.io_binding()
    half.bind_output("y")
    return [
        caught(opened.run_with_iobinding, nothing),
        caught(opened.run_with_iobinding, half),
        caught(session().run_with_iobinding, half),
    ]
