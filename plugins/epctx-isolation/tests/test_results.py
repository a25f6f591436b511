"""Isolated EPs compile, load and run as without isolation, to the byte."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import os
import subprocess
import threading
import time

import numpy as np
import onnx
import pytest
from onnx import helper
from support.agreement_of_routes import Everything
from support.engine_eps import Alpha, Beta, packed
from support.faulty_eps import (
    ClaimsNonsense,
    ClaimsStrangers,
    Converting,
    DiesInSpan,
    Faulty,
    Lying,
    Marking,
    MarksInThread,
    MarksWith,
    NamesNonsense,
    Noting,
    PatientAtB,
    RefusesNonsense,
    Renaming,
    TellsOfSpans,
)
from support.isolation import (
    children,
    compiled,
    nothing_left,
    options_for,
    registry_of,
    source,
)
from support.sim_eps import OPENVINO, QNN, VITISAI, with_eps
from support.small_models import chain, example, finished, saved, snapshot

import epctx_core as epctx
from epctx_core.plugin import hookimpl

IF = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,3] x, bool c) => (float[2,3] y) <float[2,3] w = {1,2,3,4,5,6}> {
  a = Add(x, w)
  b = If(c) <then_branch = t () => (float[2,3] r) { p = Add(a, w) r = Relu(p) },
             else_branch = e () => (float[2,3] s) { s = Neg(a) }>
  y = Relu(b)
}"""

TEXT_INSIDE = """<ir_version: 10, opset_import: ["" : 20]>
g (int64[N] x) => (bool[N] y) <string[1] w = {"é1"}> {
  k = Constant<value = string[1] {"é"}>()
  s = Cast<to = 8>(x)
  t = StringConcat(k, s)
  y = Equal(t, w)
}"""
TEXT_OUTSIDE = """<ir_version: 10, opset_import: ["" : 20]>
g (string[N] x) => (string[N] y) <string[1] w = {"é"}> { y = StringConcat(x, w) }"""
DECLARED = """<ir_version: 10, opset_import: ["" : 20]>
g (float[N] x, int64[K] shape) => (float[2,3] y) { y = Reshape(x, shape) }"""
OPEN = """<ir_version: 10, opset_import: ["" : 21]>
g (float[N,3] x) => (float[N,3] y) <float[3] w = {1,2,3}> {
  a = Add(x, w)
  y = Neg(a)
}"""


def both_ways(tmp_path, model, ep, **arguments):
    """Compile without and with isolation; return both folders' contents."""
    ways = ((mode or "none", options_for(ep, isolate=mode)) for mode in ("", "compile"))
    return [
        snapshot(compiled(tmp_path / name, model, ep, options, **arguments))
        for name, options in ways
    ]


@pytest.mark.parametrize(
    "ep",
    [QNN, *(pytest.param(ep, marks=pytest.mark.stress) for ep in (OPENVINO, VITISAI))],
)
def test_a_network_compiles_to_the_same_bytes_and_gives_the_same_results(
    tmp_path, network, temporary, ep
):
    source = network("bert" if ep == QNN else "resnet")
    with epctx.InferenceSession(source.path, with_eps(ep)) as session:
        expected = session.run(None, source.inputs)
    folders = {}
    for mode in ("", "all"):
        options = with_eps(ep)
        options.add_session_config_entry("ep.isolate", mode)
        folders[mode] = tmp_path / (mode or "none")
        folders[mode].mkdir()
        epctx.ModelCompiler(options, source.path).compile_to_file(
            folders[mode] / "m_ctx.onnx"
        )

    with (
        nothing_left(temporary),
        epctx.InferenceSession(folders["all"] / "m_ctx.onnx", options) as session,
    ):
        results = session.run(None, source.inputs)

    assert snapshot(folders["all"]) == snapshot(folders[""])
    assert all(np.array_equal(a, b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_session_that_compiles_gives_the_same_results(tmp_path, temporary, mode):
    model, x = source(tmp_path, ("Neg", "Mul", "Sigmoid", "Mul", "Neg")), example()
    registry = registry_of(Beta)
    with epctx.InferenceSession(
        model, options_for(Beta, isolate=""), registry=registry
    ) as session:
        (expected,) = session.run(None, {"x": x})

    options = options_for(Beta, isolate=mode)
    with (
        nothing_left(temporary),
        epctx.InferenceSession(model, options, registry=registry) as session,
    ):
        (result,) = session.run(None, {"x": x})

    assert np.array_equal(result, expected)


def test_a_session_that_compiles_elsewhere_replaces_parts_of_the_model_once(tmp_path):
    onnx.save(onnx.parser.parse_model(OPEN), tmp_path / "m.onnx")
    x = np.ones((2, 3), np.float32)
    found = []
    for mode in ("", "compile"):
        options = options_for(QNN, isolate=mode)
        options.add_initializer("w", np.array([4, 5, 6], np.float32))
        options.add_free_dimension_override_by_name("N", 2)
        with epctx.InferenceSession(tmp_path / "m.onnx", options) as session:
            found.append((session.get_inputs()[0].shape, session.run(None, {"x": x})))

    assert found[0][0] == found[1][0] == [2, 3]
    assert np.array_equal(found[0][1], found[1][1])
    assert not np.array_equal(found[0][1][0], -x - [1, 2, 3])


def test_a_session_that_writes_the_context_model_writes_the_same_bytes(tmp_path):
    contents = []
    for mode in ("", "compile"):
        folder = tmp_path / (mode or "none")
        folder.mkdir()
        options = options_for(
            Alpha,
            isolate=mode,
            context_enable=1,
            context_file_path=folder / "m_ctx.onnx",
        )
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Alpha)
        ).close()
        contents.append(snapshot(folder))

    assert contents[0] == contents[1]
    assert len(contents[0]) == 2


