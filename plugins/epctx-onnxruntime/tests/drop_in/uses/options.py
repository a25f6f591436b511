"""Uses of `SessionOptions` and `RunOptions`."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto
from uses import models
from uses.recording import caught, plain, uses
from uses.sessions import CPU, session

X = models.X

ATTRIBUTES = {
    "enable_cpu_mem_arena": False,
    "enable_mem_pattern": False,
    "enable_mem_reuse": False,
    "execution_mode": ort.ExecutionMode.ORT_PARALLEL,
    "graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "inter_op_num_threads": 2,
    "intra_op_num_threads": 2,
    "log_severity_level": 3,
    "log_verbosity_level": 1,
    "logid": "mine",
    "use_deterministic_compute": True,
}
"""What programs set, with a value that is not the default."""


def set_attribute(name: str) -> object:
    """Return an attribute's default, its other value and the results with that."""
    options = ort.SessionOptions()
    before = getattr(options, name)
    setattr(options, name, ATTRIBUTES[name])
    results = session(options=options).run(None, {"x": X})
    return plain([before, getattr(options, name), results])


for _name in ATTRIBUTES:
    uses(f"SessionOptions.{_name}")(partial(set_attribute, _name))


@uses("SessionOptions")
def options_of_two_sessions():
    options = ort.SessionOptions()
    return [plain(session(options=options).run(None, {"x": X})) for _ in range(2)]


@uses("SessionOptions.use_per_session_threads")
def threads_of_all_sessions():
    options = ort.SessionOptions()
    before = options.use_per_session_threads
    # onnxruntime has threads for all sessions only where a host made them.
    options.use_per_session_threads = False
    return [before, options.use_per_session_threads]


@uses("SessionOptions", case="values of wrong types")
def wrong_attributes():
    options = ort.SessionOptions()
    return [
        caught(setattr, options, "intra_op_num_threads", "two"),
        caught(setattr, options, "execution_mode", 99.5),
        caught(setattr, options, "logid", 3),
        caught(setattr, options, "no_such_option", 1),
        hasattr(options, "no_such_option"),
    ]


@uses("SessionOptions.graph_optimization_level", case="a text")
def level_by_a_text():
    return caught(setattr, ort.SessionOptions(), "graph_optimization_level", "all")


@uses("SessionOptions.graph_optimization_level", case="all levels")
def all_levels():
    results = []
    for level in ort.GraphOptimizationLevel.__members__.values():
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        results.append(plain(session(options=options).run(None, {"x": X})))
    return results


@uses("SessionOptions.execution_order")
def execution_order():
    options = ort.SessionOptions()
    before = options.execution_order.name
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return [before, options.execution_order.name]


@uses("SessionOptions.execution_order", case="its default")
def default_execution_order():
    options = ort.SessionOptions()
    options.execution_order = ort.ExecutionOrder.DEFAULT
    return plain(session(options=options).run(None, {"x": X}))


@uses("SessionOptions.enable_profiling", case="its default")
def no_profiling():
    options = ort.SessionOptions()
    options.enable_profiling = False
    return [options.enable_profiling, options.profile_file_prefix]


@uses("SessionOptions.optimized_model_filepath")
def optimized_model():
    Path("linear.onnx").write_bytes(models.linear())
    told = []
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED"):
        options = ort.SessionOptions()
        told.append(options.optimized_model_filepath)
        options.optimized_model_filepath = f"{level}.onnx"
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        ort.InferenceSession("linear.onnx", options, providers=CPU)
        written = onnx.load(f"{level}.onnx")
        told.append([node.op_type for node in written.graph.node])
        told.append(plain(ort.InferenceSession(f"{level}.onnx").run(None, {"x": X})))
    return told


@uses("SessionOptions.optimized_model_filepath", case="as an .ort file")
def optimized_ort_model():
    options = ort.SessionOptions()
    options.optimized_model_filepath = "linear.ort"
    options.add_session_config_entry("session.save_model_format", "ORT")
    session(options=options)
    return [
        Path("linear.ort").read_bytes()[4:8].decode(),
        plain(ort.InferenceSession("linear.ort").run(None, {"x": X})),
    ]


@uses("SessionOptions.optimized_model_filepath", case="a folder that is missing")
def optimized_model_nowhere():
    options = ort.SessionOptions()
    options.optimized_model_filepath = "no/such/folder/linear.onnx"
    return caught(session, options=options)


@uses(
    "SessionOptions.add_session_config_entry",
    "SessionOptions.get_session_config_entry",
)
def config_entries():
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.set_denormal_as_zero", "0")
    return [
        options.get_session_config_entry("session.intra_op.allow_spinning"),
        options.get_session_config_entry("session.set_denormal_as_zero"),
        plain(session(options=options).run(None, {"x": X})),
    ]


