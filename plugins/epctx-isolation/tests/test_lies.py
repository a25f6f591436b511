"""Answers of a child that are well-formed and wrong: each is one typed error, never a
result.
"""

from __future__ import annotations

import json

import pytest
from support.faulty_eps import Faulty
from support.isolation import compiled, nothing_left, options_for, registry_of, source
from support.small_models import example

import epctx_core as epctx

HUGE = 10**300


def lying(hook, result):
    return {"hook": hook, "answer": json.dumps({"result": result})}


def array(*shape, type="float32", number=0):  # noqa: A002 - the message's own names
    return {"array": number, "type": type, "shape": list(shape)}


DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize(
    "result",
    [
        None,
        5,
        [],
        [[], []],
        [[array(2, 3), array(2, 3)], [0, 0]],
        [[array(3, 2)], [0]],
        [[array(1, 3)], [0]],
        [[array()], [0]],
        [[array(0, 3)], [0]],
        [[array(1 << 62, 4)], [0]],
        [[array(0, 1 << 62)], [0]],
        [[array(1 << 20, 1 << 20)], [0]],
        [[array(2, -3)], [0]],
        [[array(2, 3)], [1 << 40]],
        [[array(2, 3)], [-1]],
        [[array(2, 3)], [HUGE]],
        [[array(2, 3)], []],
        [[array(2, 3, number=-1)], [0]],
        [[array(2, 3, type="int64")], [0]],
        [[array(2, 3, type="object")], [0]],
        [[array(2, 3, type="text")], [0]],
        [[array(2, 3, type=5)], [0]],
        [[{"list": [array(2, 3)]}], [0]],
        [[{"keys": [1, 2], "items": [3]}], [0]],
        [[{}], [0]],
        [["text"], []],
        [[DEEP], []],
        {"0": 1},
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_run_gives_what_the_model_says_or_an_error(tmp_path, temporary, result):
    options = options_for(Faulty, isolate="all", provider_options=lying("run", result))

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
        pytest.raises(epctx.PluginError) as caught,
    ):
        session.run(None, {"x": example()})

    assert caught.value.ep == Faulty.name
    assert caught.value.hook == "run"


def test_an_answer_without_a_result_is_an_error(tmp_path, temporary):
    options = options_for(
        Faulty, isolate="all", provider_options={"hook": "run", "answer": "{}"}
    )

    with (
        nothing_left(temporary),
        epctx.InferenceSession(
            source(tmp_path), options, registry=registry_of(Faulty)
        ) as session,
        pytest.raises(epctx.PluginError, match="invalid message"),
    ):
        session.run(None, {"x": example()})


REPORT = {
    "output": "m_ctx.onnx",
    "folder": "out",
    "outputs": [],
    "partitions": [],
    "total_nodes": 5,
    "inside_nodes": 0,
    "assignments": {},
    "refusals": [],
    "timings": {},
    "required_files": [],
    "delivered": [],
    "source_files": [],
    "kept_nodes": [],
    "skipped_providers": [],
    "providers": [],
    "folded_nodes": 0,
    "contradictions": [],
    "warnings": [],
}
"""A report without a fault, of which each case changes one field."""
CASES = [
    None,
    5,
    [],
    {},
    {"number": 1},
    {"number": -1, "facts": REPORT},
    {"number": HUGE, "facts": {}},
    *[
        {"number": 1, "facts": report}
        for report in (
            5,
            DEEP,
            {},
            {**REPORT, "more": 1},
            {**REPORT, "output": 5},
            {**REPORT, "outputs": {}},
            {**REPORT, "outputs": [5]},
            {**REPORT, "outputs": [{"path": "a", "bytes": "b", "digest": "c"}]},
            {**REPORT, "partitions": [{"name": "n"}]},
            {**REPORT, "total_nodes": 1.5},
            {**REPORT, "total_nodes": True},
            {**REPORT, "assignments": []},
            {**REPORT, "assignments": {"A": "5"}},
            {**REPORT, "timings": {"read": "fast"}},
            {**REPORT, "providers": [{"state": "NO SUCH STATE"}]},
            {**REPORT, "warnings": "w"},
            {**REPORT, "warnings": [["w"]]},
        )
    ],
]


@pytest.mark.parametrize("hook", ["get_capability", "get_ep_context_nodes"])
@pytest.mark.parametrize("result", CASES, ids=lambda value: repr(value)[-60:])
def test_a_compile_after_a_wrong_report_is_one_error_and_writes_nothing(
    tmp_path, temporary, hook, result
):
    options = options_for(Faulty, provider_options=lying(hook, result))

    with nothing_left(temporary), pytest.raises(epctx.PluginError) as caught:
        compiled(tmp_path / "out", source(tmp_path), Faulty, options)

    assert caught.value.ep == Faulty.name
    assert caught.value.hook == hook
    assert "it sent an invalid message" in caught.value.message
    assert list((tmp_path / "out").iterdir()) == []


def value(elem_type):
    """Return what a child tells of an input or output."""
    tensor_type = {"elem_type": elem_type, "shape": [2, 3], "is_proven": True}
    return {
        "name": "x",
        "type": "tensor(float)",
        "shape": [2, 3],
        "tensor_type": tensor_type,
    }


RECORD = {
    "name": Faulty.name,
    "sources": [Faulty.name],
    "distribution": None,
    "version": None,
    "vendor": None,
    "availability": {},
    "state": "LOADED",
    "reason": "",
    "entry_point": "",
    "traceback": None,
    "simulated": None,
    "finder": None,
    "passed_over": False,
}


def facts(**changes):
    """Return what a child tells of a session, with changes."""
    metadata = {
        "producer_name": "",
        "graph_name": "",
        "domain": "",
        "description": "",
        "graph_description": "",
        "version": 0,
        "custom_metadata_map": {},
    }
    placement = {
        "nodes": 5,
        "folded_nodes": 0,
        "inside_nodes": 0,
        "eps": [],
        "left": [],
    }
    return {
        "metadata": metadata,
        "inputs": [],
        "defaults": [],
        "outputs": [],
        "placement": placement,
        "assigned": None,
        "engine": "e",
        "records": [],
        "options": {},
        **changes,
    }


@pytest.mark.parametrize(
    "result",
    [
        None,
        {},
        {"number": 1},
        {"number": 1, "facts": {}},
        {"number": "1", "facts": facts()},
        {"number": 1, "facts": facts(engine=5)},
        {"number": 1, "facts": facts(metadata=5)},
        {"number": 1, "facts": facts(inputs=[{"name": "x"}])},
        {"number": 1, "facts": facts(placement={"nodes": 5})},
        {"number": 1, "facts": facts(assigned=[5])},
        {"number": 1, "facts": facts(options={"A": {"k": 5}})},
        {"number": 1, "facts": facts(records=[DEEP])},
        {"number": 1, "facts": facts(records=[RECORD])},
        {"number": 1, "facts": facts(inputs=[value(9999)])},
        {"number": 1, "facts": facts(outputs=[value(0)])},
        {"number": 1, "facts": facts(defaults=[value(-1)])},
        {"number": 1, "facts": facts(outputs=[value(HUGE)])},
    ],
    ids=lambda value: repr(value)[-60:],
)
def test_a_session_after_a_wrong_description_is_one_error(tmp_path, temporary, result):
    lie = lying("compile", result)
    options = options_for(Faulty, isolate="all", provider_options=lie)

    with nothing_left(temporary), pytest.raises(epctx.PluginError) as caught:
        epctx.InferenceSession(source(tmp_path), options, registry=registry_of(Faulty))

    assert caught.value.ep == Faulty.name
    assert "it sent an invalid message" in caught.value.message


def test_a_session_after_a_description_without_a_fault_is_one(tmp_path):
    right = facts(inputs=[value(1)], records=[RECORD], options={Faulty.name: {}})
    lie = lying("compile", {"number": 1, "facts": right})
    options = options_for(Faulty, isolate="all", provider_options=lie)

    with epctx.InferenceSession(
        source(tmp_path), options, registry=registry_of(Faulty)
    ) as session:
        assert session.engine == "e"
        assert session.get_inputs()[0].name == "x"


def test_a_compile_after_a_report_without_a_fault_has_it(tmp_path):
    nothing_written = {**REPORT, "output": None, "folder": None}
    lie = lying("get_capability", {"number": 1, "facts": nothing_written})

    report = epctx.ModelCompiler(
        options_for(Faulty, provider_options=lie),
        source(tmp_path),
        registry=registry_of(Faulty),
    ).compile_to_file(tmp_path / "m_ctx.onnx")

    assert report.total_nodes == REPORT["total_nodes"]
