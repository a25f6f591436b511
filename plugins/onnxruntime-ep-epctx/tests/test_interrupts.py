"""What happens on the way into Python ends neither the process nor in wrong results."""

from __future__ import annotations

import json

from programs import run_program

PRELUDE = """
import json, os, signal, sys, tempfile, threading
import numpy as np
import onnx
import onnxruntime
from hosting import FAULTS, FaultyProvider, X, make_model, offer, open_session

folder = tempfile.mkdtemp()
"""


def test_an_exception_that_has_no_text_is_a_fault_of_the_run_and_no_result():
    found = run_program(
        PRELUDE
        + """
class Mute(Exception):
    def __str__(self):
        raise KeyError("no text")

def fail(given, results, targets):
    raise Mute

offer()
session = open_session(make_model(folder + "/m.onnx"), FaultyProvider.name)
FAULTS["run"] = fail
try:
    session.run(None, {"x": X})
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
    )

    kind, text = json.loads(found)
    assert kind == "RuntimeException"
    assert "FaultyExecutionProvider" in text


def test_ctrl_c_at_any_moment_of_a_run_is_an_error_or_a_right_result():
    found = run_program(
        PRELUDE
        + """
offer()
session = open_session(make_model(folder + "/m.onnx"), FaultyProvider.name)
expected = session.run(None, {"x": X})[0].tobytes()
main = threading.main_thread().ident
ended = threading.Event()

def interrupt():
    while not ended.wait(0.001):
        signal.pthread_kill(main, signal.SIGINT)

counts = {"right": 0, "wrong": 0, "error": 0}
armed = []
thread = threading.Thread(target=interrupt)

def handle(number, frame):
    # Once in each turn: another one would end the loop.
    if armed:
        armed.clear()
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, handle)
thread.start()
while sum(counts.values()) < 2000:
    found = "error"
    try:
        armed.append(True)
        result = session.run(None, {"x": X})[0]
        found = "right" if result.tobytes() == expected else "wrong"
        armed.clear()
    except BaseException:
        armed.clear()
        found = "error" if found == "right" else found
    counts[found] += 1
ended.set()
thread.join()
print(json.dumps(counts), flush=True)
os._exit(0)
"""
    )

    counts = json.loads(found)
    assert counts["wrong"] == 0
    assert counts["right"] > 0


def test_weights_in_a_file_of_their_own_are_read_in_sessions_and_compiles():
    found = run_program(
        PRELUDE
        + """
offer()
path = make_model(folder + "/m.onnx")
model = onnx.load(path)
outside = folder + "/outside/m.onnx"
os.mkdir(folder + "/outside")
onnx.save_model(
    model, outside, save_as_external_data=True, location="w.bin", size_threshold=0
)
expected = open_session(path, FaultyProvider.name).run(None, {"x": X})[0]
context = folder + "/outside/m_ctx.onnx"
entries = {"ep.context_enable": "1", "ep.context_file_path": context}
results = [
    open_session(outside, FaultyProvider.name),
    open_session(outside, FaultyProvider.name, entries=entries),
    open_session(context, FaultyProvider.name),
]
print(json.dumps([bool((s.run(None, {"x": X})[0] == expected).all()) for s in results]))
"""
    )

    assert json.loads(found) == [True, True, True]


def test_a_text_about_compatibility_may_be_long():
    found = run_program(
        PRELUDE
        + """
FAULTS["compatibility"] = "v" * 5000
offer()
context = folder + "/m_ctx.onnx"
entries = {"ep.context_enable": "1", "ep.context_file_path": context}
open_session(make_model(folder + "/m.onnx"), FaultyProvider.name, entries=entries)
(text,) = [
    each.value
    for each in onnx.load(context).metadata_props
    if each.key.startswith("ep_compatibility_info.")
]
print(text)
"""
    )

    assert found.strip() == "v" * 5000


def test_an_input_without_a_shape_may_have_any():
    found = run_program(
        PRELUDE
        + """
offer()
node = onnx.helper.make_node("Mul", ["x", "x"], ["y"])
x, y = (
    onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
    for name in "xy"
)
graph = onnx.helper.make_graph([node], "g", [x], [y])
opsets = [onnx.helper.make_opsetid("", 17)]
onnx.save(
    onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets),
    folder + "/m.onnx",
)
session = open_session(folder + "/m.onnx", FaultyProvider.name)
shapes = [(1, 1), (2, 3), (4,)]
arrays = [np.full(shape, 3, np.float32) for shape in shapes]
print(json.dumps([[*session.run(None, {"x": a})[0].shape] for a in arrays]))
"""
    )

    assert json.loads(found) == [[1, 1], [2, 3], [4]]


def test_an_ep_that_failed_while_another_took_all_nodes_is_told_of_at_the_first_run():
    found = run_program(
        PRELUDE
        + """
import onnxruntime_ep_epctx as bridge

offer()
bridge.register(["QNN"])
options = onnxruntime.SessionOptions()
for ep, given in ("QNNExecutionProvider", {}), (FaultyProvider.name, {"level": "9"}):
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == ep]
    options.add_provider_for_devices(devices[:1], given)
path = make_model(folder + "/m.onnx", operators=("Neg",))
try:
    onnxruntime.InferenceSession(path, options).run(None, {"x": X})
except Exception as error:
    print(error)
"""
    )

    assert "level" in found
    assert "FaultyExecutionProvider" in found


def test_a_mistyped_registration_registers_no_other_ep():
    found = run_program(
        PRELUDE
        + """
import onnxruntime_ep_epctx as bridge

try:
    onnxruntime.register_execution_provider_library(
        "epctx.QNNExecutionProvidr", bridge.get_library_path()
    )
except Exception as error:
    print(error)
print([d.ep_name for d in onnxruntime.get_ep_devices()])
"""
    )

    assert "Did you mean" in found
    assert "['CPUExecutionProvider']" in found
