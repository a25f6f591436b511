"""Models, sessions of onnxruntime and an EP of numpy with switches, for programs that
`run_program` runs.
"""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import onnxruntime_ep_epctx as bridge

import epctx_core
from epctx_core.plugin import (
    Availability,
    Compatibility,
    CompiledPartition,
    EPContextNode,
    ExecutionProvider,
    ProviderOption,
    hookimpl,
    supported_partitions,
)

FAULTY = "FaultyExecutionProvider"
HOOKED = "HookedExecutionProvider"
CALLS = []
"""Calls of the hooks of `HookedProvider`."""
FAULTS = {}
"""Hook to the exception that it raises; "run" to a function of the right results that
returns others or raises.
"""
LEVELS = []
"""Values of the option `level` of the instances so far."""
OPERATORS = {"MatMul": np.matmul, "Mul": np.multiply, "Neg": np.negative}


def _raise(hook):
    if hook in FAULTS:
        raise FAULTS[hook]


def _make_run(rows, inputs, outputs, weights):
    def run(given, targets=None):
        values = {**weights, **dict(zip(inputs, given, strict=True))}
        for operator, operands, result in rows:
            values[result] = OPERATORS[operator](*(values[name] for name in operands))
        results = [values[name] for name in outputs]
        if "run" in FAULTS:
            return FAULTS["run"](given, results, targets)
        if targets is None:
            return results
        for target, result in zip(targets, results, strict=True):
            target[...] = result
        return targets

    return run


class FaultyProvider(ExecutionProvider):
    """Takes some operators, and has each fault that `FAULTS` asks for."""

    name = FAULTY
    vendor = "tests"
    binary_suffix = "faulty"
    takes = ("MatMul", "Mul")
    options = (ProviderOption("level", int, default=1, choices=(1, 2), doc="A level."),)

    def __init__(self, context):
        super().__init__(context)
        _raise("constructor")
        LEVELS.append(context.options["level"])
        self._compiled = []

    @classmethod
    def availability(cls, purpose):
        if "availability" in FAULTS:
            return Availability(False, reason=FAULTS["availability"])
        return Availability(True)

    @classmethod
    def get_compatibility_info(cls, partitions, options):
        return FAULTS.get("compatibility", "made by version 1")

    @classmethod
    def validate_compatibility(cls, info, options):
        if info == FAULTS.get("compatibility", "made by version 1"):
            return Compatibility.EP_SUPPORTED_OPTIMAL
        return Compatibility.EP_UNSUPPORTED

    @hookimpl
    def get_capability(self, graph):
        _raise("get_capability")
        return supported_partitions(graph, lambda node: node.op_type in self.takes)

    @hookimpl
    def compile(self, partitions):
        _raise("compile")
        results = []
        for partition in partitions:
            rows = [(n.op_type, [*n.inputs], n.outputs[0]) for n in partition.nodes]
            inputs = [value.name for value in partition.inputs]
            outputs = [value.name for value in partition.outputs]
            weights = {k: np.array(v.array()) for k, v in partition.weights.items()}
            self._compiled.append((partition, rows, inputs, outputs, weights))
            results.append(CompiledPartition(_make_run(rows, inputs, outputs, weights)))
        return results

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for index, (partition, *program, weights) in enumerate(self._compiled):
            payload = writer.payload(str(index) if index else None)
            lists = {name: weight.tolist() for name, weight in weights.items()}
            payload.write(json.dumps([*program, lists]).encode())
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        _raise("load_context")
        results = []
        for node in nodes:
            *program, lists = json.loads(bytes(reader.payload(node).view))
            weights = {k: np.array(v, np.float32) for k, v in lists.items()}
            results.append(CompiledPartition(_make_run(*program, weights)))
        return results


