"""`epctx explain`: who would take which node; a gate for builds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_kernels import KernelDef, KernelProvider, KernelRegistry

import epctx_core
from epctx_core.errors import InvalidArgument
from epctx_core.plugin import (
    ComputeCapability,
    ExecutionProvider,
    Purpose,
    Refusal,
    hookimpl,
)


def test_a_network_that_an_ep_takes_whole_passes(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "QNN", "--json")

    assert said.code == 0
    assert said.json["eps"] == ["QNNExecutionProvider"]
    assert said.json["left"] == 0
    assert {node["ep"] for node in said.json["nodes"]} == {"QNNExecutionProvider"}


def test_something_left_to_the_cpu_is_exit_1_and_the_reason_is_told(epctx, model):
    said = epctx(
        "explain", model("y = Det(x)", "det.onnx"), "--ep", "VitisAI", "--json"
    )

    (node,) = said.json["nodes"]
    assert said.code == 1
    assert said.json["left"] == 1
    assert (node["operator"], node["ep"], node["partition"]) == (
        "Det",
        "CPUExecutionProvider",
        None,
    )
    assert node["refusals"][0]["ep"] == "VitisAIExecutionProvider"
    assert node["refusals"][0]["reason"]


def test_every_node_of_the_model_is_told_once_and_in_its_order(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "VitisAI", "--ep", "QNN", "--json")

    names = [
        node.name
        for node in onnx.load(resnet.path, load_external_data=False).graph.node
    ]
    assert [node["name"] for node in said.json["nodes"]] == names


def test_what_the_first_ep_refuses_the_next_may_take(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "VitisAI", "--ep", "QNN", "--json")

    assert said.code == 0
    assert all(node["ep"] == "QNNExecutionProvider" for node in said.json["nodes"])
    assert all(
        node["refusals"][0]["ep"] == "VitisAIExecutionProvider"
        for node in said.json["nodes"]
    )


def test_an_explanation_says_what_a_compile_then_does(epctx, resnet, tmp_path):
    explained = epctx("explain", resnet.path, "--ep", "OpenVINO", "--json").json
    compiled = epctx(
        "compile",
        resnet.path,
        "--ep",
        "OpenVINO",
        "-o",
        tmp_path / "out.onnx",
        "--json",
    ).json

    by_partition = [
        [node["name"] for node in explained["nodes"] if node["partition"] == number]
        for number in range(len(compiled["partitions"]))
    ]
    assert by_partition == [
        partition["node_names"] for partition in compiled["partitions"]
    ]


def test_the_report_for_people_counts_and_gives_each_reason_once(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "VitisAI")

    assert said.code == 1
    assert f"{resnet.path}: 46 nodes, 46 left to the CPU EP" in said.out
    assert "VitisAIExecutionProvider      0" in said.out
    assert said.out.count("such as") == len(
        said.out.split("Refused:")[1].strip().split("\n\n")[0].splitlines()
    )


# QNN takes no float Mod, and no constant for the sake of one.
TWO_MODS = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2,3] x) => (float[2,3] y%s) {
  [c1] k = Constant<value = float[1] {1.0}>()
  [c2] l = Constant<value = float[1] {2.0}>()
  [relu] a = Relu(x)
  [mod1] b = Mod<fmod = 1>(a, l)
  [mod2] c = Mod<fmod = 1>(b, k)
  [last] y = Relu(c)
}
"""


def test_constants_are_counted_with_the_refused_nodes_that_read_them(epctx, model):
    said = epctx("explain", model(TWO_MODS % ""), "--ep", "QNN")

    assert said.out.split("Refused:")[1].strip().splitlines()[0] == (
        "QNNExecutionProvider: Mod: QNN does not take float here "
        "(2 nodes, such as 'mod1', and 2 that only serve such nodes)"
    )
    assert "Constant: no node" not in said.out


