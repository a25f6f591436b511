"""Structures of graphs that rarely occur, merged and extracted."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from epctx_files import embed, extract, merge
from file_models import X, product, run, verified

from epctx_core.errors import InvalidArgument


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def write(path, text, opset=17, ir=9, more=""):
    """Write a model given by its graph in ONNX's text form."""
    head = f'<ir_version: {ir}, opset_import: ["" : {opset}{more}]> '
    path.write_bytes(onnx.parser.parse_model(head + text).SerializeToString())
    return path


TWO = np.array([1, -2], np.float32)


def test_an_output_keeps_its_name_where_a_joined_one_of_the_union_had_it(folder):
    first = write(folder / "a.onnx", "a (float[2] x) => (float[2] h) { h = Neg(x) }")
    second = write(folder / "b.onnx", "b (float[2] h) => (float[2] y) { y = Exp(h) }")
    third = write(folder / "c.onnx", "c (float[2] y) => (float[2] h) { h = Abs(y) }")

    whole = merge([first, second, third], folder / "whole.onnx").model

    found = run(whole, x=TWO)
    assert list(found) == ["h"]
    np.testing.assert_allclose(found["h"], np.exp(-TWO), rtol=1e-6)


def test_an_output_may_be_the_inputs_of_several_models(folder):
    first = write(folder / "a.onnx", "a (float[2] x) => (float[2] h) { h = Neg(x) }")
    second = write(folder / "b.onnx", "b (float[2] p) => (float[2] y) { y = Exp(p) }")
    third = write(folder / "c.onnx", "c (float[2] q) => (float[2] z) { z = Abs(q) }")

    joins = {"a.h": ["b.p", "c.q"]}
    whole = merge([first, second, third], folder / "whole.onnx", joins=joins).model

    found = run(whole, x=TWO)
    np.testing.assert_allclose(found["y"], np.exp(-TWO), rtol=1e-6)
    np.testing.assert_allclose(found["z"], np.abs(TWO))


def test_an_output_is_joined_after_a_model_that_changed_its_name(folder):
    first = write(folder / "a.onnx", "a (float[2] x) => (float[2] h) { h = Neg(x) }")
    second = write(folder / "b.onnx", "b (float[2] h) => (float[2] y) { y = Exp(h) }")
    third = write(folder / "c.onnx", "c (float[2] y) => (float[2] h) { h = Abs(y) }")
    fourth = write(folder / "d.onnx", "d (float[2] q) => (float[2] z) { z = Neg(q) }")

    whole = merge(
        [first, second, third, fourth], folder / "w.onnx", joins={"1.h": "4.q"}
    ).model

    found = run(whole, x=TWO)
    assert list(found) == ["h", "z"]
    np.testing.assert_allclose(found["z"], TWO)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x", "h = {5.0, 6.0}"),
        ("x = {1.0, 2.0}", "x = {5.0, 6.0}"),
        ("x = {1.0, 2.0}", "x"),
    ],
)
def test_an_input_with_a_default_is_no_value_of_another_model(folder, one, other):
    name = other.partition(" ")[0]
    first = write(
        folder / "a.onnx", f"a (float[2] {one}) => (float[2] h) {{ h = Neg(x) }}"
    )
    second = write(
        folder / "b.onnx", f"b (float[2] {other}) => (float[2] y) {{ y = Exp({name}) }}"
    )

    with pytest.raises(InvalidArgument, match=f"'{name}' is an input of b.onnx"):
        merge([first, second], folder / "whole.onnx")

    whole = merge([first, second], folder / "whole.onnx", prefixes={"2": "b/"}).model
    onnx.checker.check_model(whole, full_check=True)


def test_names_within_subgraphs_are_kept_apart(folder):
    first = write(
        folder / "a.onnx",
        """a (float[2] x, bool c) => (float[2] h) { q = Neg(x) h = If(c) <
        then_branch = t () => (float[2] r) { p = Abs(q) r = Neg(p) },
        else_branch = e () => (float[2] r2) { r2 = Identity(x) }> }""",
    )
    second = write(
        folder / "b.onnx",
        """b (float[2] h, bool c) => (float[2] y) { p = Exp(h) q = Add(p, h) y = If(c) <
        then_branch = t () => (float[2] r) { r = Add(q, p) },
        else_branch = e () => (float[2] r2) { r2 = Identity(p) }> }""",
    )
    feeds = {"c": np.array(True)}
    expected = run(second, h=run(first, x=TWO, **feeds)["h"], **feeds)["y"]

    whole = merge([first, second], folder / "whole.onnx").model

    onnx.checker.check_model(whole, full_check=True)
    np.testing.assert_allclose(run(whole, x=TWO, **feeds)["y"], expected)


def test_a_part_of_a_plain_model_has_types_at_its_ends(folder):
    plain = product(folder / "net.onnx")

    part = extract(plain, folder / "part.onnx", inputs=["p"], outputs=["q"]).model

    p = run(extract(plain, folder / "first.onnx", outputs=["p"]).model, x=X)["p"]
    np.testing.assert_array_equal(run(part, p=p)["q"], np.maximum(p, 0))


def test_a_node_that_reads_a_value_twice_has_it_once_as_an_input(folder):
    plain = write(
        folder / "m.onnx", "g (float[2] x) => (float[2] y) { [n] y = Mul(x, x) }"
    )

    part = extract(plain, folder / "part.onnx", node="n").model

    np.testing.assert_allclose(run(part, x=TWO)["y"], TWO * TWO)


