"""Payloads and weights in the model, or in files of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_files import embed, externalize
from file_models import X, compiled, product, run, verified

from epctx_core.errors import InvalidArgument, InvalidGraph


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


def test_an_embedded_model_needs_no_other_file(folder, tmp_path):
    context = compiled(product(folder / "net.onnx"))

    report = embed(context, tmp_path / "alone" / "net_ctx.onnx")

    assert [file.name for file in report.files] == ["net_ctx.onnx"]
    found = run(verified(report.model), x=X)
    np.testing.assert_array_equal(found["y"], run(context, x=X)["y"])
    stated = onnx.load(report.model).metadata_props
    assert {each.key: each.value for each in stated}["external_dependencies"] == ""


def test_externalizing_an_embedded_model_gives_the_same_binary(folder):
    plain = product(folder / "net.onnx")
    inside = compiled(plain, ep__context_embed_mode="1")
    binary = folder / "out" / "net_qnn.bin"

    report = externalize(inside, folder / "out" / "net_ctx.onnx")

    assert [file.name for file in report.files] == ["net_ctx.onnx", "net_qnn.bin"]
    np.testing.assert_array_equal(
        run(verified(report.model), x=X)["y"], run(inside, x=X)["y"]
    )
    again = embed(report.model, folder / "again.onnx").model
    assert onnx.load(again).graph == onnx.load(inside).graph
    compiled(plain)
    assert binary.read_bytes() == (folder / "net_qnn.bin").read_bytes()


def test_weights_go_into_the_model_and_out_of_it(folder):
    plain = product(folder / "net.onnx")
    expected = run(plain, x=X)["y"]

    inside = embed(plain, folder / "inside.onnx").model
    outside = externalize(inside, folder / "out" / "outside.onnx")

    (folder / "net.weights").unlink()
    assert [file.name for file in outside.files] == ["outside.onnx", "outside.data"]
    for path in (inside, outside.model):
        np.testing.assert_array_equal(run(path, x=X)["y"], expected)
    (_, bias) = onnx.load(outside.model, load_external_data=False).graph.initializer
    assert len(bias.raw_data) == 256


def test_references_are_embedded_with_their_primary(folder):
    plain = product(folder / "net.onnx")
    model = onnx.load(plain, load_external_data=False)
    model.graph.node[1].CopyFrom(
        onnx.helper.make_node("Einsum", ["p"], ["q"], equation="ij->ij")
    )
    plain.write_bytes(model.SerializeToString())
    context = compiled(plain)

    inside = embed(context, folder / "inside.onnx").model
    outside = externalize(inside, folder / "out" / "net_ctx.onnx").model

    for path in (inside, outside):
        found = run(verified(path), x=X)["y"]
        np.testing.assert_array_equal(found, run(context, x=X)["y"])


def test_a_binary_that_several_nodes_name_is_embedded_once(folder):
    # OpenVINO's nodes all name the file, and QNN's but the first do not.
    plain = product(folder / "net.onnx")
    model = onnx.load(plain, load_external_data=False)
    model.graph.node[1].CopyFrom(onnx.helper.make_node("IsNaN", ["p"], ["n"]))
    model.graph.node.insert(2, onnx.helper.make_node("Cast", ["n"], ["q"], to=1))
    plain.write_bytes(model.SerializeToString())
    context = compiled(plain, "OpenVINO")
    size = (folder / "net_OpenVINOExecutionProvider.bin").stat().st_size

    inside = embed(context, folder / "inside.onnx")
    outside = externalize(inside.model, folder / "out" / "net_ctx.onnx")

    assert inside.files[0].bytes < 2 * size
    assert len(outside.files) == 2
    for path in (inside.model, outside.model):
        found = run(verified(path), x=X)["y"]
        np.testing.assert_array_equal(found, run(context, x=X)["y"])


def test_more_than_two_gib_are_refused_before_they_are_read(folder):
    plain = product(folder / "net.onnx")
    with (folder / "net.weights").open("r+b") as file:
        file.truncate(3 << 30)
    model = onnx.load(plain, load_external_data=False)
    (weight, _) = model.graph.initializer
    weight.dims[:] = [64, 64 * ((3 << 30) // (64 * 64 * 4))]
    del weight.external_data[1:]
    plain.write_bytes(model.SerializeToString())

    with pytest.raises(InvalidArgument, match=r"at most 2,147,483,647 \(2 GiB\)"):
        embed(plain, folder / "inside.onnx")
    assert not (folder / "inside.onnx").exists()


def test_a_weight_beyond_the_end_of_its_file_is_refused(folder):
    plain = product(folder / "net.onnx")
    (folder / "net.weights").write_bytes(bytes(16))

    with pytest.raises(InvalidGraph, match=r"'weight' lies at 0 with 16384 bytes"):
        embed(plain, folder / "inside.onnx")


def test_a_model_that_leaves_weights_in_its_source_is_not_embedded(folder):
    context = compiled(
        product(folder / "net.onnx"), "OpenVINO", ep__enable_weightless_mode="2"
    )
    stated = {each.key: each.value for each in onnx.load(context).metadata_props}
    if "source_weights" not in stated["epctx.manifest"]:
        pytest.fail("the model is not weightless")

    with pytest.raises(InvalidArgument, match="needs weights of its source model"):
        embed(context, folder / "inside.onnx")


def test_a_file_of_another_model_keeps_its_name(folder):
    inside = compiled(product(folder / "net.onnx"), ep__context_embed_mode="1")
    (folder / "net_qnn.bin").write_bytes(b"another's")

    report = externalize(inside, folder / "new_ctx.onnx")
    (folder / "new_qnn.bin").rename(folder / "kept.bin")
    (folder / "new_qnn.bin").write_bytes(b"another's")
    (folder / "new_ctx.onnx").unlink()
    again = externalize(inside, folder / "new_ctx.onnx")

    assert report.files[1].name == "new_qnn.bin"
    assert again.files[1].name == "new_qnn_2.bin"
    assert (folder / "new_qnn.bin").read_bytes() == b"another's"
    verified(again.model)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("{ [c] w = Constant() [a] y = Add(x, w) }", "value"),
        (
            """{ c = Constant<value = bool {1}>() [i] y = If(c) <
            then_branch = t () => (float[512] u) { u = Add(x, w) },
            else_branch = e () => (float[512] v) { v = Neg(x) }> }""",
            "then_branch",
        ),
        ("{ [a] y = Add(x, w) }", None),
    ],
)
def test_a_note_says_which_weights_stay_in_the_model(folder, text, name):
    folder.mkdir()
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> '
        f"g (float[512] x) => (float[512] y) {text}"
    )
    raw = onnx.numpy_helper.from_array(np.ones(512, np.float32), "w")
    if name == "value":
        model.graph.node[0].attribute.append(onnx.helper.make_attribute(name, raw))
    elif name == "then_branch":
        for attribute in model.graph.node[1].attribute:
            if attribute.name == name:
                attribute.g.initializer.append(raw)
    else:
        fields = onnx.helper.make_tensor("w", raw.data_type, [512], np.ones(512))
        model.graph.initializer.append(fields)
    onnx.save(model, folder / "net.onnx")

    report = externalize(folder / "net.onnx", folder / "out" / "net.onnx")

    (note,) = report.notes
    assert note.startswith("1 tensor of 1 KiB or more stays in the model, 2,0")
    assert len(report.files) == 1


def test_nothing_is_noted_of_weights_in_files_and_of_small_ones(folder):
    plain = product(folder / "net.onnx", external=False)

    outside = externalize(plain, folder / "out" / "net.onnx")

    assert outside.notes == ()
    assert externalize(outside.model, folder / "again" / "net.onnx").notes == ()


def test_weights_of_another_model_are_not_taken_for_those_that_were_externalized(
    tmp_path,
):
    for seed in range(2):
        plain = product(tmp_path / f"{seed}" / "net.onnx", seed=seed, external=False)
        externalize(plain, tmp_path / f"{seed}" / "out" / "net.onnx")
    mine, other = (tmp_path / f"{seed}" / "out" / "net.data" for seed in range(2))

    # As a publication leaves it that was killed before the model got its name.
    mine.write_bytes(other.read_bytes())

    with pytest.raises(InvalidGraph, match=r"net\.data"):
        run(mine.with_name("net.onnx"), x=X)
