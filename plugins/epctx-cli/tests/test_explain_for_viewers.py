"""`epctx explain --annotate`: a copy for Netron and Model Explorer."""

from __future__ import annotations

import os
import warnings

import onnx
import pytest
from support.small_models import snapshot

# QNN has no Erf, and takes no control flow whole.
BRANCHES = """
<ir_version: 8, opset_import: ["" : 17]>
branches (bool c, float[3] x, int64 n, bool go) => (float[3] z) {
  [twice] a = Relu(x)
  [twice] b = Erf(a)
  d = Sigmoid(b)
  [pick] y = If (c) <
    then_branch = yes () => (float[3] p) { [in] q = Erf(d) p = Relu(q) },
    else_branch = no () => (float[3] r) {
      [in] r = If (c) <
        then_branch = yes2 () => (float[3] s) { s = Tanh(d) },
        else_branch = no2 () => (float[3] t) { t = Erf(d) }
      >
    }
  >
  [turn] z = Loop (n, go, y) <
    body = one (int64 i, bool k, float[3] v) => (bool k2, float[3] v2) {
      k2 = Identity(k)
      [in] v2 = Erf(v)
    }
  >
}
"""


@pytest.fixture
def branches(tmp_path):
    """A model with subgraphs, nodes without a name and nodes with the same name."""
    proto = onnx.parser.parse_model(BRANCHES)
    proto.graph.node[3].name = "/encoder/layer.0/pick"
    onnx.checker.check_model(proto, full_check=True)
    path = tmp_path / "branches.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture
def annotate(epctx, tmp_path):
    """Write the annotated copy of a model; give it and the report."""

    def call(path, *eps):
        written = tmp_path / "seen.onnx"
        names = [word for ep in eps for word in ("--ep", ep)]
        said = epctx("explain", path, *names, "--annotate", written)
        assert said.code in {0, 1}, said.err
        return onnx.load(written, load_external_data=False), said

    return call


def metadata(node):
    return {entry.key: entry.value for entry in node.metadata_props}


def subgraph(node, name):
    return next(a.g for a in node.attribute if a.name == name)


def test_nodes_of_the_copy_name_their_ep_their_partition_and_refusals(annotate, model):
    copy, said = annotate(
        model(
            '<ir_version: 8, opset_import: ["": 17]> g (float[2, 3] x) => '
            "(float[2, 3] y) { [r] a = Relu(x) [e] b = Erf(a) y = Relu(b) }"
        ),
        "QNN",
    )

    relu, erf, last = map(metadata, copy.graph.node)
    assert relu == {
        "epctx.ep": "QNNExecutionProvider",
        "epctx.partition": "0",
        "namespace": "QNNExecutionProvider/partition 0",
    }
    assert erf == {
        "epctx.ep": "CPUExecutionProvider",
        "epctx.reason": "QNNExecutionProvider: Erf is not an operator of QNN's HTP "
        "backend",
        "namespace": "CPUExecutionProvider",
    }
    assert last["epctx.partition"] == "1"
    assert said.out.splitlines()[-1].startswith("wrote ")
    assert "seen.onnx (" in said.out


def test_a_node_that_the_second_ep_takes_has_the_first_ones_reason(annotate, model):
    copy, _ = annotate(model("y = Erf(x)"), "QNN", "OpenVINO")

    (node,) = map(metadata, copy.graph.node)
    assert node["epctx.ep"] == "OpenVINOExecutionProvider"
    assert node["epctx.reason"].startswith("QNNExecutionProvider: ")


def test_calls_of_functions_are_inlined_in_the_copy_as_the_eps_saw_them(
    annotate, model
):
    path = model(
        """
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[3] x) => (float[3] y) { a = own.both(x) y = Relu(a) }
        <domain: "own", opset_import: ["" : 17]>
        both (x) => (y) { r = Relu(x) y = Erf(r) }
        """
    )

    copy, _ = annotate(path, "QNN")

    assert [(n.op_type, metadata(n)["epctx.ep"]) for n in copy.graph.node] == [
        ("Relu", "QNNExecutionProvider"),
        ("Erf", "CPUExecutionProvider"),
        ("Relu", "QNNExecutionProvider"),
    ]


