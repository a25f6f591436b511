"""Entries 67 to 69, and onnxruntime's names of sessions and options: what works, and
what says that it does not.
"""

from __future__ import annotations

import re
import sys
import threading
import time

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from support.engine_eps import Alpha, scripted
from support.pages import FILES
from support.routes import refused
from support.small_models import chain, example, saved
from support.validating_eps import compiled, options_with, registry_with, session

import epctx_core as epctx
from epctx_core import (
    Fail,
    InvalidArgument,
    NotImplementedByProvider,
    PluginError,
    RuntimeException,
)
from epctx_core.plugin import CompiledPartition, ProviderOption, hookimpl

DIFFERENCES = FILES["differences-from-onnxruntime.md"]
CPU = "CPUExecutionProvider"
UNSUPPORTED = {
    owner: re.findall(
        r"`(\w+)`",
        DIFFERENCES.read_text().partition(f"\n| `{owner}` |")[2].partition("\n")[0],
    )
    for owner in ("SessionOptions", "RunOptions", "InferenceSession", "onnxruntime")
}
"""Class or module to the names that the document lists as not supported."""


@pytest.fixture
def model(source):
    return compiled(source, Alpha)


# --- names ----------------------------------------------------------------------------


TABLE_VERSION = (1, 32)
"""The onnxruntime whose names the table has; an older one lacks some."""


def version_of_onnxruntime():
    return tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def of_onnxruntime(name):
    owner = onnxruntime if name == "onnxruntime" else getattr(onnxruntime, name)
    # A submodule is a name of the module once somebody has imported it.
    later = {n for n in dir(owner) if f"onnxruntime.{n}" in sys.modules} - set(
        UNSUPPORTED["onnxruntime"]
    )
    return {n for n in dir(owner) if not n.startswith("_")} - later


def instance_of(name, model):
    made = {
        "SessionOptions": epctx.SessionOptions,
        "RunOptions": epctx.RunOptions,
        "onnxruntime": lambda: epctx,
    }
    return made[name]() if name in made else epctx.InferenceSession(model)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_every_name_of_onnxruntime_works_or_is_listed(name, source):
    theirs = of_onnxruntime(name)
    ours = {n for n in dir(instance_of(name, source)) if not n.startswith("_")}

    listed = set(UNSUPPORTED[name])
    assert theirs - ours <= listed
    if version_of_onnxruntime() >= TABLE_VERSION:
        assert theirs - ours == listed


def test_the_compiler_has_every_name_of_onnxruntimes():
    assert of_onnxruntime("ModelCompiler") <= set(dir(epctx.ModelCompiler))


@pytest.mark.parametrize(
    ("owner", "name"), [(o, n) for o, names in UNSUPPORTED.items() for n in names]
)
def test_a_name_that_is_not_supported_says_so_when_it_is_used(owner, name, source):
    made = instance_of(owner, source)

    owner = "module 'epctx_core'" if owner == "onnxruntime" else owner
    # With the reason, or with what to use instead.
    said = rf"{owner} has no attribute '{name}' of onnxruntime: [^.].{{15,}}\."
    with refused(InvalidArgument, said):
        getattr(made, name)
    assert not hasattr(made, name)
    if owner in {"SessionOptions", "RunOptions"}:
        with refused(InvalidArgument, said):
            setattr(made, name, True)


def test_a_name_that_nobody_has_is_a_typo():
    options = epctx.SessionOptions()

    with pytest.raises(
        AttributeError,
        match=(
            r"no attribute 'intra_op_num_thread'\. Did you mean "
            r"'intra_op_num_threads'"
        ),
    ):
        options.intra_op_num_thread = 4
    with pytest.raises(AttributeError, match="Did you mean 'add_initializer'"):
        options.add_initialiser("w", np.zeros(1))
    with pytest.raises(AttributeError, match="Did you mean 'terminate'"):
        epctx.RunOptions().terminated = True


def test_a_host_that_changes_the_import_gets_the_same(source):
    proto = onnx.load(source)
    proto.model_version = 7
    proto.metadata_props.add(key="author", value="nobody")
    saved(proto, source)
    found = []
    for ort in (onnxruntime, epctx):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
        made = ort.InferenceSession(
            str(source), sess_options=options, providers=[CPU], provider_options=[{}]
        )
        run = ort.RunOptions()
        run.logid = "first"
        meta = made.get_modelmeta()
        values = [
            (v.name, v.type, v.shape) for v in (*made.get_inputs(), *made.get_outputs())
        ]
        found.append(
            [
                made.run(None, {"x": example()})[0].tolist(),
                made.run(["y"], {"x": example()}, run)[0].tolist(),
                [values, made.get_providers(), made.get_provider_options()],
                [
                    meta.producer_name,
                    meta.graph_name,
                    meta.version,
                    meta.custom_metadata_map,
                ],
                [made.get_overridable_initializers(), options.has_providers()],
                made.get_session_options().get_session_config_entry(
                    "session.disable_cpu_ep_fallback"
                ),
            ]
        )

    assert found[0] == found[1]