def test_operators_refused_for_one_reason_share_its_line_and_open_lengths_have_a_remedy(
    epctx, tmp_path
):
    source = tmp_path / "open.onnx"
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch,3] x) => (float[batch,3] y) {
      [first] a = Relu(x)
      [second] b = Sigmoid(a)
      [third] y = Relu(b)
    }
    """
    onnx.save(onnx.parser.parse_model(text), source)

    said = epctx("explain", source, "--ep", "QNN")

    assert said.out.split("Refused:")[1].strip().splitlines()[0] == (
        "QNNExecutionProvider: Relu, Sigmoid: a dimension is open, and QNN takes "
        "static shapes only (3 nodes, such as 'first')"
    )
    assert "Open dimensions of inputs: batch." in said.out
    assert "the lengths that you use: --free-dimension batch=…" in said.out
    assert epctx("explain", source, "--ep", "QNN", "--free-dimension=batch=1").code == 0


@pytest.mark.parametrize(
    ("names", "remedy"),
    [
        (
            ["p2o.0", "x::y-1", "n", "m"],
            (
                "--free-dimension p2o.0=… --free-dimension x::y-1=… "
                "--free-dimension n=… and so on"
            ),
        ),
        (["$(id)", "?"], "--free-dimension '$(id)'=… --free-dimension '?'=…"),
        (["a\nb"], "--free-dimension NAME=…"),
    ],
)
def test_the_remedy_names_open_dimensions_as_a_shell_takes_them(
    epctx, model, names, remedy
):
    path = model("y = Relu(x)")
    proto = onnx.load(path)
    for value in (*proto.graph.input, *proto.graph.output):
        del value.type.tensor_type.shape.dim[:]
        for name in names:
            value.type.tensor_type.shape.dim.add().dim_param = name
    onnx.save(proto, path)

    said = epctx("explain", path, "--ep", "QNN")

    assert f"the lengths that you use: {remedy}\n" in said.out


def test_lengths_without_a_name_have_a_remedy_of_their_own(epctx, model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "g (float[?, 3, ?] x) => (float[?, 3, ?] y) { y = Relu(x) }"
    )

    explained = epctx("explain", path, "--ep", "QNN")
    inspected = epctx("inspect", path)

    assert "Inputs have 2 open dimensions without a name" in explained.out
    assert "make_dynamic_shape_fixed IN.onnx OUT.onnx \\\n" in explained.out
    assert "Open dimensions of inputs: 2 without a name" in inspected.out
    assert epctx("inspect", path, "--json").json["unnamed_dimensions"] == 2


def test_json_keeps_the_reason_and_names_the_node_that_it_follows_from(epctx, model):
    said = epctx("explain", model(TWO_MODS % ""), "--ep", "QNN", "--json")

    refusals = {
        node["name"]: (refusal["reason"], refusal["follows"])
        for node in said.json["nodes"]
        for refusal in node["refusals"]
    }
    alone = "Constant: no node that QNN takes reads it"
    mod = "Mod: QNN does not take float here"
    assert refusals == {
        "c1": (alone, "mod2"),
        "c2": (alone, "mod1"),
        "mod1": (mod, None),
        "mod2": (mod, None),
    }


def test_verbose_says_for_each_node_which_other_it_follows_from(epctx, model):
    said = epctx("explain", model(TWO_MODS % ""), "--ep", "QNN", "-v")

    (row,) = (line for line in said.out.splitlines() if line.startswith("  c2 "))
    assert "Constant: no node that QNN takes reads it (follows from 'mod1')" in row


def test_a_constant_that_is_a_result_keeps_its_own_reason(epctx, model):
    said = epctx("explain", model(TWO_MODS % ", float[1] l"), "--ep", "QNN", "--json")

    follows = {
        node["name"]: node["refusals"][0]["follows"]
        for node in said.json["nodes"]
        if node["operator"] == "Constant"
    }
    assert follows == {"c1": "mod2", "c2": None}


def test_the_quantization_around_a_refused_operator_is_counted_with_it(epctx, model):
    path = model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,3] x) => (uint8[2,3] y)
        <float s = {0.5}, uint8 z = {0}> {
          [d] a = DequantizeLinear(x, s, z)
          [mod] b = Mod<fmod = 1>(a, a)
          [q] y = QuantizeLinear(b, s, z)
        }
        """
    )

    said = epctx("explain", path, "--ep", "VitisAI")

    refused = said.out.split("Refused:")[1].strip().splitlines()
    assert refused[0].endswith(
        "(1 node, such as 'mod', and 2 that only serve such nodes)"
    )
    assert not refused[1]


