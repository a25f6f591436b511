"""Input budgets: the size of a decoded model is counted before anything is decoded, and
a host sets the limit.
"""

from __future__ import annotations

import onnx
import pytest
from support.growing import Growable
from support.small_models import chain, saved

import epctx_core as epctx

EMPTY_NODES, EMPTY_TENSORS = b"\x0a\x00", b"\x2a\x00"
"""Entries of a graph that say nothing: two bytes in a file, hundreds in memory."""


def field(number, content):
    """A field of bytes as protobuf writes it."""
    out = bytes([number << 3 | 2])
    length = len(content)
    while length >= 128:
        out += bytes([length & 127 | 128])
        length >>= 7
    return out + bytes([length]) + content


def with_graph_bytes(extra):
    """A good model with more in its graph."""
    model = chain(["Relu"])
    graph = model.graph.SerializeToString() + extra
    model.ClearField("graph")
    return model.SerializeToString() + field(7, graph)


def with_budget(**bounds):
    """Session options with a budget."""
    options = epctx.SessionOptions()
    options.input_budget = epctx.InputBudget(**bounds)
    return options


def refusals(model, **bounds):
    """Return the outcomes of inspect, verify and load under a budget."""
    options = with_budget(**bounds)
    with pytest.raises(epctx.InvalidGraph) as inspected:
        epctx.inspect_model(model, budget=options.input_budget)
    with pytest.raises(epctx.InvalidGraph) as loaded:
        epctx.InferenceSession(model, options)
    (finding,) = epctx.verify_model(model, options).findings
    assert finding.code == "budget-exceeded"
    assert inspected.value.message == loaded.value.message == finding.message
    return str(loaded.value)


@pytest.mark.parametrize("empty", [EMPTY_NODES, EMPTY_TENSORS])
def test_megabytes_of_empty_messages_are_refused_before_they_are_decoded(empty):
    model = with_graph_bytes(empty * 3_150_000)

    text = refusals(model)

    assert "less than 4 bytes for each" in text
    assert "input_budget" in text


def test_a_host_that_trusts_a_file_raises_the_bound(tmp_path):
    model = with_graph_bytes(b"\x82\x01\x00" * 300_000)

    text = refusals(model)
    assert "262,144 messages" in text

    assert (
        epctx.inspect_model(
            model, budget=epctx.InputBudget(bytes_per_message=1)
        ).other_nodes
        == 1
    )


GROUP = b"\xa3\x06", b"\xa4\x06"
"""Marks around a group of number 100; no message of ONNX has groups, and protobuf keeps
what lies between unread.
"""


def test_a_group_that_protobuf_skips_hides_nothing_behind_it():
    hiding = GROUP[0] + field(7, b"\x0a\x7f") + GROUP[1]

    text = refusals(hiding + with_graph_bytes(EMPTY_NODES * 400_000))

    assert "262,144 messages" in text


def test_a_number_of_megabytes_is_no_number():
    """Adding up its bits takes minutes."""
    with pytest.raises(epctx.InvalidProtobuf):
        epctx.inspect_model(b"\xfa" * 3_000_000)


def counted(model):
    """Count messages, nodes, names and subgraphs of a model by onnx's own reading."""
    counts = {"messages": 0, "nodes": 0, "names": 0, "bodies": 0}
    pending = [model]
    while pending:
        message = pending.pop()
        for each, value in message.ListFields():
            values = value if each.is_repeated else [value]
            if each.message_type is not None:
                counts["messages"] += len(values)
                counts["nodes"] += len(values) * (each.message_type.name == "NodeProto")
                counts["bodies"] += len(values) * (
                    each.message_type.name == "GraphProto"
                )
                pending.extend(values)
            elif each.type == each.TYPE_STRING:
                counts["names"] += len(values)
    return counts


@pytest.mark.parametrize("what", ["messages", "nodes", "names", "bodies"])
def test_each_bound_is_exact(tmp_path, what):
    path = Growable(tmp_path, loadable=True).write(3)
    has = counted(onnx.load(path, load_external_data=False))[what]

    epctx.inspect_model(path, budget=epctx.InputBudget(**{what: has}))
    assert f"more than {has - 1:,} {what}" in refusals(path, **{what: has - 1})


def test_entries_of_the_manifest_are_bounded(tmp_path):
    path = Growable(tmp_path, loadable=True).write(500, "pending")

    epctx.inspect_model(path, budget=epctx.InputBudget(manifest_entries=1000))
    with pytest.raises(epctx.InvalidGraph, match="more than 100 entries"):
        epctx.inspect_model(path, budget=epctx.InputBudget(manifest_entries=100))
    report = epctx.verify_model(path, with_budget(manifest_entries=100))
    assert "manifest-damaged" in [finding.code for finding in report.findings]


def test_the_cache_reads_a_model_by_the_hosts_budget(tmp_path):
    model = with_graph_bytes(b"\x82\x01\x00" * 300_000)

    with pytest.raises(epctx.InvalidGraph, match="262,144 messages"):
        epctx.load_or_compile(model, epctx.SessionOptions(), tmp_path / "cache")
    with pytest.raises(epctx.InvalidGraph, match="more than 1 nodes"):
        epctx.load_or_compile(
            chain(["Relu", "Relu"]).SerializeToString(),
            with_budget(nodes=1),
            tmp_path / "cache",
        )
    epctx.load_or_compile(
        model, with_budget(bytes_per_message=1), tmp_path / "cache"
    ).close()


@pytest.mark.parametrize("wrong", [0, -1, "many", True, 1.5])
def test_a_bound_is_a_whole_number_above_0(wrong):
    with pytest.raises(epctx.InvalidArgument, match="nodes"):
        epctx.InputBudget(nodes=wrong)


@pytest.mark.parametrize("cut", [1, 2, 5, 40])
def test_a_model_that_ends_too_early_is_called_damaged_and_not_large(tmp_path, cut):
    data = saved(chain(["Relu"] * 20), tmp_path / "m.onnx").read_bytes()[:-cut]

    with pytest.raises((epctx.InvalidProtobuf, epctx.InvalidGraph)) as caught:
        epctx.inspect_model(data, budget=epctx.InputBudget(nodes=30))
    assert "counted" not in str(caught.value)
