"""Costs and results of work on files are bounded by the size of what is read."""

from __future__ import annotations

import json
import os

import onnx
import pytest
from epctx_files import diff, embed, externalize, extract, merge, seal_model
from file_models import compiled, product
from onnx import TensorProto, helper
from support.steps import steps_of

import epctx_core as epctx
from epctx_core.errors import EpctxError, InternalError, InvalidArgument

FEW = 40
TERABYTES = 4 << 40
GROWTH = 2.5
"""Times as much more that twice as many entries may take."""


def node(name, *, source="QNN", file="", payload=b""):
    """An EPContext node with its payload in a file, or in the model."""
    return helper.make_node(
        "EPContext", ["x"], [f"of_{name}"], name, domain="com.microsoft", main_context=1,
        embed_mode=int(not file), source=source, ep_cache_context=file.encode() or payload,
    )  # fmt: skip


def entry(name, segments=1):
    return {
        "name": name,
        "embedded": False,
        "bytes": segments,
        "root": "",
        "segments": [[1, "0" * 64]] * segments,
    }


def written(folder, nodes, weights=(), payloads=()):
    """Write a context model by hand, and return its path."""
    names = ["x", *(each.output[0] for each in nodes[:1])]
    values = [helper.make_tensor_value_info(each, 1, [1]) for each in names]
    imports = [helper.make_opsetid(*each) for each in (("", 17), ("com.microsoft", 1))]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:], list(weights)),
        opset_imports=imports,
        ir_version=9,
    )
    if payloads:
        manifest = {"version": 1, "source_model": "", "providers": {}}
        text = json.dumps({**manifest, "payloads": [*payloads]})
        model.metadata_props.add(key="epctx.manifest", value=text)
    path = folder / "many_ctx.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def in_file(name, length):
    """An initializer of so many bytes of `w.bin`."""
    tensor = TensorProto(
        name=name,
        data_type=TensorProto.UINT8,
        dims=[length],
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", "w.bin"), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def sources_of_one_file(folder, count):
    (folder / "a.bin").write_bytes(b"x")
    nodes = [node(f"n{i}", source=f"S{i}", file="a.bin") for i in range(count)]
    return written(folder, nodes, payloads=[entry("a.bin")] * count)


def references_to_one_file(folder, count):
    for name in ("a.bin", "b.bin"):
        (folder / name).write_bytes(b"x")
    nodes = [node(f"n{i}", file="a.bin") for i in range(count)]
    entries = [entry("b.bin"), *[entry("a.bin")] * count]
    return written(folder, [node("z", file="b.bin"), *nodes], payloads=entries)


def payloads_in_the_model(folder, count):
    return written(folder, [node(f"n{i}", payload=b"x") for i in range(count)])


def names_that_others_have(folder, count):
    (folder / "out").mkdir(exist_ok=True)
    for i in range(count):
        (folder / f"f{i}.bin").write_bytes(b"x")
        (folder / "out" / f"f{i}.bin").write_bytes(b"other")
    return written(folder, [node(f"n{i}", file=f"f{i}.bin") for i in range(count)])


@pytest.mark.parametrize("verb", [embed, externalize])
@pytest.mark.parametrize(
    "make",
    [
        sources_of_one_file,
        references_to_one_file,
        payloads_in_the_model,
        names_that_others_have,
    ],
)
def test_what_is_written_and_its_cost_grow_with_the_model(make, verb, tmp_path):
    def measure(count):
        folder = tmp_path / str(count)
        folder.mkdir()
        path, output = make(folder, count), folder / "out" / "m_ctx.onnx"
        cost = steps_of(lambda: verb(path, output))
        return cost, output.stat().st_size

    measure(FEW + 1)
    (once, small), (twice, medium), (more, large) = map(measure, (10, 20, FEW))

    assert more - twice < GROWTH * (twice - once)
    assert large - medium < GROWTH * (medium - small)


def test_no_model_is_made_that_is_mostly_copies(tmp_path):
    length = 1 << 20
    (tmp_path / "w.bin").write_bytes(bytes(length))
    weights = [in_file(f"w{i}", length) for i in range(FEW)]
    path = written(tmp_path, [node("n", payload=b"x")], weights)

    with pytest.raises(InvalidArgument, match="with a copy for each node and tensor"):
        embed(path, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_a_few_weights_of_one_range_are_embedded_each(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(range(100)))
    weights = [in_file(f"w{i}", 100) for i in range(3)]
    path = written(tmp_path, [node("n", payload=b"x")], weights)

    embed(path, tmp_path / "out.onnx")

    embedded = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert [each.raw_data for each in embedded] == [bytes(range(100))] * 3


def test_segments_are_not_copied_for_each_of_many_nodes(tmp_path):
    count = 20 * FEW
    (tmp_path / "a.bin").write_bytes(bytes(count))
    nodes = [node(f"n{i}", source=f"S{i}", file="a.bin") for i in range(count)]
    path = written(tmp_path, nodes, payloads=[entry("a.bin", count)])

    with pytest.raises(InvalidArgument, match="with a copy for each node and tensor"):
        embed(path, tmp_path / "out.onnx")


VERBS = {
    "merge": lambda path, other, output: merge([path, other], output),
    "extract": lambda path, other, output: extract(path, output, outputs=["of_n"]),
    "embed": lambda path, other, output: embed(path, output),
    "externalize": lambda path, other, output: externalize(path, output),
    "diff": lambda path, other, output: diff(path, other),
    "seal": lambda path, other, output: seal_model(path, beside=True),
    "seal inside": lambda path, other, output: seal_model(path, output),
    "inspect": lambda path, other, output: epctx.inspect_model(path),
    "load": lambda path, other, output: epctx.InferenceSession(path),
}


def sparse(path):
    """Make a file of terabytes that are holes; return its path."""
    path.touch()
    os.truncate(path, TERABYTES)
    return path


@pytest.mark.parametrize("verb", VERBS)
def test_a_seal_of_terabytes_beside_a_model_is_one_typed_error(verb, tmp_path):
    path = written(tmp_path, [node("n", payload=b"x")])
    beside = sparse(tmp_path / "many_ctx.onnx.epctx.json")
    head = product(tmp_path / "head.onnx", x="of_n", external=False)
    output = tmp_path / "out" / "m_ctx.onnx"

    if verb == "seal inside":
        VERBS[verb](path, head, tmp_path / "sealed_ctx.onnx")
        return
    with pytest.raises(EpctxError, match=f"{beside.name}|something else") as caught:
        VERBS[verb](path, head, output)
    assert not isinstance(caught.value, InternalError)


@pytest.mark.parametrize("verb", [embed, externalize])
@pytest.mark.parametrize("name", ["m_ctx.onnx", "another.onnx"])
def test_models_of_terabytes_where_one_is_written_are_not_read(verb, name, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"x")
    path = written(tmp_path, [node("n", file="a.bin")])
    sparse(tmp_path / name)

    report = verb(path, tmp_path / "m_ctx.onnx")

    assert report.model.stat().st_size < TERABYTES
    assert (tmp_path / "a.bin").read_bytes() == b"x"


@pytest.mark.timeout(60)
def test_a_model_of_terabytes_beside_a_binary_that_a_compile_replaces_is_not_read(
    tmp_path,
):
    compiled(product(tmp_path / "net.onnx", external=False)).unlink()
    sparse(tmp_path / "another.onnx")

    assert compiled(product(tmp_path / "net.onnx", external=False, seed=3)).is_file()


@pytest.mark.parametrize("versions", [(0, 0), (0, 17), (17, 0), (-1, -1)])
def test_models_of_no_opset_that_there_is_merge_or_are_refused(versions, tmp_path):
    paths = [
        product(tmp_path / f"{name}.onnx", x=x, y=y, external=False)
        for name, x, y in (("one", "x", "y"), ("two", "y", "z"))
    ]
    for path, version in zip(paths, versions, strict=True):
        model = onnx.load(path)
        model.opset_import[0].version = version
        path.write_bytes(model.SerializeToString())

    try:
        merge(paths, tmp_path / "out.onnx")
    except EpctxError as error:
        assert not isinstance(error, InternalError)
        assert "opset" in error.message
