"""Behaviours of loading and running a model on the CPU EP; see `behaviours`."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from differential.behaviours import ARGUMENTS, INVALID, ROWS, behaviour, with_facts
from differential.harness import CPU, HEAD

IN_A_RUN = "a kernel that fails in a run; a run that was terminated"


# --- loading --------------------------------------------------------------------------


@behaviour(59, 60)
def a_source_that_no_ep_takes(s):
    s.session(
        s.context(
            source="NoSuchEP", main_context=1, embed_mode=1, ep_cache_context=b"abc"
        )
    )


@behaviour(59)
def a_node_without_a_source(s):
    s.session(s.context(main_context=1, embed_mode=1, ep_cache_context=b"abc"))


@behaviour(71, 72)
def a_missing_binary_of_a_source_that_no_ep_takes(s):
    s.session(
        s.context(
            source="NoSuchEP",
            main_context=1,
            embed_mode=0,
            ep_cache_context=b"none.bin",
        )
    )


@behaviour(47, 48, differs="compiling a compiled model, also by `ep.context_enable=1`")
def a_compiled_model_compiled_again(s):
    path = s.context(
        source="NoSuchEP", main_context=1, embed_mode=1, ep_cache_context=b"abc"
    )
    s.compiler(path).compile_to_file(s.out())


@behaviour(
    67,
    differs="`session.disable_cpu_ep_fallback=1` with the CPU EP among the providers",
)
def a_fallback_that_is_off(s):
    s.session(s.model(), s.options(session__disable_cpu_ep_fallback=1))


@behaviour()
def a_missing_model(s):
    s.session(s.out("none.onnx"))


@behaviour()
def a_model_of_junk(s):
    s.session(str(s.write("junk.onnx", b"junk")))


@behaviour()
def an_empty_model(s):
    s.session(b"")


@behaviour(differs="a folder as model")
def a_folder_as_model(s):
    s.session(str(s.folder))


@behaviour()
def a_model_that_is_cut_off(s):
    s.session(Path(s.weighted()).read_bytes()[:1000])


@behaviour(differs=ARGUMENTS)
def a_model_that_is_a_number(s):
    s.session(3)


@behaviour()
def an_unknown_operator(s):
    s.session(s.model(HEAD + "(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }"))


@behaviour(differs="an operator of a domain that nobody has")
def an_operator_of_an_unknown_domain(s):
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> g (float[2] x) => '
        "(float[2] y) { y = mine.Op(x) }"
    )
    s.session(s.model(text))


@behaviour(differs=INVALID)
def an_opset_that_nobody_knows(s):
    s.session(
        s.model(
            '<ir_version: 8, opset_import: ["" : 99]> g (float[2] x) => (float[2] y) '
            "{ y = Relu(x) }"
        )
    )


@behaviour(differs=INVALID)
def types_that_contradict_each_other(s):
    s.session(
        s.model(HEAD + "(float[2] x, int64[2] z) => (float[2] y) { y = Add(x, z) }")
    )


@behaviour(differs=INVALID)
def a_value_that_nobody_makes(s):
    s.session(s.model(HEAD + "(float[2] x) => (float[2] y) { y = Add(x, nothing) }"))


@behaviour()
def nodes_out_of_order(s):
    return s.session(
        s.model(HEAD + "(float[2] x) => (float[2] y) { y = Neg(a) a = Relu(x) }")
    ).run(None, {"x": np.ones(2, np.float32)})


@behaviour(61, differs='`providers=["QNNExecutionProvider"]` for a plugin EP')
def a_session_with_a_provider_that_nobody_has(s):
    return s.session(
        s.model(), providers=["NoSuchExecutionProvider", CPU]
    ).get_providers()


@behaviour()
def providers_of_a_session(s):
    made = s.session(s.model())
    return [made.get_providers(), made.get_provider_options()]


@behaviour()
def a_session_that_names_no_provider(s):
    return s.ort.InferenceSession(s.model(), s.options()).get_providers()


@behaviour(differs="`provider_options` of another length than `providers`")
def options_of_more_providers_than_there_are(s):
    s.session(s.model(), provider_options=[{}, {}])


@behaviour()
def a_load_that_was_cancelled_before(s):
    o = s.options()
    o.set_load_cancellation_flag(True)
    s.session(s.model(), o)


@behaviour(
    differs="`get_provider_graph_assignment_info` of a session that did not record"
)
def an_assignment_that_was_not_recorded(s):
    s.session(s.model()).get_provider_graph_assignment_info()


@behaviour()
def an_assignment_that_was_recorded(s):
    o = s.options(session__record_ep_graph_assignment_info=1)
    o.graph_optimization_level = s.ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    found = s.session(s.model(), o).get_provider_graph_assignment_info()
    return sorted(node.op_type for part in found for node in part.get_nodes())


@behaviour(69, differs="`set_ep_dynamic_options`")
def dynamic_options_of_the_cpu_ep(s):
    s.session(s.model()).set_ep_dynamic_options(
        {"ep.dynamic.workload_type": "Efficient"}
    )


# --- running --------------------------------------------------------------------------


@behaviour()
def a_run(s):
    return s.session(s.model()).run(None, {"x": ROWS})


@behaviour()
def a_run_of_named_outputs(s):
    text = HEAD + "(float[3] x) => (float[3] y, float[3] z) { y = Relu(x) z = Neg(x) }"
    return s.session(s.model(text)).run(["z"], {"x": ROWS[0]})


@behaviour()
def a_run_of_no_outputs(s):
    return s.session(s.model()).run([], {"x": ROWS})


@behaviour()
def an_output_that_is_not_there(s):
    s.session(s.model()).run(["nothing"], {"x": ROWS})


@behaviour()
def an_input_that_is_missing(s):
    s.session(s.model()).run(None, {})


@behaviour()
def an_input_too_many(s):
    s.session(s.model()).run(None, {"x": ROWS, "z": ROWS})


@behaviour()
def an_input_of_another_type(s):
    s.session(s.model()).run(None, {"x": ROWS.astype(np.float64)})


@behaviour()
def an_input_of_another_rank(s):
    s.session(s.model()).run(None, {"x": ROWS[0]})


@behaviour()
def an_input_of_another_length(s):
    s.session(s.model()).run(None, {"x": ROWS[:, :2]})


@behaviour()
def an_input_of_no_rows(s):
    return s.session(s.model()).run(None, {"x": ROWS[:0]})[0].shape


@behaviour()
def an_input_that_is_a_list(s):
    return s.session(s.model()).run(None, {"x": ROWS.tolist()})


@behaviour()
def an_input_that_is_a_view(s):
    return s.session(s.model()).run(
        None, {"x": np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))}
    )


@behaviour()
def texts(s):
    text = HEAD + "(string[N] x) => (string[N] y) { y = Identity(x) }"
    return s.session(s.model(text)).run(None, {"x": np.array(["a", "ü"], object)})


@behaviour(differs="a numpy scalar as value in `run`")
def a_scalar(s):
    return s.session(s.model(HEAD + "(float x) => (float y) { y = Neg(x) }")).run(
        None, {"x": np.float32(3)}
    )


@behaviour(differs=IN_A_RUN)
def a_run_that_was_terminated_before(s):
    run = s.ort.RunOptions()
    run.terminate = True
    s.session(s.model()).run(None, {"x": ROWS}, run)


@behaviour()
def a_declared_length_that_is_wrong(s):
    text = (
        HEAD + "(float[N, 3] x) => (float[1] y) { y = ReduceSum<keepdims = 0>(x, a) }"
    )
    text = text.replace("=> (float[1] y)", "=> (float[1] y) <int64[1] a = {1}>")
    return s.session(s.model(text)).run(None, {"x": np.ones((2, 3), np.float32)})


@behaviour()
def inputs_and_outputs(s):
    made = s.session(s.model())
    return [
        [(v.name, v.type, v.shape) for v in (*made.get_inputs(), *made.get_outputs())]
    ]


@behaviour()
def what_a_model_says_of_itself(s):
    meta = s.session(s.model(edit=with_facts)).get_modelmeta()
    return [meta.producer_name, meta.version, meta.custom_metadata_map, meta.graph_name]


@behaviour(differs="a model without a version")
def a_model_without_a_version(s):
    return (
        s.session(s.model(edit=lambda proto: proto.ClearField("model_version")))
        .get_modelmeta()
        .version
    )


@behaviour()
def an_input_with_a_default(s):
    def add(proto):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(np.full(2, 5, np.float32), "d")
        )

    made = s.session(
        s.model(
            HEAD + "(float[2] x, float[2] d) => (float[2] y) { y = Add(x, d) }",
            edit=add,
        )
    )
    feed = {"x": np.zeros(2, np.float32)}
    overridable = [i.name for i in made.get_overridable_initializers()]
    return [
        overridable,
        made.run(None, feed),
        made.run(None, {**feed, "d": np.ones(2, np.float32)}),
    ]


@behaviour(differs=IN_A_RUN)
def a_scan_over_nothing(s):
    text = HEAD + (
        "(float[2] i, float[N, 2] x) => (float[2] f, float[M, 2] o) { f, o = "
        "Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] "
        "t, float[2] u) { t = Add(s, e) u = Identity(t) }>(i, x) }"
    )
    return s.session(s.model(text)).run(
        None, {"i": np.ones(2, np.float32), "x": np.zeros((0, 2), np.float32)}
    )


@behaviour()
def a_run_with_a_callback(s):
    said: list[Any] = []
    made = s.session(s.model())
    made.run_async(None, {"x": ROWS}, lambda *given: said.append(given), "mine")
    until = time.monotonic() + 30
    while not said and time.monotonic() < until:
        time.sleep(0.002)
    return said


@behaviour()
def a_seed_makes_numbers_repeatable(s):
    path = s.model(HEAD + "() => (float[4] y) { y = RandomNormal<shape = [4]>() }")
    drawn = []
    for _ in range(2):
        s.ort.set_seed(7)
        drawn.append(s.session(path).run(None, {})[0].tolist())
    return drawn[0] == drawn[1]


@behaviour(differs="`get_available_providers`")
def providers_that_are_available(s):
    return s.ort.get_available_providers()


@behaviour()
def the_device(s):
    return s.ort.get_device()


@behaviour(differs="names of onnxruntime's module that epctx does not have")
def a_value_of_onnxruntime(s):
    return s.ort.OrtValue.ortvalue_from_numpy(ROWS).shape()


@behaviour(differs=ARGUMENTS)
def levels_of_the_default_logger(s):
    with contextlib.suppress(AttributeError):
        s.ort.set_default_logger_verbosity(0)
    s.ort.set_default_logger_severity(9)