def test_weights_that_an_ep_makes_are_written_once_and_verified(tmp_path):
    plain, isolated = both_ways(tmp_path, source(tmp_path), Converting)

    assert isolated == plain


def test_a_wrong_digest_of_a_weight_that_an_ep_made_is_noticed(tmp_path):
    with pytest.raises(
        epctx.PluginError, match=r"states its size and digest as .*0000"
    ) as caught:
        compiled(tmp_path / "out", source(tmp_path), Lying, options_for(Lying))

    assert caught.value.hook == "get_ep_context_nodes"
    assert list((tmp_path / "out").iterdir()) == []


def test_payloads_in_the_model_and_payloads_for_a_callback_are_the_same(tmp_path):
    plain, isolated = both_ways(
        tmp_path, source(tmp_path), Alpha, embed_compiled_data_into_model=True
    )
    handed = {}
    compiler = epctx.ModelCompiler(
        options_for(Alpha), source(tmp_path), registry=registry_of(Alpha)
    )
    compiler.set_ep_context_data_write_func(
        lambda name, data: handed.update({name: data.read()})
    )

    compiler.compile_to_file(tmp_path / "handed_ctx.onnx")

    assert isolated == plain
    assert handed == {
        "handed_alpha.bin": snapshot(
            compiled(tmp_path / "f", source(tmp_path), Alpha, options_for(Alpha))
        )["m_alpha.bin"]
    }


def test_bodies_are_shown_with_the_nodes_that_hold_them(tmp_path):
    model = saved(onnx.parser.parse_model(IF), tmp_path / "m.onnx")

    plain, isolated = both_ways(tmp_path, model, Everything)

    assert isolated == plain
    assert isolated["m_ctx.onnx"].count(b"EPContext") > 2


def test_text_that_stays_inside_of_a_partition_makes_no_difference(tmp_path):
    model = saved(onnx.parser.parse_model(TEXT_INSIDE), tmp_path / "m.onnx")

    plain, isolated = both_ways(tmp_path, model, Everything)
    options = options_for(Everything, isolate="all")
    with epctx.InferenceSession(
        model, options, registry=registry_of(Everything)
    ) as session:
        (result,) = session.run(None, {"x": np.array([1, 2])})

    assert isolated == plain
    assert result.tolist() == [True, False]


def text_context_model(folder):
    """Write a context model whose one node takes and gives text, as another tool might;
    epctx makes none.
    """
    payload = packed({"p": onnx.parser.parse_model(TEXT_OUTSIDE).SerializeToString()})
    declared = onnx.parser.parse_model(TEXT_OUTSIDE).graph
    attributes = {
        "source": Everything.name,
        "main_context": 1,
        "embed_mode": 1,
        "ep_cache_context": payload,
    }
    node = helper.make_node(
        "EPContext",
        ["x"],
        ["y"],
        "p",
        domain="com.microsoft",
        partition_name="p",
        **attributes,
    )
    model = finished([node], declared.input, declared.output)
    model.opset_import.add(domain="com.microsoft", version=1)
    return saved(model, folder / "text_ctx.onnx")