def test_a_quantizer_that_breaks_its_group_keeps_its_own_reason(tmp_path):
    class NoQuantizer(ExecutionProvider):
        name = "NoQuantizerExecutionProvider"

        @hookimpl
        def get_capability(self, graph):
            taken = [n for n in graph.nodes if n.op_type != "QuantizeLinear"]
            left = [n for n in graph.nodes if n.op_type == "QuantizeLinear"]
            return [ComputeCapability(taken), Refusal("no such scale", left)]

        @hookimpl
        def compile(self, partitions):
            raise AssertionError

    model = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (uint8[2,3] x) => (uint8[2,3] y)
        <float s = {0.5}, uint8 z = {0}> {
          [d] a = DequantizeLinear(x, s, z)
          [relu] b = Relu(a)
          [q] y = QuantizeLinear(b, s, z)
        }
        """
    )
    registry = epctx_core.Registry(entry_points=False)
    registry.register(NoQuantizer)
    options = epctx_core.SessionOptions()
    options.add_provider(NoQuantizer.name)

    explanation = epctx_core.explain_model(
        model.SerializeToString(), options, registry=registry
    )

    assert [(node.name, node.follows) for node in explanation.nodes] == [
        ("d", {}),
        ("relu", {}),
        ("q", {}),
    ]
    assert explanation.nodes[2].refusals == ((NoQuantizer.name, "no such scale"),)


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ([], 1),
        (["--fail-on-cpu"], 1),
        (["--fail-on-cpu=3"], 1),
        (["--fail-on-cpu=4"], 0),
        (["--fail-on-cpu", "5"], 0),
    ],
)
def test_fail_on_cpu_says_how_many_nodes_may_be_left_to_the_cpu(
    epctx, model, option, code
):
    said = epctx("explain", model(TWO_MODS % ""), "--ep", "QNN", *option)

    assert "6 nodes, 4 left to the CPU EP" in said.out
    assert said.code == code


def nest_conditions(levels):
    """Return the text of a model whose nodes are nearly all in If within If."""
    inside = "{name} = Tanh(x)"
    for level in range(levels):
        then, other = (inside.replace("{name}", f"{{name}}{end}") for end in "te")
        inside = (
            (
                "{name}c = Equal(n, n)\n{name} = If({name}c) <"
                f"then_branch = g{level}t () => (float[2,3] {{name}}t) {{{{ {then} }}}}, "
                f"else_branch = g{level}e () => (float[2,3] {{name}}e) {{{{ {other} }}}}>"
            )
            .replace("{{", "{")
            .replace("}}", "}")
        )
    return f"""
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[2,3] x, int64[1] n) => (float[2,3] y) {{
      {inside.replace("{name}", "y")}
    }}
    """


@pytest.mark.parametrize(("option", "code"), [("5", 1), ("21", 1), ("22", 0)])
def test_fail_on_cpu_counts_the_nodes_inside_subgraphs(epctx, model, option, code):
    path = model(nest_conditions(3))

    said = epctx("explain", path, "--ep", "QNN", "--fail-on-cpu", option)

    counts = "22 nodes, 20 of them inside subgraphs and functions"
    assert f"{path}: {counts}, 22 left to the CPU EP" in said.out
    assert said.code == code
    assert f"{path}: {counts}, no EPContext node" in epctx("inspect", path).out


def test_a_refused_if_is_told_with_the_number_of_nodes_inside(epctx, model):
    path = model(nest_conditions(3))
    page = path.with_suffix(".html")

    explained = epctx("explain", path, "--ep", "QNN")
    compiled = epctx("compile", path, "--ep", "QNN", "--allow-uncompiled")
    reported = epctx("report", path, "--ep", "QNN", "-o", page)
    answer = epctx("explain", path, "--ep", "QNN", "--json").json

    line = "If: QNN has no control flow (1 node with 20 inside, such as 'If_1')"
    for said in (explained, compiled):
        assert said.out.split("Refused:\n")[1].splitlines()[0].endswith(line)
    assert "this is in a subgraph of If (20 nodes, such as " in compiled.out
    assert "If: QNN has no control flow (20 nodes inside)." in compiled.err
    leaves = (
        "QNN leaves 21 nodes, 20 of them inside subgraphs and functions, to the CPU"
    )
    assert f"{leaves}: If: QNN has no control flow" in reported.out
    assert [node["inside"] for node in answer["nodes"]] == [0, 20]


def test_folded_nodes_are_counted_and_said_to_be_folded(epctx, model):
    path = model(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) <float[1] k = {1}, float[1] l = {2}> {
          s = Add(k, l)
          a = Relu(x)
          y = Mul(a, s)
        }
        """
    )

    said = epctx("explain", path, "--ep", "QNN")
    compiled = epctx("compile", path, "--ep", "QNN")

    assert "3 nodes, 1 of them folded, 0 left to the CPU EP" in said.out
    assert said.code == 0
    assert "3 nodes, 1 of them folded." in compiled.out


