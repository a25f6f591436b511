"""`epctx merge`, `extract`, `embed`, `externalize` and `diff`."""

from __future__ import annotations

import onnx
import pytest
from support.cli_fixtures import on_a_terminal

NEG = """<ir_version: 8, opset_import: ["" : 17]> first (float[2] x) => (float[2] h)
{ [one] h = Neg(x) }"""
EXP = """<ir_version: 8, opset_import: ["" : 17]> second (float[2] h) => (float[2] y)
{ [two] y = Exp(h) }"""


@pytest.fixture
def pair(model):
    """Two plain models; the second goes on from the first's output."""
    return model(NEG, "first.onnx"), model(EXP, "second.onnx")


def operators(path):
    return [node.op_type for node in onnx.load(path).graph.node]


def test_merge_lists_what_it_wrote(epctx, pair, tmp_path):
    said = epctx("merge", *pair, "-o", tmp_path / "whole.onnx")

    assert said.code == 0
    assert said.out.startswith(f"wrote {tmp_path / 'whole.onnx'}")
    assert operators(tmp_path / "whole.onnx") == ["Neg", "Exp"]


def test_the_json_of_a_merge(epctx, pair, tmp_path):
    answer = epctx("merge", *pair, "-o", tmp_path / "whole.onnx", "--json").json

    (file,) = answer["files"]
    assert (file["name"], file["how"]) == ("whole.onnx", "written")
    assert file["bytes"] == (tmp_path / "whole.onnx").stat().st_size
    assert answer["notes"] == []


def test_merge_joins_an_output_to_several_inputs(epctx, pair, model, tmp_path):
    third = model(EXP.replace("(float[2] h)", "(float[2] g)", 1)
                  .replace("Exp(h)", "Abs(g)").replace(" y", " z"), "third.onnx")  # fmt: skip

    said = epctx(
        "merge", *pair, third, "-o", tmp_path / "whole.onnx",
        "--join", "first.h=second.h", "--join", "first.h=third.g",
    )  # fmt: skip

    assert said.code == 0, said.err
    graph = onnx.load(tmp_path / "whole.onnx").graph
    assert [value.name for value in graph.input] == ["x"]
    assert [value.name for value in graph.output] == ["y", "z"]


def test_merge_gives_prefixes(epctx, pair, tmp_path):
    epctx("merge", *pair, "-o", tmp_path / "whole.onnx", "--prefix", "second=b/")

    graph = onnx.load(tmp_path / "whole.onnx").graph
    assert [value.name for value in graph.input] == ["x", "b/h"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--join", "first.h"], "is not of the form A.OUT=B.IN"),
        (["--join", "first.h=second.x"], "second.onnx has no input 'x'"),
        (["--prefix", "third=b"], "no model is called 'third'"),
    ],
)
def test_a_wrong_argument_of_merge_is_explained(epctx, pair, tmp_path, arguments, said):
    refused = epctx("merge", *pair, "-o", tmp_path / "whole.onnx", *arguments)

    assert refused.code == 2
    assert said in " ".join(refused.err.split())
    assert not (tmp_path / "whole.onnx").exists()


def test_extract_by_values_and_by_node(epctx, pair, tmp_path):
    whole = tmp_path / "whole.onnx"
    epctx("merge", *pair, "-o", whole)

    by_values = epctx("extract", whole, "-o", tmp_path / "a.onnx", "--outputs", "h")
    by_node = epctx("extract", whole, "-o", tmp_path / "b.onnx", "--node", "two")

    assert (by_values.code, by_node.code) == (0, 0)
    assert operators(tmp_path / "a.onnx") == ["Neg"]
    assert operators(tmp_path / "b.onnx") == ["Exp"]


def test_extract_of_an_unknown_node_names_those_that_are_there(
    epctx, compiled, tmp_path
):
    said = epctx("extract", compiled, "-o", tmp_path / "a.onnx", "--node", "none")

    assert said.code == 2
    assert "Its EPContext nodes are QNNExecutionProvider_" in " ".join(said.err.split())


def test_a_payload_goes_in_and_out(epctx, compiled, tmp_path):
    inside, outside = tmp_path / "a" / "inside.onnx", tmp_path / "b" / "resnet_ctx.onnx"

    embedded = epctx("embed", compiled, "-o", inside, "--json").json
    external = epctx("externalize", inside, "-o", outside, "--json").json

    assert [file["name"] for file in embedded["files"]] == ["inside.onnx"]
    assert [file["name"] for file in external["files"]] == [
        "resnet_ctx.onnx",
        "resnet_qnn.bin",
    ]
    assert epctx("verify", outside).code == 0
    binary = compiled.with_name("resnet_qnn.bin").read_bytes()
    assert (tmp_path / "b" / "resnet_qnn.bin").read_bytes() == binary


def test_diff_of_a_model_and_itself_is_empty(epctx, compiled):
    said = epctx("diff", compiled, compiled)

    assert (said.code, said.out) == (0, "no differences.\n")


def test_diff_lists_few_differences_of_a_part_without_v(epctx, tmp_path):
    for name, operator in (("a", "Relu"), ("b", "Neg")):
        model = onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 17]> g (float[2] v0) => (float[2] v30)'
            f"{{ {' '.join(f'v{i + 1} = {operator}(v{i})' for i in range(30))} }}"
        )
        onnx.save(model, tmp_path / f"{name}.onnx")
    command = ("diff", tmp_path / "a.onnx", tmp_path / "b.onnx")

    said, all_of_it = epctx(*command), epctx(*command, "-v")

    assert said.out.count("\nnode ") + said.out.startswith("node ") == 20
    assert "… and 10 nodes more; -v shows all." in said.out
    assert all_of_it.out.count("+ Neg(") == 30
    assert said.out.endswith("30 differences.\n")


def test_diff_says_what_each_model_has(epctx, pair):
    said = epctx("diff", *pair)

    assert said.code == 1
    assert "node one\n  - Neg(x) -> h\nnode two\n  + Exp(h) -> y\n" in said.out
    answer = epctx("diff", *pair, "--json").json
    assert {each["part"] for each in answer["differences"]} == {
        "input",
        "output",
        "node",
    }


@pytest.mark.parametrize("command", ["embed", "externalize", "extract", "merge"])
def test_a_missing_model_is_wrong_usage(epctx, command, tmp_path):
    further = {"extract": ["--outputs", "y"], "merge": [tmp_path / "other.onnx"]}

    said = epctx(
        command, tmp_path / "none.onnx", "-o", tmp_path / "out.onnx",
        *further.get(command, []),
    )  # fmt: skip

    assert said.code == 2
    assert "there is no model" in said.err


def test_commands_run_as_processes(process, pair, tmp_path):
    said = process("merge", *pair, "-o", "out/whole.onnx", "--json")

    assert said.code == 0, said.err
    assert said.json["files"][0]["name"] == "whole.onnx"
    assert (tmp_path / "out" / "whole.onnx").is_file()


def test_errors_fit_a_narrow_terminal(pair, tmp_path):
    code, shown = on_a_terminal(
        "merge", *pair, "-o", tmp_path / "w.onnx", "--prefix", "third=b", width=80
    )

    assert code == 2
    lines = [line for line in shown.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 80