@pytest.mark.parametrize("mode", ["", "compile", "all"])
@pytest.mark.parametrize(
    "texts", [["a", ""], ["ü\0x", "日本"], []], ids=["ascii", "unicode", "empty"]
)
def test_text_goes_into_a_loaded_partition_and_comes_out_of_it(
    tmp_path, temporary, mode, texts
):
    model, options = text_context_model(tmp_path), options_for(Everything, isolate=mode)

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            model, options, registry=registry_of(Everything)
        ) as session,
    ):
        (result,) = session.run(None, {"x": np.array(texts, object)})

    assert (result.dtype, result.tolist()) == (
        np.dtype(object),
        [text + "é" for text in texts],
    )


def test_openvino_takes_a_loop_whole_after_it_was_shown_its_body(tmp_path):
    model = saved(onnx.parser.parse_model(IF), tmp_path / "m.onnx")
    contents = []
    for mode in ("", "compile"):
        options = options_for(OPENVINO, isolate=mode)
        (tmp_path / (mode or "none")).mkdir()
        epctx.ModelCompiler(options, model).compile_to_file(
            tmp_path / (mode or "none") / "m_ctx.onnx"
        )
        contents.append(snapshot(tmp_path / (mode or "none")))

    assert contents[0] == contents[1]


def test_weights_in_files_are_mapped_where_they_lie(tmp_path, temporary):
    model = chain(("Add", "Relu", "Sigmoid", "Add"))
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.weights",
        size_threshold=0,
    )

    plain, isolated = both_ways(tmp_path, tmp_path / "m.onnx", Alpha)

    assert isolated == plain


@pytest.mark.parametrize("where", ["w", "m.onnx"])
def test_weightless_mode_leaves_the_same_weights_in_the_source(tmp_path, where):
    model = chain(("Add", "Relu", "Mul"))
    onnx.save(
        model,
        tmp_path / "m.onnx",
        save_as_external_data=where == "w",
        location="w",
        size_threshold=0,
    )
    contents = []
    for mode in ("", "all"):
        options = options_for(OPENVINO, isolate=mode, enable_weightless_mode=2)
        epctx.ModelCompiler(options, tmp_path / "m.onnx").compile_to_file(
            tmp_path / "m_ctx.onnx"
        )
        contents.append(snapshot(tmp_path))
        with epctx.InferenceSession(tmp_path / "m_ctx.onnx", options) as session:
            contents.append(session.run(None, {"x": example()})[0].tobytes())
        for name in ("m_ctx.onnx", f"m_{OPENVINO}.bin"):
            (tmp_path / name).unlink()

    assert contents[:2] == contents[2:]


def test_a_model_that_an_ep_changes_is_the_one_that_is_compiled(tmp_path):
    plain, isolated = both_ways(
        tmp_path, source(tmp_path, ("Neg", "Add", "Relu")), Renaming
    )

    assert isolated == plain
    assert b"Neg" not in isolated["m_ctx.onnx"]


def test_progress_of_the_ep_reaches_the_host(tmp_path):
    seen = []
    compiler = epctx.ModelCompiler(
        options_for(QNN), source(tmp_path), progress=lambda *step: seen.append(step)
    )

    compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    in_host = {"read", "partition"}
    assert {stage for stage, _, _ in seen} > in_host
    assert seen.count(("compile", 0, 1)) == 2, "the core's and the EP's own"


def test_secret_options_are_in_neither_arguments_nor_environment(tmp_path, monkeypatch):
    started = []

    class Watched(subprocess.Popen):
        def __init__(self, command, **arguments):
            started.append((command, arguments["env"]))
            super().__init__(command, **arguments)

    monkeypatch.setattr(subprocess, "Popen", Watched)
    options = options_for(Faulty, provider_options={"key": "s3cret-v4lue"})

    compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert len(started) == 1
    assert "s3cret-v4lue" not in repr(started)


