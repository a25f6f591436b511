"""Reports of compiling, inspecting and verifying as text, and as HTML in a notebook."""

from __future__ import annotations

import re

import pytest
from onnx import helper
from support.sim_eps import QNN, with_eps
from support.small_models import chain, finished, saved, tensor

import epctx_core as epctx

HOSTILE = "<script>alert('&')</script>"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A report of a compile."""
    path = saved(
        chain(["Relu", "Add", "Atanh"]), tmp_path_factory.mktemp("m") / "m.onnx"
    )
    return epctx.ModelCompiler(with_eps(QNN), path).compile_to_file()


def split_lines(report):
    """Return the words of each line, which columns of the text keep apart."""
    return [re.split(r" {2,}", line) for line in str(report).splitlines()]


def test_text_of_a_compile_lists_partitions_eps_and_files(compiled):
    (partition,) = compiled.partitions
    lines = split_lines(compiled)

    assert lines[0] == ["m_ctx.onnx: compiled"]
    assert [partition.name, QNN, "2"] in lines
    assert [QNN, "2"] in lines
    assert ["CPUExecutionProvider", "1"] in lines
    (provider,) = compiled.providers
    assert [QNN, provider.distribution, provider.version, "True"] in lines
    for file in compiled.outputs:
        assert [file.path, str(file.bytes)] in lines


def test_text_of_a_compile_says_that_nothing_was_compiled(tmp_path):
    path = saved(chain(["Atanh"]), tmp_path / "m.onnx")

    report = epctx.ModelCompiler(with_eps(QNN), path).compile_to_file()

    assert str(report).startswith("m_ctx.onnx: nothing was compiled\n")


def test_text_of_a_description_lists_nodes_with_their_payloads(compiled):
    info = epctx.inspect_model(compiled.folder / "m_ctx.onnx")
    (node,) = info.ep_contexts
    lines = split_lines(info)

    assert lines[0] == ["m_ctx.onnx: EPContext nodes: 1, other nodes: 1"]
    row = [node.name, QNN, node.payload_file, str(node.payload_bytes)]
    assert row in lines
    assert ["x", info.inputs["x"]] in lines


def test_text_of_a_verification_gives_the_verdict_of_the_command(compiled, tmp_path):
    path = compiled.folder / "m_ctx.onnx"
    (tmp_path / "m_ctx.onnx").write_bytes(path.read_bytes())

    right = epctx.verify_model(path, with_eps(QNN))
    broken = epctx.verify_model(tmp_path / "m_ctx.onnx", with_eps(QNN))

    assert str(right).startswith("m_ctx.onnx: ok, EPContext nodes: 1\n")
    assert str(broken).startswith("m_ctx.onnx: not-ok, EPContext nodes: 1\n")
    finding = broken.findings[0]
    assert any(
        line[:3] == ["error", finding.code, finding.node]
        for line in split_lines(broken)
    )


def test_html_has_a_row_for_each_line_of_the_text(compiled):
    page = compiled._repr_html_()

    assert page.count("<tr>") == sum(map(bool, str(compiled).splitlines()))
    assert f"<td>{QNN}</td>" in page
    assert "<th>name</th><th>ep</th><th>nodes</th>" in page


def test_names_of_a_model_are_escaped_in_html_and_stay_on_one_line_of_text(tmp_path):
    name = f"{HOSTILE}\n\x1b[2J"
    node = helper.make_node("Relu", [name], ["y"])
    path = saved(finished([node], [tensor(name)], [tensor("y")]), tmp_path / "<b>.onnx")

    info = epctx.inspect_model(path)

    assert "<script>" not in info._repr_html_()
    assert "<b>.onnx" not in info._repr_html_()
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)" in info._repr_html_()
    assert r"</script>\n\x1b[2J" in str(info)


def test_repr_stays_that_of_a_dataclass(compiled):
    assert repr(compiled).startswith("CompileReport(output=")
