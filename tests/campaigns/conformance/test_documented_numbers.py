"""What a run has to show is counted from its results, and stands in the page between
its markers.
"""

from __future__ import annotations

import onnx
import pytest
from conformance import documented_numbers
from conformance.documented_numbers import summarise, write
from epctx_conformance.cases.case import Case
from epctx_onnxruntime.checking.result import Result


def case(name, text="agraph (float[4] x) => (float[4] y) { y = Relu(x) }"):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>{text}')
    return Case(name=name, model=model.SerializeToString, data=list)


SUITES = {
    "one": {
        "a": case("a"),
        "b": case("b", "agraph (float[4] x) => (float[3] y) { y = Relu(x) }"),
    },
    "two": {"c": case("c")},
}
RESULTS = [
    Result(case="a", route="onnxruntime.direct", outcome="passed"),
    Result(case="b", route="onnxruntime.direct", outcome="raised", kind="Fail"),
    Result(case="a", route="cpu.direct", outcome="wrong", kind="aliasing"),
    Result(case="b", route="cpu.direct", outcome="refused", kind="InvalidGraph"),
    Result(case="c", route="cpu.direct", outcome="refused", kind="InvalidGraph"),
    Result(case="a", route="greedy.file", outcome="differs", claimed=2),
    Result(case="c", route="greedy.file", outcome="refused", kind="PluginError"),
    Result(case="c", route="qnn.file", outcome="unclaimed"),
    Result(case="c", route="qnn.embed", outcome="hung"),
]


def test_a_summary_counts_what_must_not_be():
    assert summarise(RESULTS, SUITES) == [
        "1 cases that onnxruntime passes are failed by the CPU EP (`cpu.direct`).",
        "1 of 1 runs over context models have other bits than the direct ones.",
        "1 `PluginError`s on the routes of `greedy`.",
        "1 of 2 cases refused as `InvalidGraph` are valid by ONNX's full check.",
        "1 second runs changed an input or the first run's outputs.",
    ]


def test_numbers_replace_those_between_their_markers_and_nothing_else(
    tmp_path, monkeypatch
):
    page = tmp_path / "page.md"
    monkeypatch.setitem(documented_numbers.PAGES, "here", page)
    page.write_text(
        "before\n<!-- here: begin -->\nold\n<!-- here: end -->\nafter\n<!-- there: "
        "begin -->\n<!-- there: end -->"
    )

    write(RESULTS, SUITES, block="here")
    once = page.read_text()
    write(RESULTS, SUITES, block="here")

    assert page.read_text() == once
    assert once.startswith("before\n<!-- here: begin -->\nonnx ")
    assert once.endswith(
        "\n<!-- here: end -->\nafter\n<!-- there: begin -->\n<!-- there: end -->"
    )
    assert "\nSuite `two`, 1 cases:\n" in once
    assert "| `onnxruntime.direct` | 1 | 0 | 0 | 1 | 0 | 0 | 0 |\n" in once
    assert (
        "| `qnn.file` | 0 | 0 | 0 | 0 | 0 | 0 | 1 |\n| `qnn.embed` | 0 | 0 | 0 | "
        "0 | 1 | 0 | 0 |\n"
    ) in once
    assert "old" not in once
    with pytest.raises(ValueError, match="nowhere"):
        write(RESULTS, SUITES, block="nowhere")


@pytest.mark.parametrize(("block", "page"), documented_numbers.PAGES.items())
def test_each_block_is_on_its_page(block, page):
    text = page.read_text("utf-8")

    assert f"<!-- {block}: begin -->" in text
    assert f"<!-- {block}: end -->" in text


def test_a_page_without_the_markers_of_its_block_is_refused(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("no markers")
    monkeypatch.setitem(documented_numbers.PAGES, "here", page)

    with pytest.raises(ValueError, match=r"page\.md lacks the block 'here'"):
        write(RESULTS, SUITES, block="here")