def test_threads_may_run_one_session_at_once(tmp_path):
    xs, results = [example(seed) for seed in range(4)], {}
    options = options_for(Alpha, isolate="all")
    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Alpha)
    ) as session:

        def work(number):
            results[number] = [
                session.run(None, {"x": xs[number]})[0] for _ in range(20)
            ]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = [session.run(None, {"x": x})[0] for x in xs]

    assert all(np.array_equal(y, expected[n]) for n, ys in results.items() for y in ys)


@pytest.mark.parametrize(("mode", "where"), [("compile", "here"), ("all", "there")])
def test_an_ep_is_told_of_runs_and_dynamic_options_where_it_runs(
    tmp_path, caplog, monkeypatch, mode, where
):
    monkeypatch.setenv("EPCTX_TEST_HOST", str(os.getpid()))
    caplog.set_level(logging.WARNING)
    run_options = epctx.RunOptions()
    run_options.tag = "first"

    options = options_for(Noting, isolate=mode)
    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Noting)
    ) as session:
        session.set_ep_dynamic_options({"workload_type": "Efficient"})
        session.run(None, {"x": example()}, run_options)

    said = [r.getMessage() for r in caplog.records if r.name.endswith(Noting.name)]
    told = [line for line in said if not line.startswith("allocate")]
    assert told == [
        f"set {{'workload_type': 'Efficient'}} {where}",
        f"start first {where}",
        f"end first {where}",
    ]
    assert set(said) - set(told) == {f"allocate {where}"}


def test_a_wrong_claim_is_the_contract_broken_as_without_isolation(tmp_path):
    with pytest.raises(
        epctx.PluginError,
        match="gave a CompiledPartition instead of a ComputeCapability",
    ):
        compiled(
            tmp_path / "out",
            source(tmp_path),
            ClaimsNonsense,
            options_for(ClaimsNonsense),
        )


@pytest.mark.parametrize("isolate", ["compile", ""])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("number", "names node 99, which the graph does not have"),
        ("text", "names something else than nodes of the graph"),
        ("inner", r"names node '.*' \(\w+\), which is in another graph"),
    ],
)
def test_what_is_no_node_of_the_graph_is_the_contract_broken_as_without_isolation(
    tmp_path, isolate, what, message
):
    model = saved(onnx.parser.parse_model(IF), tmp_path / "m.onnx")
    options = options_for(
        ClaimsStrangers, isolate=isolate, provider_options={"what": what}
    )

    with pytest.raises(epctx.PluginError, match=message):
        compiled(tmp_path / "out", model, ClaimsStrangers, options)


@pytest.mark.parametrize("isolate", ["compile", ""])
def test_a_reason_that_is_no_text_is_the_contract_broken_as_without_isolation(
    tmp_path, isolate
):
    with pytest.raises(
        epctx.PluginError,
        match="gave a int instead of a text as the reason of a Refusal",
    ):
        compiled(
            tmp_path / "out",
            source(tmp_path),
            RefusesNonsense,
            options_for(RefusesNonsense, isolate=isolate),
        )


@pytest.mark.parametrize("isolate", ["compile", ""])
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("graph_name", "gave a int instead of a text as graph_name"),
        ("doc_string", "gave a int instead of a text as doc_string"),
        ("compatibility_info", "gave a int instead of a text as compatibility_info"),
        ("attributes", "set 5 to a value that the attribute cannot hold"),
    ],
)
def test_what_is_no_text_is_the_contract_broken_as_without_isolation(
    tmp_path, isolate, what, message
):
    options = options_for(
        NamesNonsense, isolate=isolate, provider_options={"what": what}
    )

    with pytest.raises(epctx.PluginError, match=message):
        compiled(tmp_path / "out", source(tmp_path), NamesNonsense, options)


class Wraps:
    """Host plugin that no other process can find: an object of no module."""

    @hookimpl(wrapper=True)
    def compile(self):
        return (yield)


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_host_plugin_that_another_process_cannot_find_is_refused(tmp_path, mode):
    options = options_for(Alpha, isolate=mode)
    options.add_host_plugin(Wraps())

    with pytest.raises(epctx.InvalidArgument, match="Wraps wraps hooks") as raised:
        epctx.InferenceSession(source(tmp_path), options, registry=registry_of(Alpha))

    assert "epctx.host_plugins" in raised.value.hint