@pytest.mark.parametrize("given", ["-1", "few", "1.5"])
def test_fail_on_cpu_takes_a_whole_number_only(epctx, model, given):
    said = epctx(
        "explain", model(TWO_MODS % ""), "--ep", "QNN", f"--fail-on-cpu={given}"
    )

    assert said.code == 2
    assert f"--fail-on-cpu: {given!r} is not a whole number from 0" in said.err


def test_verbose_lists_every_node(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "QNN", "-v")

    rows = [line for line in said.out.splitlines() if "QNNExecutionProvider" in line]
    assert len(rows) >= 46


def test_nodes_that_are_compiled_already_are_not_left_to_the_cpu(epctx, compiled):
    said = epctx("explain", compiled, "--ep", "OpenVINO", "--json")

    assert said.code == 0
    assert [(node["compiled"], node["ep"]) for node in said.json["nodes"]] == [
        (True, "QNNExecutionProvider")
    ]


def test_control_flow_around_an_eps_work_is_not_left_to_the_cpu(epctx, tmp_path):
    text = """
        <ir_version: 9, opset_import: ["" : 17]>
        branches (bool c, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = yes () => (float[3] p) { p = Relu(x) },
                else_branch = no () => (float[3] q) { q = Neg(x) }
            >
        }
    """
    path = tmp_path / "branches.onnx"
    onnx.save(onnx.parser.parse_model(text), path)

    said = epctx("explain", path, "--ep", "OpenVINO", "--json")

    assert said.code == 0
    assert said.json["left"] == 0


def test_nothing_is_written(epctx, resnet):
    before = sorted(resnet.path.parent.iterdir())

    epctx("explain", resnet.path, "--ep", "QNN")

    assert sorted(resnet.path.parent.iterdir()) == before


def test_without_an_ep_there_is_nothing_to_explain(epctx, resnet):
    said = epctx("explain", resnet.path)

    assert said.code == 2
    assert "explain needs an Execution Provider. Installed: OpenVINO" in said.err


def test_a_missing_plugin_is_exit_3(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "Nobody")

    assert said.code == 3


def test_options_of_the_ep_count(epctx, resnet):
    said = epctx("explain", resnet.path, "--ep", "QNN", "-p", "QNN.htp_arch=12")

    assert said.code == 2
    assert "htp_arch" in said.err


def test_a_host_gets_the_same_explanation_from_python(epctx, resnet):
    options = epctx_core.SessionOptions()
    options.add_provider("VitisAI")
    options.add_provider("QNN")

    explanation = epctx_core.explain_model(resnet.path, options)

    said = epctx("explain", resnet.path, "--ep", "VitisAI", "--ep", "QNN", "--json")
    assert explanation.as_dict() == {
        key: value
        for key, value in said.json.items()
        if key not in {"schema", "model", "written"}
    }
    assert not explanation.left


def test_a_node_that_a_kernel_of_an_ep_runs_is_told_as_such(tmp_path):
    class Rectifier(KernelProvider):
        name = "RectifierExecutionProvider"

        def get_kernel_registry(self):
            return KernelRegistry(
                [
                    KernelDef(
                        op_type="Relu",
                        since_version=14,
                        create=lambda _node: lambda inputs: [np.maximum(inputs[0], 0)],
                    )
                ]
            )

    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[2] x) => (float[2] z) { y = '
        "Relu(x) z = Neg(y) }"
    )
    registry = epctx_core.Registry(entry_points=False)
    registry.register(Rectifier)
    options = epctx_core.SessionOptions()
    options.add_provider(Rectifier.name)

    explanation = epctx_core.explain_model(
        model.SerializeToString(), options, registry=registry, purpose=Purpose.RUN
    )

    assert [(node.operator, node.ep, node.kernel) for node in explanation.nodes] == [
        ("Relu", "RectifierExecutionProvider", True),
        ("Neg", "CPUExecutionProvider", False),
    ]


@pytest.mark.parametrize("options", ["x", {"session.intra_op_num_threads": "1"}, 0])
def test_options_that_are_none_are_refused_from_python(resnet, options):
    with pytest.raises(InvalidArgument, match="not a SessionOptions"):
        epctx_core.explain_model(resnet.path, options)


def test_a_model_that_is_neither_path_nor_bytes_is_refused_from_python():
    with pytest.raises(InvalidArgument, match="a model is a path or bytes"):
        epctx_core.explain_model(3)