# --- who runs what --------------------------------------------------------------------


def assigned(made):
    return [
        (group.ep_name, [(n.name, n.op_type, n.domain) for n in group.get_nodes()])
        for group in made.get_provider_graph_assignment_info()
    ]


RECORD = {"session__record_ep_graph_assignment_info": 1}


def test_a_session_tells_who_runs_which_node_of_a_plain_model(source):
    with session(source, Alpha, **RECORD) as made:
        groups = assigned(made)

    assert groups == [
        (Alpha.name, [("n0", "Relu", ""), ("n1", "Add", "")]),
        (Alpha.name, [("n3", "Add", "")]),
        (CPU, [("n2", "Sigmoid", "")]),
    ]


def test_a_session_tells_who_runs_which_node_of_a_context_model(model):
    names = [n.name for n in onnx.load(model).graph.node if n.op_type == "EPContext"]

    with session(model, Alpha, **RECORD) as made:
        groups = assigned(made)

    assert groups == [
        *((Alpha.name, [(name, "EPContext", "com.microsoft")]) for name in names),
        (CPU, [("n2", "Sigmoid", "")]),
    ]


def test_the_cpu_eps_nodes_are_told_as_onnxruntime_tells_them(source):
    found = []
    for ort in (onnxruntime, epctx):
        options = ort.SessionOptions()
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        found.append(
            assigned(ort.InferenceSession(str(source), options, providers=[CPU]))
        )

    assert found[0] == found[1]


def test_a_session_that_did_not_record_says_how_to(source):
    with (
        session(source, Alpha) as made,
        refused(InvalidArgument, "did not record") as caught,
    ):
        made.get_provider_graph_assignment_info()

    assert "session.record_ep_graph_assignment_info" in caught.value.hint


@pytest.mark.entry(67)
def test_a_context_model_with_nodes_for_the_cpu_is_refused_where_the_fallback_is_off(
    model, tmp_path
):
    with refused(Fail, r"node 'n2' \(Sigmoid\) is left to the CPU EP"):
        session(model, Alpha, session__disable_cpu_ep_fallback=1)

    whole = compiled(saved(chain(["Relu", "Add"]), tmp_path / "whole.onnx"), Alpha)
    session(whole, Alpha, session__disable_cpu_ep_fallback=1).close()


class LoadsOnly(Alpha):
    """Alpha that loads context models and cannot run them."""

    @hookimpl
    def load_context(self, nodes, reader):
        def run(_inputs, _outputs):
            raise NotImplementedByProvider(
                "there is no device to run this on.", hint="Compile elsewhere."
            )

        return [CompiledPartition(run) for _ in nodes]


@pytest.mark.entry(68)
def test_an_ep_may_load_what_it_cannot_run(model):
    with (
        session(model, LoadsOnly) as made,
        refused(NotImplementedByProvider, "there is no device to run this on"),
    ):
        made.run(None, {"x": example()})


# --- dynamic options ------------------------------------------------------------------

WORKLOAD, MODE = "ep.dynamic.workload_type", "ep.dynamic.qnn_htp_performance_mode"


@pytest.mark.entry(69)
@pytest.mark.parametrize("loaded", [False, True], ids=["plain", "context model"])
def test_dynamic_options_are_accepted_or_refused_by_key_and_value(source, loaded):
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    if loaded:
        source = epctx.ModelCompiler(options, source).compile_to_file().output

    with epctx.InferenceSession(source, options) as made:
        made.set_ep_dynamic_options({WORKLOAD: "Efficient"})
        made.set_ep_dynamic_options({WORKLOAD: "Default", MODE: "burst"})
        for wrong, words in (
            ({WORKLOAD: "Fast"}, "is 'Fast'; allowed: Default, Efficient"),
            ({WORKLOAD: "default"}, "allowed: Default, Efficient"),
            ({MODE: "turbo"}, "allowed:.*burst"),
            ({"ep.dynamic.workload": "Default"}, f"Did you mean '{WORKLOAD}'"),
            ({"htp_arch": "73"}, "no EP of this session has the dynamic option"),
            (
                {WORKLOAD: 1},
                f"must be text: '{WORKLOAD}' of type str has a value of type int",
            ),
            ({7: "Fast"}, "must be text: 7 of type int has a value of type str"),
            ({}, "not empty"),
            (None, "not empty"),
        ):
            with refused(InvalidArgument, words):
                made.set_ep_dynamic_options(wrong)
        assert made.run(None, {"x": example()})[0].shape == (2, 3)