def test_a_node_keeps_its_weights(folder):
    plain = product(folder / "net.onnx")
    model = onnx.load(plain, load_external_data=False)
    model.graph.node[0].name = "n"
    plain.write_bytes(model.SerializeToString())

    part = extract(plain, folder / "part.onnx", node="n").model

    assert list(run(part, x=X)) == ["p"]


def test_a_node_is_extracted_with_what_its_subgraphs_read(folder):
    plain = write(
        folder / "m.onnx",
        "g (float[2] x, bool c) => (float[2] y) { h = Neg(x) [n] y = If(c) <"
        "then_branch = t () => (float[2] a) { a = Identity(h) },"
        "else_branch = e () => (float[2] b) { b = Neg(h) }> }",
    )

    part = extract(plain, folder / "part.onnx", node="n").model

    found = run(part, c=np.array(False), h=TWO)
    np.testing.assert_allclose(found["y"], -TWO)


def test_an_initializer_may_be_an_input_of_a_part(folder):
    plain = product(folder / "net.onnx")

    part = extract(
        plain, folder / "part.onnx", inputs=["q", "bias"], outputs=["y"]
    ).model

    bias = np.ones(64, np.float32)
    np.testing.assert_array_equal(run(part, q=X, bias=bias)["y"], X + bias)


def test_sparse_initializers_and_annotations_follow_their_names(folder):
    paths = []
    for name, x, y in (("one", "x", "h"), ("two", "h", "y")):
        path = product(folder / f"{name}.onnx", x=x, y=y)
        model = onnx.load(path, load_external_data=False)
        values = onnx.numpy_helper.from_array(np.ones(1, np.float32), "s")
        indices = onnx.numpy_helper.from_array(np.zeros(1, np.int64), "s_indices")
        model.graph.sparse_initializer.append(
            onnx.helper.make_sparse_tensor(values, indices, [64])
        )
        model.graph.node[2].input[1] = "s"
        annotation = model.graph.quantization_annotation.add(tensor_name="p")
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="bias")
        path.write_bytes(model.SerializeToString())
        paths.append(path)

    whole = onnx.load(
        merge(paths, folder / "whole.onnx").model, load_external_data=False
    )

    names = [each.values.name for each in whole.graph.sparse_initializer]
    assert len(set(names)) == 2
    last = whole.graph.node[-1]
    assert last.input[1] == names[1]
    annotations = whole.graph.quantization_annotation
    assert [a.tensor_name for a in annotations] == ["p", "two_p"]
    assert annotations[1].quant_parameter_tensor_names[0].value == "two_bias"


def test_an_empty_name_stays_an_argument_left_out(folder):
    text = (
        "{} (float[1,1,4] {}) => (float[1,1,4] {}) "
        "{{ z = Constant<value = float[1] {{0.0}}>() {} = Clip({}, , z) }}"
    )
    first = write(folder / "a.onnx", text.format("a", "x", "h", "h", "x"))
    second = write(folder / "b.onnx", text.format("b", "h", "y", "y", "h"))

    whole = merge([first, second], folder / "whole.onnx").model

    assert [node.input[1:2] for node in onnx.load(whole).graph.node[1::2]] == [[""]] * 2


def test_models_in_the_wrong_order_are_named(folder):
    first = product(folder / "one.onnx", y="h")
    second = product(folder / "two.onnx", x="h")

    with pytest.raises(InvalidArgument) as caught:
        merge([second, first], folder / "whole.onnx")

    assert "in the order of their work" in caught.value.hint


def test_training_information_is_left_out_with_a_note(folder):
    first = product(folder / "one.onnx", y="h")
    second = product(folder / "two.onnx", x="h")
    model = onnx.load(second, load_external_data=False)
    model.training_info.add().algorithm.name = "a"
    second.write_bytes(model.SerializeToString())

    report = merge([second, product(folder / "three.onnx", x="y", y="z")],
                   folder / "whole.onnx")  # fmt: skip

    assert not onnx.load(report.model, load_external_data=False).training_info
    assert any("training" in note for note in report.notes)
    assert first


def test_the_checksum_of_initializers_is_true_after_work_on_files(folder):
    import epctx_core as epctx

    plain = product(folder / "net.onnx", external=False)
    options = epctx.SessionOptions()
    options.add_provider("VitisAI")  # takes nothing: all initializers stay
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
    compiler = epctx.ModelCompiler(
        options,
        plain,
        external_initializers_file_path="net.weights.bin",
        external_initializers_size_threshold=64,
    )
    context = folder / "net_ctx.onnx"
    compiler.compile_to_file(context)
    head = write(
        folder / "head.onnx", "b (float[2, 64] y) => (float[2, 64] z) { z = Exp(y) }"
    )

    whole = merge([context, head], folder / "out" / "whole.onnx").model
    part = extract(whole, folder / "out" / "part.onnx", outputs=["y"]).model
    inside = embed(whole, folder / "out" / "inside.onnx").model

    expected = run(plain, x=X)["y"]
    stated = {e.key for e in onnx.load(part, load_external_data=False).metadata_props}
    assert "epctx.initializers" in stated
    np.testing.assert_array_equal(run(verified(part), x=X)["y"], expected)
    for path in (whole, inside):
        np.testing.assert_allclose(
            run(verified(path), x=X)["z"], np.exp(expected), rtol=1e-5
        )
