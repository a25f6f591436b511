"""Steps of a program that uses onnxruntime and Qualcomm's EP, in many orders: each in a
process of its own, forked from one that has imported all.

Arguments: `onnxruntime`, `drop_in` or `cached`, the source, its context model, and a
folder for the cache. Standard input has a list of orders as JSON, standard output a
list of lists with the text of each step's error, or null.
"""

from __future__ import annotations

import gc
import json
import os
import sys

import numpy as np
import onnxruntime_qnn
from vendors.vendors_onnxruntime import QNN, QUIET, qnn_options

OTHER = "another name"
ROUTE, SOURCE, CONTEXT, CACHE = sys.argv[1:5]

if ROUTE == "drop_in":
    import epctx_onnxruntime as ort
else:
    import onnxruntime as ort


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
    if devices := [d for d in ort.get_ep_devices() if d.ep_name == QNN]:
        options.add_provider_for_devices(devices[:1], qnn_options())
    run(CONTEXT, options)


def select():
    options = make_options()
    policy = ort.OrtExecutionProviderDevicePolicy.PREFER_NPU
    options.set_provider_selection_policy(policy)
    run(SOURCE, options)


def load_or_compile():
    if ROUTE == "onnxruntime":
        # It cannot run the EP without its library, so that a policy finds that, too.
        if not any(device.ep_name == OTHER for device in ort.get_ep_devices()):
            ort.register_execution_provider_library(
                OTHER, onnxruntime_qnn.get_library_path()
            )
        return
    if ROUTE == "drop_in":
        import epctx_core as epctx

        options = epctx.SessionOptions()
        options.add_provider(QNN, qnn_options())
        epctx.load_or_compile(SOURCE, options, CACHE).close()
        return
    from epctx_onnxruntime import cached

    cached.load_or_compile(
        SOURCE,
        make_options(),
        provider=QNN,
        provider_options=qnn_options(),
        cache_dir=CACHE,
    )


STEPS = {
    "list": lambda: [device.ep_name for device in ort.get_ep_devices()],
    "load": load,
    "policy": select,
    "plain": lambda: run(SOURCE, make_options()),
    "load_or_compile": load_or_compile,
    "register": lambda: ort.register_execution_provider_library(
        QNN, onnxruntime_qnn.get_library_path()
    ),
    "unregister": lambda: ort.unregister_execution_provider_library(QNN),
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