class HookedProvider(FaultyProvider):
    """Has the other hooks, too, and a fault in each that is asked for."""

    name = HOOKED
    binary_suffix = "hooked"

    @hookimpl
    def on_run_start(self, tag):
        _raise("on_run_start")
        CALLS.append(["on_run_start", tag])

    @hookimpl
    def on_run_end(self, tag):
        _raise("on_run_end")
        CALLS.append(["on_run_end", tag])

    @hookimpl
    def set_dynamic_options(self, options):
        _raise("set_dynamic_options")
        CALLS.append(["set_dynamic_options", {**options}])

    @hookimpl
    def get_ep_context_nodes(self, writer):
        _raise("get_ep_context_nodes")
        return super().get_ep_context_nodes(writer)

    @hookimpl
    def shutdown(self):
        CALLS.append(["shutdown"])
        _raise("shutdown")

    @classmethod
    def get_compatibility_info(cls, partitions, options):
        _raise("get_compatibility_info")
        return super().get_compatibility_info(partitions, options)

    @classmethod
    def validate_compatibility(cls, info, options):
        _raise("validate_compatibility")
        return super().validate_compatibility(info, options)


X = np.arange(64, dtype=np.float32).reshape(2, 32) / 64


def make_model(path, *, operators=("MatMul", "Neg", "Mul"), shape=(2, 32)):
    """Write a chain of operators, the EP's own and another one between; return its path."""
    weights = {
        "MatMul": np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32),
        "Mul": np.linspace(1, 2, 32, dtype=np.float32),
    }
    nodes = []
    initializers = []
    last = "x"
    for index, operator in enumerate(operators):
        operands = [last]
        if operator in weights:
            operands.append(f"w{index}")
            initializers.append(
                onnx.numpy_helper.from_array(weights[operator], f"w{index}")
            )
        last = "y" if index + 1 == len(operators) else f"v{index}"
        nodes.append(onnx.helper.make_node(operator, operands, [last], f"n{index}"))
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name in "xy"
    )
    graph = onnx.helper.make_graph(nodes, "small", [x], [y], initializers)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets)
    onnx.save(model, str(path))
    return str(path)


def offer(cls=FaultyProvider):
    """Offer an EP to onnxruntime, quietly."""
    onnxruntime.set_default_logger_severity(4)
    epctx_core.register_execution_provider(cls)
    bridge.register([cls.name])


def list_devices(ep):
    """Return the devices of an EP."""
    return [each for each in onnxruntime.get_ep_devices() if each.ep_name == ep]


def _make_options(entries):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    return options


def open_session(path, ep, options={}, entries={}):  # noqa: B006 - not changed
    """Return a session that has an EP by its devices."""
    made = _make_options(entries)
    made.add_provider_for_devices(list_devices(ep)[:1], dict(options))
    return onnxruntime.InferenceSession(path, made)


def open_by_name(path, ep, options={}, entries={}):  # noqa: B006 - not changed
    """Return a session that has an EP by its name."""
    return onnxruntime.InferenceSession(
        path, _make_options(entries), providers=[(ep, dict(options))]
    )


def run_once(session):
    """Return the output for `X`."""
    return session.run(None, {"x": X})[0]


def run_on_cpu(path):
    """Return the output for `X` of the CPU EP."""
    return run_once(open_by_name(path, "CPUExecutionProvider"))


def is_right(session):
    """Return whether a session's output for `X` is that of the CPU EP."""
    weight = np.linspace(-1, 1, 32 * 32, dtype=np.float32).reshape(32, 32)
    expected = -(X @ weight) * np.linspace(1, 2, 32, dtype=np.float32)
    return bool(np.allclose(run_once(session), expected, rtol=1e-5, atol=1e-5))


def compile_model(path, to, *, embeds, ep=FAULTY, way=open_session):
    """Write a context model by a session; return its path."""
    entries = {
        "ep.context_enable": "1",
        "ep.context_file_path": str(to),
        "ep.context_embed_mode": str(int(embeds)),
    }
    way(path, ep, entries=entries)
    return str(to)


def attempt(function, *arguments, **options):
    """Return what was raised: the names of its class and its text; None for nothing."""
    try:
        function(*arguments, **options)
    except BaseException as error:  # noqa: BLE001 - the failure is the result
        return type(error).__name__, str(error)
    return None


def run_attempt(open_session, *arguments, **options):
    """Return what opening a session and running it raised."""
    return attempt(lambda: run_once(open_session(*arguments, **options)))
