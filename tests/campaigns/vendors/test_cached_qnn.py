"""`load_or_compile` of epctx_onnxruntime with Qualcomm's EP: what onnxruntime loads is
what was compiled, once.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from epctx_cache.content import RACY_NS
from epctx_cache.store import EntryStore
from epctx_onnxruntime.cached import load_or_compile
from epctx_onnxruntime.providers.qnn import QNNExecutionProvider
from onnx import TensorProto, helper, numpy_helper
from support.agreement import worst_relative_error
from support.folders import PLUGINS, ROOT
from support.vendors_onnxruntime import QNN, PluginEP, devices, qnn_options
from vendors.vendor_networks import network

from epctx_core.plugin import Compatibility

HERE = Path(__file__).parent
KILLED = PLUGINS / "epctx-cache" / "tests" / "killed.py"
HALF = 1e-3
"""A step of a number in half precision, relative to the number: as QNN computes, and
its compiles may round otherwise.
"""


def quiet_options(**entries):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # As what is compared: what optimisations fuse would be computed in another order.
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    for key, value in entries.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    return options


class Host:
    """A program that keeps onnxruntime, with a cache of its own."""

    def __init__(self, folder, caplog):
        self.folder = folder
        self._caplog = caplog

    def session(self, model, options=None, **arguments):
        options = quiet_options() if options is None else options
        given = {
            "provider": QNN,
            "provider_options": qnn_options(),
            "cache_dir": self.folder,
            **arguments,
        }
        return load_or_compile(model, options, **given)

    def answer(self, model, inputs, options=None, **arguments):
        return self.session(model, options, **arguments).run(None, dict(inputs))

    @property
    def compiles(self):
        return sum(
            r.getMessage().startswith("compiled ")
            for r in self._caplog.get_records("call")
        )

    @property
    def entries(self):
        return list(EntryStore(self.folder).entries())


@pytest.fixture
def host(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="epctx.cache")
    return Host(tmp_path / "cache", caplog)


@pytest.fixture(scope="module")
def qnn():
    import onnxruntime_qnn

    return PluginEP(
        ep=QNN, devices=devices(QNN, onnxruntime_qnn)[:1], options=qnn_options()
    )


def multiply_by(factor):
    """Return a model that multiplies four numbers: those of two factors have binaries
    of one size.
    """
    shape = [1, 4]
    weight = numpy_helper.from_array(np.full(shape, factor, np.float32), "w")
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("x", "y")
    ]
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], name="times")]
    graph = helper.make_graph(nodes, "times", values[:1], values[1:], [weight])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "times2.onnx"
    onnx.save(multiply_by(2), path)
    return path


X = {"x": np.full([1, 4], 4, np.float32)}


def rounded(outputs):
    """Return the different values, which half precision does not hit."""
    return sorted(set(np.round(outputs, 3).ravel().tolist()))


@pytest.mark.parametrize(
    "name", ["bert", "resnet", "attention", "quantised", "lstm", "two_parts"]
)
def test_a_network_is_compiled_once_and_gives_the_direct_result(
    name, host, qnn, tmp_path
):
    source, inputs = network(name)
    path = tmp_path / f"{name}.onnx"
    path.write_bytes(source)

    sessions = [host.session(path) for _ in range(2)]

    assert host.compiles == 1
    for session in sessions:
        assert type(session) is onnxruntime.InferenceSession
        assert session.get_providers()[0] == QNN
        assert (
            worst_relative_error(
                session.run(None, dict(inputs)), qnn.run(source, inputs)
            )
            <= HALF
        )


def test_a_device_under_a_name_of_the_programs_own_is_that_of_the_ep(host, model):
    import onnxruntime_qnn

    name = "qnn of the program"
    library = onnxruntime_qnn.get_library_path()
    onnxruntime.register_execution_provider_library(name, library)
    try:
        device = next(d for d in onnxruntime.get_ep_devices() if d.ep_name == name)
        session = host.session(model, provider=device)
        providers = session.get_providers()
        del session
    finally:
        onnxruntime.unregister_execution_provider_library(name)

    assert providers[0] == name
    assert host.compiles == 1


def test_a_model_of_which_qnn_takes_nothing_is_loaded_without_it(host, tmp_path):
    graph = multiply_by(2).graph
    graph.node[0].CopyFrom(helper.make_node("Softsign", ["x"], ["y"], name="bent"))
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    path = tmp_path / "bent.onnx"
    onnx.save(model, path)

    sessions = [host.session(path) for _ in range(2)]

    assert host.compiles == 1
    assert [session.get_providers() for session in sessions] == [
        ["CPUExecutionProvider"]
    ] * 2


def test_what_is_loaded_is_the_compiled_model(host, model):
    host.session(model)
    (entry,) = host.entries
    context = onnx.load(entry.folder / "model_ctx.onnx")

    assert [node.op_type for node in context.graph.node] == ["EPContext"]
    (binary,) = entry.folder.glob("*.bin")
    binary.write_bytes(b"")
    host.session(model, quiet_options(ep__context_verify="full"))
    assert host.compiles == 2


def test_a_swapped_binary_is_compiled_again_where_onnxruntime_answers_for_the_other_model(
    host, model, qnn, tmp_path
):
    other = tmp_path / "times6.onnx"
    onnx.save(multiply_by(6), other)
    host.answer(model, X)
    (mine,) = host.entries
    host.answer(other, X)
    (theirs,) = (entry for entry in host.entries if entry.key != mine.key)
    (binary,) = mine.folder.glob("*.bin")
    shutil.copyfile(theirs.folder / binary.name, binary)

    assert rounded(qnn.run(mine.folder / "model_ctx.onnx", X)) == [24]
    assert rounded(host.answer(model, X)) == [8]
    assert host.compiles == 3


def test_a_flipped_bit_anywhere_in_a_binary_is_compiled_again(host, model):
    host.answer(model, X)
    (entry,) = host.entries
    (binary,) = entry.folder.glob("*.bin")
    size = binary.stat().st_size

    for count, place in enumerate(range(0, size, size // 8), start=2):
        data = bytearray(binary.read_bytes())
        data[place] ^= 0x20
        binary.write_bytes(data)

        assert rounded(host.answer(model, X)) == [8]
        assert host.compiles == count


def test_a_stale_entry_is_compiled_again(host, model, monkeypatch):
    host.answer(model, X)
    verdicts = iter([Compatibility.EP_UNSUPPORTED])
    monkeypatch.setattr(
        QNNExecutionProvider,
        "validate_compatibility",
        lambda _info, _options: next(verdicts, Compatibility.EP_SUPPORTED_OPTIMAL),
    )

    assert rounded(host.answer(model, X)) == [8]
    assert host.compiles == 2


def test_vendors_options_are_in_the_key_and_those_of_runs_are_not(host, model):
    threads = quiet_options()
    threads.intra_op_num_threads = 2
    host.session(model)

    host.session(model, threads)
    assert host.compiles == 1

    host.session(model, provider_options={**qnn_options(), "htp_arch": "75"})
    assert host.compiles == 2


def test_session_options_with_entries_about_the_source_load_the_compiled_model(
    host, tmp_path
):
    source, inputs = network("two_parts")
    options = quiet_options(
        ep__context_enable="1",
        ep__context_file_path="elsewhere/m_ctx.onnx",
        session__model_external_initializers_file_folder_path=str(tmp_path),
        session__load_model_format="ONNX",
    )

    first, second = (host.answer(source, inputs, options) for _ in range(2))

    assert host.compiles == 1
    assert worst_relative_error(first, second) == 0
    assert not Path("elsewhere").exists()


def test_embedded_payloads_and_bytes_are_cached_too(host, model):
    options = quiet_options(ep__context_embed_mode="1")

    answers = [rounded(host.answer(model.read_bytes(), X, options)) for _ in range(2)]

    assert answers == [[8]] * 2
    assert host.compiles == 1


def test_the_example_says_that_the_ep_was_used(host, model):
    example = ROOT / "examples" / "keep_onnxruntime.py"
    options = [f"{key}={value}" for key, value in qnn_options().items()]

    said = subprocess.check_output(
        [sys.executable, example, model, host.folder, QNN, *options], text=True
    )

    starts = [line for line in said.splitlines() if " start: " in line]
    assert len(starts) == 2
    assert all(QNN in line for line in starts)


def started(program, *arguments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, str(HERE / program), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


START = """
import json, sys
from epctx_onnxruntime.cached import load_or_compile
model, cache, ep, options = sys.argv[1:]
load_or_compile(model, provider=ep, provider_options=json.loads(options), cache_dir=cache)
heavy = [m for m in sys.modules if m == "onnx" or m.startswith("epctx_core.compiling")]
print("\\n" + json.dumps(heavy))
"""


def test_a_second_start_imports_neither_onnx_nor_what_compiles(host, model):
    # Until then its time of change does not tell whether it is the file that was read.
    time.sleep(RACY_NS / 1e9)
    command = [sys.executable, "-c", START, model, host.folder, QNN]
    imported = []
    for _ in range(2):
        said = subprocess.check_output(
            [*command, json.dumps(qnn_options())], text=True, timeout=300
        )
        imported.append(json.loads(said.splitlines()[-1]))

    assert "epctx_core.compiling.compile" in imported[0]
    assert imported[1] == []


def test_eight_processes_compile_once(host, model):
    processes = [started("cached_asking.py", model, host.folder) for _ in range(8)]

    texts = [process.communicate(timeout=300)[0] for process in processes]
    # The vendor prints, too.
    said = [json.loads(text[text.index("{") :].splitlines()[0]) for text in texts]

    assert sum(each["compiles"] for each in said) == 1
    assert all(each["answers"] == said[0]["answers"] for each in said)
    assert rounded(said[0]["answers"]) == [8]
    assert len(host.entries) == 1


def kills(model, folder, first, last, step):
    process = started("cached_killed.py", KILLED, model, folder, first, last, step)
    text, _ = process.communicate(timeout=1200)
    assert process.returncode == 0
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [(kill["entries"], kill["faults"], kill["left"]) for kill in found] == [
        (1, [], [])
    ] * len(found)
    assert all(rounded(kill["answers"]) == [8] for kill in found)
    return sum(kill["killed"] for kill in found)


def test_killed_at_any_change_the_next_one_gets_a_whole_entry(host, model):
    # The child that compiles makes its own changes.
    assert kills(model, host.folder, 1, 1000, 3) >= 8


@pytest.mark.stress
def test_killed_a_hundred_times_the_next_one_gets_a_whole_entry(host, model):
    count = 0
    while count < 100:
        count += kills(model, host.folder / f"{count}", 1, 1000, 1)