def test_no_value_of_a_dynamic_option_is_shown_that_may_be_secret(source):
    with (
        epctx.InferenceSession(source) as made,
        refused(InvalidArgument, "'n' of type str") as caught,
    ):
        made.set_ep_dynamic_options({"secret.key": "hunter2", "n": 12345})

    assert not {"hunter2", "12345"} & set(
        re.findall(r"\w+", f"{caught.value} {caught.value.hint}")
    )


class Dynamic(Alpha):
    """Alpha that remembers the dynamic options it was given."""

    name = "DynamicExecutionProvider"
    dynamic_options = (
        ProviderOption("ep.dynamic.speed", int, default=0, doc="How fast."),
    )

    def __init__(self, context):
        super().__init__(context)
        type(self).heard = []

    @hookimpl
    def set_dynamic_options(self, options):
        type(self).heard.append(dict(options))


class Undeclared(Dynamic):
    """The same without a schema: it judges for itself."""

    name = "UndeclaredExecutionProvider"
    dynamic_options = ()

    @hookimpl
    def set_dynamic_options(self, options):
        if "ep.dynamic.bad" in options:
            raise ValueError("no bad options here")
        if "ep.dynamic.worse" in options:
            raise KeyError("a mistake of the plugin's")
        type(self).heard.append(dict(options))


@pytest.mark.entry(69)
def test_each_ep_gets_the_options_that_it_declares_after_all_were_checked(source):
    qnn = epctx.Registry()
    qnn.register(Dynamic)

    with epctx.InferenceSession(
        source, providers=["QNN", "Dynamic"], registry=qnn
    ) as made:
        made.set_ep_dynamic_options({WORKLOAD: "Efficient", "ep.dynamic.speed": "3"})
        for wrong in (
            {"ep.dynamic.speed": "x"},
            {"ep.dynamic.speed": "3", WORKLOAD: "x"},
        ):
            with refused(InvalidArgument, "option"):
                made.set_ep_dynamic_options(wrong)

    assert Dynamic.heard == [{"ep.dynamic.speed": "3"}]


@pytest.mark.parametrize("schema", [None, "ep.dynamic.speed", ("ep.dynamic.speed",)])
def test_a_schema_of_dynamic_options_that_is_none_is_a_fault_of_the_plugin(schema):
    broken = type("Broken", (Dynamic,), {"dynamic_options": schema})

    with pytest.raises(PluginError, match="dynamic_options"):
        registry_with(broken)


def test_an_ep_without_a_schema_judges_dynamic_options_itself(source):
    with session(source, Undeclared) as made:
        made.set_ep_dynamic_options({"ep.dynamic.any": "x"})
        with refused(
            InvalidArgument,
            "refuses the dynamic options: no bad options here",
            ep=Undeclared.name,
        ):
            made.set_ep_dynamic_options({"ep.dynamic.bad": "x"})
        with refused(PluginError, "a mistake of the plugin's"):
            made.set_ep_dynamic_options({"ep.dynamic.worse": "x"})

    assert Undeclared.heard == [{"ep.dynamic.any": "x"}]


# --- run options and the end of a session ---------------------------------------------


class Waiting(Alpha):
    """Alpha whose runs wait until the test lets them go on."""

    name = "WaitingExecutionProvider"

    def __init__(self, context):
        super().__init__(context)
        type(self).entered, type(self).leave = threading.Event(), threading.Event()
        type(self).steps = 0

    def _runnable(self, model):
        honest = super()._runnable(model)

        def run(inputs, outputs):
            type(self).steps += 1
            self.entered.set()
            assert self.leave.wait(30)
            return honest(inputs, outputs)

        return run


def running(made, *options):
    """Start a run in a thread; return the thread, and what will hold its outcome."""
    outcome = []

    def run():
        try:
            outcome.append(made.run(None, {"x": example()}, *options))
        except epctx.EpctxError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert Waiting.entered.wait(30)
    return thread, outcome


def test_terminate_from_another_thread_stops_all_runs_with_these_options_between_two_steps(
    source,
):
    made, run = session(source, Waiting), epctx.RunOptions()
    thread, outcome = running(made, run)
    other, untouched = running(made)

    run.terminate = True
    Waiting.leave.set()
    thread.join()
    other.join()

    assert isinstance(outcome[0], RuntimeException)
    assert "RunOptions.terminate" in str(outcome[0])
    assert isinstance(untouched[0], list)
    assert Waiting.steps == 3
    with refused(RuntimeException, r"RunOptions\.terminate"):
        made.run(None, {"x": example()}, run)
    run.terminate = False
    assert len(made.run(None, {"x": example()}, run)) == 1
    made.close()