def test_nodes_of_subgraphs_have_the_ep_of_the_node_that_is_taken_whole(
    annotate, branches
):
    copy, _ = annotate(branches, "QNN")

    pick, turn = copy.graph.node[3:]
    (_, relu) = subgraph(pick, "then_branch").node
    (inner,) = subgraph(pick, "else_branch").node
    (tanh,) = subgraph(inner, "then_branch").node
    assert {
        metadata(node)["epctx.ep"]
        for node in (pick, relu, inner, tanh, turn, *subgraph(turn, "body").node)
    } == {"CPUExecutionProvider"}


TAKES_RELU = """
from epctx_core.plugin import CompiledPartition, ExecutionProvider, hookimpl, supported_partitions

class Provider(ExecutionProvider):
    name = "AcmeExecutionProvider"
    binary_suffix = "acme"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        return [CompiledPartition(None) for _ in partitions]

    @hookimpl
    def get_ep_context_nodes(self, writer):
        return []

    @hookimpl
    def load_context(self, nodes, reader):
        return []
"""


def test_control_flow_around_an_eps_work_is_run_by_the_session(
    process, site, model, tmp_path
):
    path = model(
        """
        <ir_version: 9, opset_import: ["" : 17]>
        g (bool c, float[3] x) => (float[3] y) {
            y = If (c) <
                then_branch = yes () => (float[3] p) { p = Relu(x) },
                else_branch = no () => (float[3] q) { q = Erf(x) }
            >
        }
        """
    )
    folder = site("acme-npu", "AcmeExecutionProvider", code=TAKES_RELU)

    said = process(
        *("explain", path, "--ep", "Acme", "--annotate", "seen.onnx"),
        path=[folder],
    )

    assert said.code == 1, said.err
    (whole,) = onnx.load(tmp_path / "seen.onnx").graph.node
    (relu,) = subgraph(whole, "then_branch").node
    (erf,) = subgraph(whole, "else_branch").node
    assert metadata(whole)["epctx.ep"] == "session"
    assert "the session runs it" in metadata(whole)["epctx.reason"]
    assert metadata(relu)["namespace"] == "AcmeExecutionProvider/partition 0"
    assert metadata(erf)["epctx.ep"] == "CPUExecutionProvider"


def test_the_models_own_nesting_stays_inside_that_of_eps(annotate, branches):
    proto = onnx.load(branches)
    proto.ir_version = 11
    proto.graph.node[0].metadata_props.add(key="namespace", value="encoder/act")
    proto.graph.node[0].metadata_props.add(key="author", value="me")
    onnx.save(proto, branches)

    copy, _ = annotate(branches, "QNN")

    first = metadata(copy.graph.node[0])
    assert first["namespace"] == "QNNExecutionProvider/partition 0/encoder/act"
    assert first["author"] == "me"
    assert metadata(copy.graph.node[3])["namespace"] == (
        "CPUExecutionProvider/encoder/layer.0"
    )


def test_entries_of_an_earlier_annotation_are_replaced(annotate, branches):
    proto = onnx.load(branches)
    proto.ir_version = 10
    proto.graph.node[0].metadata_props.add(key="epctx.reason", value="of another EP")
    onnx.save(proto, branches)

    copy, _ = annotate(branches, "QNN")

    assert "epctx.reason" not in metadata(copy.graph.node[0])


def test_metadata_that_are_not_utf8_stay_as_they_are(annotate, branches):
    proto = onnx.load(branches)
    proto.ir_version = 10
    for key in ("namespace", "author"):
        proto.graph.node[0].metadata_props.add(key=key, value="not_utf8")
    branches.write_bytes(
        proto.SerializeToString().replace(b"not_utf8", b"not_\xff\xff\xff\xff")
    )

    copy, _ = annotate(branches, "QNN")

    first = metadata(copy.graph.node[0])
    assert first["namespace"].startswith("QNNExecutionProvider/partition 0/not_")
    assert first["author"] == b"not_\xff\xff\xff\xff"


@pytest.mark.parametrize(("before", "after"), [(8, 10), (10, 10), (11, 11)])
def test_the_copy_is_of_the_ir_version_that_has_metadata_at_least(
    annotate, branches, before, after
):
    proto = onnx.load(branches)
    proto.ir_version = before
    onnx.save(proto, branches)

    copy, _ = annotate(branches, "QNN")

    assert copy.ir_version == after
    onnx.checker.check_model(copy, full_check=True)