@uses("SessionOptions.get_session_config_entry", case="one that was not set")
def config_entry_that_was_not_set():
    get = ort.SessionOptions().get_session_config_entry
    return [caught(get, "session.disable_prepacking"), caught(get, "of.nobody")]


@uses("SessionOptions.add_session_config_entry", case="wrong uses")
def wrong_config_entries():
    add = ort.SessionOptions().add_session_config_entry
    return [caught(add, "session.set_denormal_as_zero", 1), caught(add, 3, "1")]


@uses("SessionOptions.add_initializer")
def added_initializer():
    options = ort.SessionOptions()
    weight = ort.OrtValue.ortvalue_from_numpy(np.eye(4, 3, dtype=np.float32))
    options.add_initializer("w", weight)
    return plain(session(options=options).run(None, {"x": X}))


@uses("SessionOptions.add_external_initializers")
def added_external_initializers():
    weight = np.full((2, 2), 3, np.float32)
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(weight)])
    model = models.external(weight, "nowhere.bin")
    opened = session(model, options)
    return plain(opened.run(None, {"x": np.eye(2, dtype=np.float32)}))


@uses("SessionOptions.add_external_initializers_from_files_in_memory")
def added_files():
    weight = np.full((2, 2), 3, np.float32)
    options = ort.SessionOptions()
    data = weight.tobytes()
    options.add_external_initializers_from_files_in_memory(
        ["nowhere.bin"], [data], [len(data)]
    )
    opened = session(models.external(weight, "nowhere.bin"), options)
    return plain(opened.run(None, {"x": np.eye(2, dtype=np.float32)}))


@uses(
    "SessionOptions.add_free_dimension_override_by_name",
    "SessionOptions.add_free_dimension_override_by_denotation",
)
def overridden_dimensions():
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("m", 4)
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    opened = session(models.denoted(), options)
    return [
        opened.get_inputs()[0].shape,
        opened.get_outputs()[0].shape,
        plain(opened.run(None, {"x": X})),
        caught(opened.run, None, {"x": X[:1]}),
    ]


@uses("SessionOptions.has_providers", "SessionOptions.add_provider")
def added_provider():
    options = ort.SessionOptions()
    before = options.has_providers()
    options.add_provider("CPUExecutionProvider", {})
    after = options.has_providers()
    opened = ort.InferenceSession(models.linear(), options)
    return [before, after, opened.get_providers()]


@uses("SessionOptions.add_provider", case="wrong uses")
def wrong_provider():
    def run():
        options = ort.SessionOptions()
        options.add_provider("NoSuchExecutionProvider", {})
        ort.InferenceSession(models.linear(), options, enable_fallback=0)

    return [caught(run), caught(ort.SessionOptions().add_provider, 3, {})]


@uses("SessionOptions.add_provider_for_devices")
def added_devices():
    devices = [d for d in ort.get_ep_devices() if d.ep_name == CPU[0]]
    options = ort.SessionOptions()
    options.add_provider_for_devices(devices, {})
    opened = ort.InferenceSession(models.linear(), options)
    return [
        options.has_providers(),
        opened.get_providers(),
        opened.run(None, {"x": X})[0].tolist(),
    ]


@uses("SessionOptions.add_provider_for_devices", case="wrong uses")
def wrong_devices():
    add = ort.SessionOptions().add_provider_for_devices
    return [caught(add, [], {}), caught(add, [3], {}), caught(add, None, {})]


@uses("SessionOptions.set_provider_selection_policy")
def chosen_by_policy():
    told = []
    for policy in ort.OrtExecutionProviderDevicePolicy.__members__.values():
        options = ort.SessionOptions()
        options.set_provider_selection_policy(policy)
        opened = ort.InferenceSession(models.linear(), options)
        # EPs of NPUs and GPUs may be installed; the CPU EP is always there.
        told.append([options.has_providers(), opened.get_providers()[-1]])
        told.append(plain(opened.run(None, {"x": X}))[0][:2])
    return told


@uses("SessionOptions.set_provider_selection_policy", case="the CPU")
def chosen_by_policy_for_the_cpu():
    options = ort.SessionOptions()
    options.set_provider_selection_policy(
        ort.OrtExecutionProviderDevicePolicy.PREFER_CPU
    )
    return ort.InferenceSession(models.linear(), options).get_providers()


@uses("SessionOptions.set_provider_selection_policy", case="wrong uses")
def wrong_policy():
    options = ort.SessionOptions()
    return [
        caught(options.set_provider_selection_policy, "PREFER_NPU"),
        caught(options.set_provider_selection_policy_delegate, 3),
    ]


@uses("SessionOptions.set_provider_selection_policy_delegate")
def chosen_by_delegate():
    asked = []

    def choose(devices, model_metadata, runtime_metadata, most):
        asked.append([model_metadata, type(runtime_metadata).__name__, most > 0])
        return [d for d in devices if d.ep_name == CPU[0]]

    options = ort.SessionOptions()
    options.set_provider_selection_policy_delegate(choose)
    opened = ort.InferenceSession(models.linear(), options)
    return [asked, opened.get_providers(), options.has_providers()]