@pytest.mark.parametrize("mode", ["compile", "all"])
def test_a_host_plugin_is_found_in_any_module_that_has_it(tmp_path, monkeypatch, mode):
    """Its class may be a library's."""
    (tmp_path / "a_library.py").write_text(
        "from epctx_core.errors import Fail\n"
        "from epctx_core.plugin import hookimpl\n"
        "class Refuses:\n"
        "    @hookimpl(wrapper=True)\n"
        "    def compile(self):\n"
        "        yield\n"
        "        raise Fail('refused by the plugin.')\n"
    )
    (tmp_path / "an_app.py").write_text(
        "from a_library import Refuses\nrefuses = Refuses()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = options_for(Alpha, isolate=mode)
    options.add_host_plugin(importlib.import_module("an_app").refuses)

    with pytest.raises(epctx.Fail, match="refused by the plugin"):
        epctx.InferenceSession(source(tmp_path), options, registry=registry_of(Alpha))


class Spans:
    """Remembers spans as (category, name, facts), and which are open."""

    def __init__(self):
        self.seen, self.open = [], []

    @contextlib.contextmanager
    def span(self, name, category, facts):
        self.seen.append((category, name, dict(facts)))
        self.open.append(name)
        try:
            yield
        finally:
            self.open.remove(name)


@pytest.mark.parametrize("mode", ["", "all"])
def test_spans_of_an_ep_are_seen_wherever_it_works(tmp_path, mode):
    spans = Spans()
    options = options_for(Marking, isolate=mode)
    options.add_host_plugin(spans)

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Marking)
    ) as session:
        session.run(None, {"x": np.ones((2, 3), np.float32)})

    marked = [(name, facts) for kind, name, facts in spans.seen if kind == "ep"]
    lower, *submitted = marked
    assert lower == ("lower", {"ep": Marking.name, "target": "v73"})
    assert {name for name, _ in submitted} == {"submit"}
    assert spans.open == []


def test_a_span_that_a_dying_ep_left_open_is_closed(tmp_path):
    spans = Spans()
    options = options_for(DiesInSpan, isolate="all")
    options.add_host_plugin(spans)

    with pytest.raises(epctx.PluginError, match="its process is gone"):
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(DiesInSpan)
        )

    assert "lower" in [name for _, name, _ in spans.seen]
    assert spans.open == []


def test_a_span_that_a_thread_of_an_ep_ends_after_the_call_is_closed_with_the_call(
    tmp_path,
):
    spans = Spans()
    options = options_for(MarksInThread, isolate="all")
    options.add_host_plugin(spans)

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(MarksInThread)
    ) as session:
        time.sleep(0.5)
        session.run(None, {"x": np.ones((2, 3), np.float32)})

    assert "background" in [name for _, name, _ in spans.seen]
    assert spans.open == []


@pytest.mark.parametrize(
    "facts",
    [
        {"nodes": ["\u540d" * 300] * 1000},
        {"text": "x" * 2_000_000},
        {f"list {number}": list(range(1000)) for number in range(5)},
        {f"fact {number}": "y" * 200 for number in range(5000)},
    ],
    ids=["long names", "long text", "long lists", "many facts"],
)
def test_facts_about_a_span_are_shortened_until_a_host_takes_them(tmp_path, facts):
    spans = Spans()
    options = options_for(
        MarksWith, isolate="all", provider_options={"facts": json.dumps(facts)}
    )
    options.add_host_plugin(spans)

    epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(MarksWith)
    ).close()

    (seen,) = (shown for kind, _, shown in spans.seen if kind == "ep")
    assert set(seen) - {"ep"} <= set(facts)
    assert len(seen) > 1
    assert spans.open == []


def test_an_isolated_ep_that_nobody_observes_sends_no_spans(tmp_path):
    with epctx.InferenceSession(
        source(tmp_path),
        options_for(TellsOfSpans, isolate="all"),
        registry=registry_of(TellsOfSpans),
    ) as session:
        (result,) = session.run(None, {"x": np.ones((2, 3), np.float32)})

    assert result.shape == (2, 3)