ENDLESS = """<ir_version: 9, opset_import: ["": 18]>
g (float[2] x) => (float[2] y) {
    y = Loop (, , x) <
        body = b (int64 i, bool go, float[2] s) => (bool go, float[2] t) { r = Relu(s)  t = Mul(r, r) }
    >
}"""


class Whole(Alpha):
    """Alpha that takes a Loop whole, and runs it on the core's engine."""

    name = "WholeExecutionProvider"
    operators = frozenset({"Loop"})


class Inside(Alpha):
    """Alpha that takes Relu, in bodies too."""

    name = "InsideExecutionProvider"


@pytest.mark.parametrize(
    "ep", [None, Inside, Whole], ids=["CPU EP", "EP in the body", "EP with the loop"]
)
def test_terminate_ends_a_loop_without_end_whoever_runs_it(ep):
    model, eps = (
        onnx.parser.parse_model(ENDLESS).SerializeToString(),
        () if ep is None else (ep,),
    )
    run = epctx.RunOptions()
    timer = threading.Timer(0.3, setattr, (run, "terminate", True))

    with session(model, *eps) as made:
        timer.start()
        with refused(RuntimeException, r"the run was stopped: RunOptions\.terminate"):
            made.run(None, {"x": np.ones(2, np.float32)}, run)

    timer.join()


def test_what_follows_run_options_is_stopped_with_them_whenever_it_was_made():
    run = epctx.RunOptions()
    early = run.follow(onnxruntime.RunOptions)
    run.terminate = True
    late = run.follow(threading.local)

    assert (early.terminate, late.terminate) == (True, True)
    assert run.follow(onnxruntime.RunOptions) is early
    run.terminate = False
    assert (early.terminate, late.terminate) == (False, False)


@pytest.mark.parametrize("wrong", [True, {"terminate": True}, onnxruntime.RunOptions()])
def test_run_options_of_another_kind_are_refused(source, wrong):
    with session(source, Alpha) as made, refused(InvalidArgument, "run_options is a"):
        made.run(None, {"x": example()}, wrong)


def test_close_waits_for_runs_under_way_and_later_ones_are_refused(source):
    made = session(source, Waiting)
    thread, outcome = running(made)
    closing = threading.Thread(target=made.close)
    closing.start()

    time.sleep(0.05)
    assert closing.is_alive()
    with refused(RuntimeException, "the session is closed"):
        made.run(None, {"x": example()})
    Waiting.leave.set()
    thread.join(30)
    closing.join(30)

    assert isinstance(outcome[0], list)
    assert not closing.is_alive()
    for call in (made.get_providers, made.get_modelmeta, made.get_provider_options):
        with refused(RuntimeException, "the session is closed"):
            call()
    assert [v.name for v in (*made.get_inputs(), *made.get_outputs())] == ["x", "y"]
    made.close()


def test_close_from_within_a_run_of_the_same_session_is_refused_rather_than_waited_for(
    source,
):
    sessions = []

    class Closing(Alpha):
        name = "ClosingExecutionProvider"

        def _runnable(self, _model):
            def run(_inputs, _outputs):
                sessions[0].close()

            return run

    sessions.append(session(source, Closing))
    with refused(RuntimeException, "close was called from within a run"):
        sessions[0].run(None, {"x": example()})

    sessions[0].close()


def test_a_session_is_closed_at_the_end_of_its_block_also_by_an_error(source):
    ep = scripted()

    with pytest.raises(KeyError), session(source, ep) as made:
        raise KeyError("the host's own")

    assert ep.calls[-1] == "shutdown"
    with refused(RuntimeException, "the session is closed"):
        made.run(None, {"x": example()})


def test_options_are_copied_apart():
    options = options_with(Alpha, ep__context_embed_mode=1)
    options.add_initializer("w", np.zeros(3, np.float32))
    options.add_free_dimension_override_by_name("n", 3)
    options.intra_op_num_threads = 2

    copied = options.copy()
    options.add_initializer("v", np.zeros(3, np.float32))
    options.add_free_dimension_override_by_name("m", 4)
    options.add_session_config_entry("ep.context_embed_mode", "0")
    options.add_provider("QNN")
    options.providers[0][1]["x"] = "1"

    assert copied.providers == [(Alpha.name, {})]
    assert (copied.config().embed, copied.intra_op_num_threads) == (True, 2)
    assert list(copied.model_overrides.initializers) == ["w"]
    assert copied.model_overrides.dimensions == {"n": 3}
    options.set_load_cancellation_flag(True)
    assert copied.cancellation.requested