def test_the_copy_has_no_weights_but_their_names_types_and_shapes(annotate, resnet):
    copy, _ = annotate(resnet.path, "QNN")

    source = onnx.load(resnet.path)
    assert 10 * copy.ByteSize() < source.ByteSize()
    assert [(t.name, t.data_type, t.dims) for t in copy.graph.initializer] == [
        (t.name, t.data_type, t.dims) for t in source.graph.initializer
    ]
    assert [(n.name, n.op_type, n.input, n.output) for n in copy.graph.node] == [
        (n.name, n.op_type, n.input, n.output) for n in source.graph.node
    ]


def test_the_checker_misses_only_the_file_of_the_weights(annotate, resnet, tmp_path):
    copy, _ = annotate(resnet.path, "QNN")
    with pytest.raises(onnx.checker.ValidationError, match="epctx-weight"):
        onnx.checker.check_model(copy)

    (tmp_path / "epctx-weight").touch()

    onnx.checker.check_model(tmp_path / "seen.onnx")


@pytest.mark.parametrize("link", [False, True])
def test_the_model_itself_is_never_replaced(epctx, branches, tmp_path, link):
    named = branches
    if link:
        named = tmp_path / "same.onnx"
        os.link(branches, named)
    before = snapshot(tmp_path)

    said = epctx("explain", branches, "--ep", "QNN", "--annotate", named)

    assert said.code == 2
    assert "was not replaced" in said.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("option", "name"),
    [("--annotate", "w.bin"), ("--annotate", "."), ("--html", "seen.onnx")],
)
def test_another_ending_is_refused_so_that_no_weights_are_replaced(
    epctx, branches, tmp_path, option, name
):
    (tmp_path / "w.bin").write_bytes(b"weights")
    before = snapshot(tmp_path)

    said = epctx("explain", branches, "--ep", "QNN", option, tmp_path / name)

    assert said.code == 2
    assert option in said.err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("content", [None, b"no model", b""])
def test_a_model_that_is_no_annotated_copy_is_never_replaced(
    epctx, branches, model, tmp_path, content
):
    other = model("y = Relu(x)", "other.onnx")
    if content is not None:
        other.write_bytes(content)
    before = snapshot(tmp_path)

    said = epctx("explain", branches, "--ep", "QNN", "--annotate", other)

    assert said.code == 2
    assert "exists and is no annotated copy" in said.err
    assert snapshot(tmp_path) == before


def test_an_older_file_is_replaced_and_nothing_else_is_left(epctx, branches, tmp_path):
    epctx("explain", branches, "--ep", "VitisAI", "--annotate", tmp_path / "seen.onnx")

    said = epctx(
        "explain", branches, "--ep", "QNN", "--json",
        "--annotate", tmp_path / "seen.onnx",
    )  # fmt: skip

    assert sorted(p.name for p in tmp_path.iterdir()) == ["branches.onnx", "seen.onnx"]
    assert said.json["written"] == [str(tmp_path / "seen.onnx")]


def test_nothing_is_written_for_a_model_that_cannot_be_explained(epctx, tmp_path):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")

    said = epctx("explain", broken, "--ep", "QNN", "--annotate", tmp_path / "seen.onnx")

    assert said.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["broken.onnx"]


@pytest.mark.stress
@pytest.mark.parametrize("name", ["branches", "resnet"])
def test_model_explorer_opens_the_copy_and_nests_nodes_by_ep_and_partition(
    annotate, branches, resnet, tmp_path, name
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = pytest.importorskip(
            "model_explorer_onnx.main", reason="the group viewers is not installed"
        ).ONNXAdapter()
    path = {"branches": branches, "resnet": resnet.path}[name]
    copy, _ = annotate(path, "QNN")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graphs = adapter.convert(str(tmp_path / "seen.onnx"), {})["graphs"]

    partition = f"{copy.graph.name}/QNNExecutionProvider/partition 0"
    assert any(node.namespace.startswith(partition) for node in graphs[0].nodes)