@uses("SessionOptions.set_provider_selection_policy_delegate", case="it raises")
def failing_delegate():
    def choose(*_given):
        raise ValueError("not today")

    options = ort.SessionOptions()
    options.set_provider_selection_policy_delegate(choose)
    return caught(ort.InferenceSession, models.linear(), options, enable_fallback=0)


@uses("SessionOptions.register_custom_ops_library")
def custom_operators():
    from unittest.mock import patch

    with patch.dict("os.environ"):
        from onnxruntime_extensions import get_library_path
    options = ort.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    node = onnx.helper.make_node("StringUpper", ["x"], ["y"], domain="ai.onnx.contrib")
    kind = TensorProto.STRING
    model = models.build(
        [node], [models.tensor("x", ["n"], kind)], [models.tensor("y", ["n"], kind)]
    )
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.contrib", 1))
    opened = session(model.SerializeToString(), options)
    return plain(opened.run(None, {"x": np.array(["abc"], dtype=object)}))


@uses("SessionOptions.register_custom_ops_library", case="a file that is missing")
def missing_library():
    return caught(ort.SessionOptions().register_custom_ops_library, "nowhere.so")


@uses("SessionOptions.set_load_cancellation_flag")
def cancelled():
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    before = caught(session, options=options)
    options.set_load_cancellation_flag(False)
    return [before, plain(session(options=options).run(None, {"x": X}))]


@uses(
    "SessionOptions.set_ep_context_data_read_func",
    "SessionOptions.clear_ep_context_data_read_func",
)
def data_reader():
    options = ort.SessionOptions()
    options.set_ep_context_data_read_func(lambda name, buffer: None, 1 << 20)
    options.set_ep_context_data_read_func(
        read_func=lambda name, buffer: None, max_data_size=1 << 20
    )
    options.clear_ep_context_data_read_func()
    return caught(options.set_ep_context_data_read_func, 3, 10)


@uses(
    "RunOptions",
    "RunOptions.log_severity_level",
    "RunOptions.log_verbosity_level",
    "RunOptions.logid",
    "RunOptions.only_execute_path_to_fetches",
)
def run_attributes():
    told = []
    for name, other in {
        "log_severity_level": 3,
        "log_verbosity_level": 1,
        "logid": "mine",
        "only_execute_path_to_fetches": True,
    }.items():
        options = ort.RunOptions()
        before = getattr(options, name)
        setattr(options, name, other)
        told.append([before, getattr(options, name)])
        told.append(plain(session().run(None, {"x": X}, options)))
    return told


@uses("RunOptions", case="wrong uses")
def wrong_run_attributes():
    options = ort.RunOptions()
    return [
        caught(setattr, options, "terminate", "yes"),
        caught(setattr, options, "log_severity_level", "high"),
        caught(setattr, options, "no_such_option", 1),
        caught(session().run, None, {"x": X}, "options"),
    ]


@uses("RunOptions.terminate")
def terminated():
    options = ort.RunOptions()
    before = options.terminate
    options.terminate = True
    refused = caught(session().run, None, {"x": X}, options)
    options.terminate = False
    return [before, refused, plain(session().run(None, {"x": X}, options))]


@uses("RunOptions.terminate", case="a run in another thread")
def terminated_by_another_thread():
    body = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["s", "s"], ["t"]),
            onnx.helper.make_node("Identity", ["c"], ["d"]),
        ],
        "body",
        [
            models.tensor("i", [], TensorProto.INT64),
            models.tensor("c", [], TensorProto.BOOL),
            models.tensor("s", [64, 64]),
        ],
        [models.tensor("d", [], TensorProto.BOOL), models.tensor("t", [64, 64])],
    )
    node = onnx.helper.make_node("Loop", ["often", "", "x"], ["y"], body=body)
    model = models.build(
        [node],
        [models.tensor("often", [], TensorProto.INT64), models.tensor("x", [64, 64])],
        [models.tensor("y", [64, 64])],
    )
    opened, options, told = session(model.SerializeToString()), ort.RunOptions(), []
    feed = {"often": np.array(100_000), "x": np.zeros((64, 64), np.float32)}
    thread = threading.Thread(
        target=lambda: told.append(caught(opened.run, None, feed, options)),
        daemon=True,
    )
    thread.start()
    time.sleep(0.1)
    options.terminate = True
    thread.join(5)
    return [told, thread.is_alive()]


@uses("RunOptions.add_run_config_entry", "RunOptions.get_run_config_entry")
def run_config_entries():
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return [
        options.get_run_config_entry("memory.enable_memory_arena_shrinkage"),
        plain(session().run(None, {"x": X}, options)),
        caught(options.get_run_config_entry, "of.nobody"),
        caught(options.add_run_config_entry, "a", 1),
    ]