@pytest.mark.parametrize("isolate", ["compile", "all"])
def test_a_model_that_is_missing_is_said_to_be_missing(tmp_path, isolate):
    options = options_for(Alpha, isolate=isolate)

    with pytest.raises(epctx.NoSuchFile, match="there is no model file"):
        epctx.InferenceSession(
            tmp_path / "none.onnx", options, registry=registry_of(Alpha)
        )


@pytest.mark.parametrize("isolate", ["", "compile"])
@pytest.mark.parametrize("raised", [ValueError("full"), OSError("full"), EOFError()])
def test_what_a_write_callback_raises_is_its_own_fault(tmp_path, isolate, raised):
    def write(_name, _data):
        raise raised

    compiler = epctx.ModelCompiler(
        options_for(Alpha, isolate=isolate),
        source(tmp_path),
        registry=registry_of(Alpha),
    )
    compiler.set_ep_context_data_write_func(write)

    with pytest.raises(epctx.Fail, match="write callback raised") as caught:
        compiler.compile_to_file(tmp_path / "m_ctx.onnx")

    assert caught.value.__cause__ is raised


@pytest.mark.parametrize("shape", [(2, 3), (1, 3), (4, 3), (3,)])
def test_a_shape_that_a_model_only_declares_is_that_of_the_run(shape):
    model = onnx.parser.parse_model(DECLARED).SerializeToString()
    x = np.arange(np.prod(shape), dtype=np.float32)

    with epctx.InferenceSession(model, options_for(isolate="all")) as session:
        feeds = {"x": x, "shape": np.array(shape)}
        (result,) = session.run(None, feeds)

    np.testing.assert_array_equal(result, x.reshape(shape))


def test_groups_of_two_folders_that_options_drive_end_one_by_one(tmp_path):
    source(tmp_path)
    for name in "ab":
        (tmp_path / name).mkdir()

    def compile_member(folder, model, *, is_last):
        options = options_for(
            PatientAtB,
            share_ep_contexts=1,
            stop_share_ep_contexts=int(is_last),
        )
        compiler = epctx.ModelCompiler(
            options, tmp_path / "m.onnx", registry=registry_of(PatientAtB)
        )
        compiler.compile_to_file(tmp_path / folder / model)

    for name in "ab":
        compile_member(name, "first_ctx.onnx", is_last=False)
    for name in "ab":
        compile_member(name, "last_ctx.onnx", is_last=True)

    models = sorted(tmp_path.glob("*/*_ctx.onnx"))
    assert len(models) == 4
    for model in models:
        epctx.InferenceSession(model, registry=registry_of(PatientAtB)).close()


def test_a_process_that_the_host_forked_has_children_of_its_own(tmp_path):
    options = options_for(Alpha, isolate="all", share_ep_contexts=1)
    model = source(tmp_path)
    registry = registry_of(Alpha)

    with epctx.InferenceSession(model, options, registry=registry) as session:
        first = os.fork()
        if first == 0:
            with epctx.InferenceSession(model, options, registry=registry):
                os._exit(children() == set())
        _, status = os.waitpid(first, 0)
        (result,) = session.run(None, {"x": example()})

    assert os.waitstatus_to_exitcode(status) == 0
    assert np.isfinite(result).all()


def test_a_group_finds_relative_paths_where_the_host_is(tmp_path, monkeypatch):
    for name in "cd":
        (tmp_path / name).mkdir()
        saved(chain(["Relu", "Add"]), tmp_path / name / f"{name}.onnx")

    with epctx.ShareGroup(tmp_path / "out", registry=registry_of(PatientAtB)) as group:
        for name in "cd":
            monkeypatch.chdir(tmp_path / name)
            group.compile(f"{name}.onnx", options_for(PatientAtB))
        group.finish()

    made = sorted(path.name for path in (tmp_path / "out").glob("*.onnx"))
    assert made == ["c_ctx.onnx", "d_ctx.onnx"]


def test_a_group_that_is_discarded_in_its_callback_ends_its_compile(
    tmp_path, temporary
):
    def discard(stage, _done, _total):
        if stage == "partition":
            group.discard()

    group = epctx.ShareGroup(
        tmp_path / "out", progress=discard, registry=registry_of(PatientAtB)
    )
    with nothing_left(temporary), pytest.raises(epctx.Fail, match="in a callback"):
        group.compile(source(tmp_path), options_for(PatientAtB))
