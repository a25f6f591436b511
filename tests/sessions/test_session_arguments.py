"""Arguments of a session, and the errors for wrong ones."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import epctx_core as epctx
from epctx_core import Registry
from epctx_core.plugin import (
    CompiledPartition,
    ExecutionProvider,
    hookimpl,
    supported_partitions,
)

MODEL = onnx.parser.parse_model(
    '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = '
    "Relu(x) }"
).SerializeToString()


@pytest.mark.parametrize(
    "providers",
    [
        "QNN",
        [("QNN",)],
        [None],
        [5],
        [("QNN", None)],
        [("QNN", {}, {})],
        [("QNN", "htp_arch")],
    ],
)
def test_a_list_of_eps_that_is_none_is_refused_by_name(providers):
    with pytest.raises(epctx.InvalidArgument, match="providers"):
        epctx.InferenceSession(MODEL, providers=providers)


@pytest.mark.parametrize("options", [[None], [5], [["a"]]])
def test_provider_options_that_are_no_mapping_are_refused(options):
    with pytest.raises(epctx.InvalidArgument, match="provider_options of QNN"):
        epctx.InferenceSession(MODEL, providers=["QNN"], provider_options=options)


@pytest.mark.parametrize("options", [{}, 5, "x"])
def test_session_options_of_another_kind_are_refused(options):
    with pytest.raises(epctx.InvalidArgument, match="sess_options"):
        epctx.InferenceSession(MODEL, options)


def test_onnxruntimes_session_options_are_told_from_ours():
    onnxruntime = pytest.importorskip("onnxruntime")

    with pytest.raises(
        epctx.InvalidArgument,
        match=r"onnxruntime\.\S+SessionOptions, not a SessionOptions",
    ) as caught:
        epctx.InferenceSession(MODEL, onnxruntime.SessionOptions())

    assert "epctx_core.SessionOptions" in caught.value.hint


@pytest.mark.parametrize("names", ["y", "output", b"y", 5])
def test_output_names_are_a_list_and_no_text(names):
    with (
        epctx.InferenceSession(MODEL) as session,
        pytest.raises(epctx.InvalidArgument, match="output_names"),
    ):
        session.run(names, {"x": np.zeros(2, np.float32)})


@pytest.mark.parametrize("model", [bytearray(MODEL), memoryview(MODEL), None, "", 5])
def test_a_model_of_another_kind_is_refused_without_being_shown_whole(model):
    with pytest.raises(
        epctx.InvalidArgument, match="a model is a path or bytes"
    ) as caught:
        epctx.InferenceSession(model)

    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "options"), [(5, {}), ("QNN", ["a"]), ("QNN", 5), (None, None)]
)
def test_add_provider_takes_a_name_and_a_mapping(name, options):
    with pytest.raises(epctx.InvalidArgument, match="add_provider"):
        epctx.SessionOptions().add_provider(name, options)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ep.context.enable", "ep.context_enable"),
        ("ep.qnnexecutionprovidr.htp_arch", "ep.qnnexecutionprovider.htp_arch"),
    ],
)
def test_a_config_entry_of_an_ep_that_is_not_there_is_a_typo(key, meant):
    options = epctx.SessionOptions()
    options.add_session_config_entry(key, "1")

    with pytest.raises(epctx.InvalidArgument, match=f"Did you mean '{meant}'"):
        epctx.InferenceSession(MODEL, options)


class Listening(ExecutionProvider):
    """Takes Relu, and hears of every run."""

    name = "ListeningExecutionProvider"
    heard: list[str]

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        return [
            CompiledPartition(lambda inputs, _: [np.maximum(inputs[0], 0)])
            for _ in partitions
        ]

    @hookimpl
    def on_run_start(self, tag):
        type(self).heard.append(f"start {tag}")

    @hookimpl
    def on_run_end(self, tag):
        type(self).heard.append(f"end {tag}")


class Raising(Listening):
    """Raises at the start and at the end of every run."""

    name = "RaisingExecutionProvider"
    heard: list[str]

    @hookimpl
    def on_run_start(self, tag):
        raise RuntimeError(f"no start of {tag}")

    @hookimpl
    def on_run_end(self, tag):
        raise RuntimeError(f"no end of {tag}")


def test_every_ep_hears_of_the_end_of_a_run_whatever_another_raises():
    registry = Registry(entry_points=False)
    Listening.heard = []
    registry.register(Listening)
    registry.register(Raising)
    run = epctx.RunOptions()
    run.tag = "first"

    with (
        epctx.InferenceSession(
            MODEL, providers=["Listening", "Raising"], registry=registry
        ) as session,
        pytest.raises(epctx.PluginError, match=r"no (start|end) of first"),
    ):
        session.run(None, {"x": np.ones(2, np.float32)}, run)

    assert Listening.heard == ["start first", "end first"]


def test_a_progress_callback_that_raises_is_the_hosts_own_failure(network):
    options = epctx.SessionOptions()
    options.add_provider("QNN")

    def progress(stage, done, total):
        if stage == "compile":
            raise KeyError("no such bar")

    with pytest.raises(
        epctx.Fail, match="progress callback raised at stage 'compile'"
    ) as caught:
        epctx.ModelCompiler(
            options, network("lstm").path, progress=progress
        ).compile_to_file()

    assert isinstance(caught.value.__cause__, KeyError)


class Tunable(Listening):
    """Takes one dynamic option."""

    name = "TunableExecutionProvider"
    heard: list[str]

    @hookimpl
    def set_dynamic_options(self, options):
        if set(options) != {"ep.dynamic.workload_type"}:
            raise ValueError(f"no such option among {sorted(options)}")
        type(self).heard.append(options["ep.dynamic.workload_type"])


def test_dynamic_options_reach_the_ep_that_takes_them():
    registry = Registry(entry_points=False)
    registry.register(Tunable)
    Tunable.heard = []

    with epctx.InferenceSession(
        MODEL, providers=["Tunable"], registry=registry
    ) as session:
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
        with pytest.raises(epctx.InvalidArgument, match="no such option"):
            session.set_ep_dynamic_options({"ep.dynamic.speed": "1"})

    assert Tunable.heard == ["Efficient"]


@pytest.mark.entry(69)
def test_dynamic_options_that_no_ep_takes_are_refused():
    with (
        epctx.InferenceSession(MODEL) as session,
        pytest.raises(epctx.NotImplementedByProvider, match="dynamic options"),
    ):
        session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})


TEXT = ["a", "größer", ""]


def of_text(node, length):
    head = (
        f'<ir_version: 9, opset_import: ["": 20]> g (string[{length}] x) => '
        f"(string[{length}] y)"
    )
    return onnx.parser.parse_model(f"{head} {{ y = {node} }}").SerializeToString()


@pytest.mark.parametrize(
    "array",
    [
        np.array(TEXT),
        np.array(TEXT, object),
        np.array([piece.encode() for piece in TEXT]),
    ],
    ids=["str", "objects", "bytes"],
)
@pytest.mark.parametrize(
    ("node", "times"), [("Identity(x)", 1), ("StringConcat(x, x)", 2)]
)
def test_text_may_come_in_whatever_kind_numpy_has_for_it(array, node, times):
    with epctx.InferenceSession(of_text(node, 3)) as session:
        (result,) = session.run(None, {"x": array})

    assert result.tolist() == [piece * times for piece in TEXT]


def test_bytes_that_are_no_text_are_refused_by_name():
    with (
        epctx.InferenceSession(of_text("Identity(x)", 1)) as session,
        pytest.raises(epctx.InvalidArgument, match="'x' has bytes that are not UTF-8"),
    ):
        session.run(None, {"x": np.array([b"\xff\xfe"])})
