"""A damaged, foreign or hostile `.ort` file is one typed error that names the format,
and leaves nothing.
"""

from __future__ import annotations

import flatbuffers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ort_format.sources import NAMES
from ort_format.stored import NEWEST, OLD, ort_file
from support.command_line import main

import epctx_core as epctx
from epctx_core.errors import EpctxError, InternalError, InvalidGraph, InvalidProtobuf

CPU = ["CPUExecutionProvider"]


def refused(data):
    """Load a model; return the error, None if it loads."""
    try:
        epctx.InferenceSession(data, providers=CPU).close()
        epctx.inspect_model(data)
    except EpctxError as error:
        assert not isinstance(error, InternalError), error
        return error
    return None


def with_version(data, version):
    """Return an `.ort` file that says it has another version of one digit."""
    at = max(
        data.rfind(b"\x01\x00\x00\x00" + digit) for digit in (b"4\0", b"5\0", b"6\0")
    )
    return data[: at + 4] + version + data[at + 5 :]


@pytest.mark.parametrize("version", [b"7", b"9", b"0", b"x"])
def test_an_unknown_version_is_refused_by_name(version):
    error = refused(with_version(ort_file("loop"), version))

    assert isinstance(error, InvalidProtobuf)
    assert f"version {version.decode()!r}" in error.message
    assert "1 to 6" in error.message


@pytest.mark.parametrize("version", [*OLD, NEWEST])
def test_a_truncated_file_is_refused_at_every_length(version):
    data = ort_file("loop", version)

    for length in range(8, len(data), 97):
        error = refused(data[:length])
        assert isinstance(error, InvalidProtobuf)
        assert "ONNX Runtime's format" in error.message


@given(
    st.sampled_from(["branches", "qdq", "integers"]),
    st.sampled_from([*OLD, NEWEST]),
    st.lists(
        st.tuples(st.integers(8, 1 << 16), st.integers(0, 255)), min_size=1, max_size=12
    ),
)
@settings(max_examples=100, deadline=None)
def test_overwritten_bytes_give_an_error_of_a_type_or_a_model(name, version, changes):
    data = bytearray(ort_file(name, version))
    for at, byte in changes:
        data[8 + at % (len(data) - 8)] = byte

    refused(bytes(data))


def test_a_table_named_again_and_again_is_refused_before_it_fills_memory():
    """60,000 inputs of a graph all have the same name, which is long: 240 kB would
    become 3.6 GB.
    """
    builder = flatbuffers.Builder(0)
    text = builder.CreateString("a" * 60_000)
    builder.StartVector(4, 60_000, 4)
    for _ in range(60_000):
        builder.PrependUOffsetTRelative(text)
    names = builder.EndVector()
    version = builder.CreateString("6")
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(5, names, 0)  # Graph.inputs
    graph = builder.EndObject()
    builder.StartObject(10)
    builder.PrependUOffsetTRelativeSlot(7, graph, 0)  # Model.graph
    model = builder.EndObject()
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, version, 0)
    builder.PrependUOffsetTRelativeSlot(1, model, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"ORTM")

    error = refused(bytes(builder.Output()))

    assert isinstance(error, InvalidProtobuf)
    assert "refer to the same bytes too often" in error.message


@pytest.mark.parametrize("what", ["messages", "nodes", "names", "bodies"])
def test_the_budget_of_a_host_holds_for_its_format_too(what):
    data, one = ort_file("loop"), epctx.SessionOptions()
    one.input_budget = epctx.InputBudget(**{what: 1})

    with pytest.raises(InvalidGraph, match=f"more than 1 {what}"):
        epctx.inspect_model(data, budget=one.input_budget)
    with pytest.raises(InvalidGraph, match=f"more than 1 {what}"):
        epctx.InferenceSession(data, one, providers=CPU)
    (finding,) = epctx.verify_model(data, one).findings
    assert finding.code == "budget-exceeded"


def test_every_stored_file_is_whole():
    assert [ort_file(name, version)[4:8] for version in OLD for name in NAMES] == [
        b"ORTM"
    ] * 16


def test_a_command_ends_with_code_2_and_leaves_nothing(tmp_path, capsys):
    model = tmp_path / "cut.ort"
    model.write_bytes(ort_file("loop")[:-900])

    for words in (["run"], ["compile", "--ep", "QNN"], ["inspect"], ["convert"]):
        target = [str(tmp_path / "out.onnx")] if words == ["convert"] else []
        assert main([words[0], str(model), *target, *words[1:]]) == 2
        assert "ONNX Runtime's format" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["cut.ort"]
