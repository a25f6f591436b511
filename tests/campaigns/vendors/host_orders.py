"""Steps of a program that uses onnxruntime and a plugin EP, in many orders: each in a
process of its own, forked from one that has imported all.

Arguments: `onnxruntime`, `drop_in` or `cached`, the EP, the source, what the program
loads with the EP, and a folder for the cache. The EP is Qualcomm's, which has the name
of its registration, or `cpu_ep`, which names itself and is loaded from its source. Standard input has a list of orders as JSON, standard output a
list of lists with the text of each step's error, or null.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import numpy as np
from support.vendors_onnxruntime import QNN, QUIET, qnn_options

OTHER = "another name"
ROUTE, EP, SOURCE, CONTEXT, CACHE = sys.argv[1:6]
if EP == QNN:
    import onnxruntime_qnn

    OPTIONS, LIBRARY = qnn_options(), onnxruntime_qnn.get_library_path()
else:
    import nxrt_ep_cpu

    OPTIONS, LIBRARY = {}, nxrt_ep_cpu.get_library_path()

if ROUTE == "drop_in":
    import epctx_onnxruntime as ort
else:
    import onnxruntime as ort

registered = []
"""Names for the library in the process of one order, beside the program's own."""

if ROUTE != "onnxruntime" and EP != QNN:
    from epctx_onnxruntime.providers import register_plugin_ep

    register_plugin_ep(EP, library=LIBRARY)


def make_options():
    options = ort.SessionOptions()
    options.log_severity_level = QUIET
    return options


def run(model, options):
    session = ort.InferenceSession(model, options)
    (value,) = session.get_inputs()
    session.run(None, {value.name: np.ones(value.shape, np.float32)})


def load():
    options = make_options()
    if devices := [d for d in ort.get_ep_devices() if d.ep_name == EP]:
        options.add_provider_for_devices(devices[:1], OPTIONS)
    run(CONTEXT, options)


def select():
    options = make_options()
    policy = ort.OrtExecutionProviderDevicePolicy.PREFER_NPU
    options.set_provider_selection_policy(policy)
    run(SOURCE, options)


def load_or_compile():
    if ROUTE == "onnxruntime":
        # It cannot run the EP without its library, so that a policy finds that, too.
        if not registered:
            ort.register_execution_provider_library(OTHER, LIBRARY)
            registered.append(OTHER)
        return
    if ROUTE == "drop_in":
        import epctx_core as epctx

        options = epctx.SessionOptions()
        options.add_provider(EP, OPTIONS)
        epctx.load_or_compile(SOURCE, options, CACHE).close()
        return
    from epctx_onnxruntime import cached

    cached.load_or_compile(
        SOURCE,
        make_options(),
        provider=EP,
        provider_options=OPTIONS,
        cache_dir=CACHE,
    )


STEPS = {
    "list": lambda: [device.ep_name for device in ort.get_ep_devices()],
    "load": load,
    "policy": select,
    "plain": lambda: run(SOURCE, make_options()),
    "load_or_compile": load_or_compile,
    "register": lambda: ort.register_execution_provider_library(EP, LIBRARY),
    "unregister": lambda: ort.unregister_execution_provider_library(EP),
}


def take(order):
    """Return the text of each step's error, or None."""
    results = []
    for step in order:
        try:
            STEPS[step]()
            results.append(None)
        except Exception as error:  # noqa: BLE001 - each error is told
            results.append(f"{type(error).__name__}: {error}")
        gc.collect()  # No session may outlive its library.
    return results


def take_in_a_process(order):
    """Return the same of a process that this one forks, and how that ended."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(writer, json.dumps(take(order)).encode())
        finally:
            # A fork has none of the threads for which onnxruntime's end would wait.
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    ended = f"the process ended with status {status}" if status else None
    return [*(json.loads(told) if told else ()), ended]


if __name__ == "__main__":
    stdout = os.dup(1)
    os.dup2(2, 1)  # Qualcomm's library prints.
    orders = json.loads(sys.stdin.read())
    os.write(stdout, json.dumps([*map(take_in_a_process, orders)]).encode())
