"""Several models as one: what they compute, their files, and what cannot be one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from epctx_files import merge
from file_models import X, compiled, product, run, verified

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, InvalidGraph, NoSuchFile


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


def in_turn(first, second, *, y="h"):
    """Return what two models compute one after the other."""
    between = run(first, x=X)[y]
    return run(second, **{y: between})


@pytest.mark.parametrize("kinds", ["plain", "contexts", "mixed", "two EPs"])
def test_a_merged_model_computes_what_its_models_compute_in_turn(folder, kinds):
    first = product(folder / "a" / "one.onnx", y="h", seed=1)
    second = product(folder / "b" / "two.onnx", x="h", seed=2)
    expected = in_turn(first, second)
    if kinds != "plain":
        first = compiled(first)
    if kinds == "contexts":
        second = compiled(second)
    if kinds == "two EPs":
        second = compiled(second, "OpenVINO")

    report = merge([first, second], folder / "whole.onnx")

    assert report.notes == ()
    found = run(verified(report.model), x=X)
    assert found.keys() == {"y"}
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-5)


def test_no_byte_of_a_file_is_copied_where_the_system_has_hard_links(folder):
    first = product(folder / "a" / "one.onnx", y="h")
    second = compiled(product(folder / "b" / "two.onnx", x="h"))

    report = merge([first, second], folder / "whole.onnx")

    assert [(file.name, file.how) for file in report.files] == [
        ("whole.onnx", "written"),
        ("one.weights", "linked"),
        ("two_qnn.bin", "linked"),
    ]
    assert (folder / "one.weights").samefile(folder / "a" / "one.weights")


def test_files_that_lie_in_the_folder_stay_as_they_are(folder):
    first = product(folder / "one.onnx", y="h")
    second = product(folder / "two.onnx", x="h")

    report = merge([first, second], folder / "whole.onnx")

    assert [file.how for file in report.files] == ["written", "kept", "kept"]


def test_files_of_one_name_get_names_apart(folder):
    first = compiled(product(folder / "a" / "net.onnx", y="h", seed=1))
    second = compiled(product(folder / "b" / "net.onnx", x="h", seed=2))
    expected = in_turn(first, second)

    report = merge([first, second], folder / "whole.onnx")

    assert [file.name for file in report.files] == [
        "whole.onnx",
        "net_qnn.bin",
        "net_net_qnn.bin",
    ]
    found = run(verified(report.model), x=X)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


def test_a_file_of_another_model_keeps_its_name(folder):
    (folder / "one.weights").parent.mkdir()
    (folder / "one.weights").write_bytes(b"another's")
    first = product(folder / "a" / "one.onnx", y="h")
    second = product(folder / "b" / "two.onnx", x="h")

    report = merge([first, second], folder / "whole.onnx")
    again = merge([first, second], folder / "whole.onnx")

    assert (folder / "one.weights").read_bytes() == b"another's"
    assert report.files[1].name == again.files[1].name == "one_2.weights"
    assert again.files[1].how == "kept"


def test_models_that_share_an_input_run_side_by_side(folder):
    first = compiled(product(folder / "one.onnx", y="left", seed=1))
    second = product(folder / "two.onnx", y="right", seed=2)

    report = merge([first, second], folder / "whole.onnx")

    found = run(verified(report.model), x=X)
    for path, name in ((first, "left"), (second, "right")):
        np.testing.assert_allclose(found[name], run(path, x=X)[name], rtol=1e-5)


def test_values_of_unlike_names_are_joined_where_the_host_says_so(folder):
    first = compiled(product(folder / "one.onnx", y="left"))
    second = compiled(product(folder / "two.onnx", x="right"))
    between = run(first, x=X)["left"]

    joins = {"one.left": "two.right"}
    report = merge([first, second], folder / "whole.onnx", joins=joins)

    found = run(verified(report.model), x=X)
    np.testing.assert_allclose(found["y"], run(second, right=between)["y"], rtol=1e-5)


def test_a_prefix_keeps_values_of_one_name_apart(folder):
    first = compiled(product(folder / "one.onnx", seed=1))
    second = product(folder / "two.onnx", seed=2)

    report = merge([first, second], folder / "whole.onnx", prefixes={"two": "b/"})

    found = run(verified(report.model), **{"x": X, "b/x": X})
    np.testing.assert_allclose(found["y"], run(first, x=X)["y"], rtol=1e-5)
    np.testing.assert_allclose(found["b/y"], run(second, x=X)["y"], rtol=1e-5)


def test_a_join_names_a_value_as_it_is_before_its_prefix(folder):
    first = product(folder / "one.onnx", seed=1)
    second = product(folder / "two.onnx", seed=2)
    expected = run(second, x=run(first, x=X)["y"])["y"]

    report = merge(
        [first, second],
        folder / "whole.onnx",
        joins={"1.y": "2.x"},
        prefixes={"2": "b."},
    )

    np.testing.assert_allclose(run(report.model, x=X)["b.y"], expected, rtol=1e-5)


def test_references_of_several_payloads_find_their_own(folder):
    paths = []
    for seed, (name, x, y) in enumerate((("one", "x", "h"), ("two", "h", "y"))):
        plain = product(folder / f"{name}.onnx", x=x, y=y, seed=seed, own=name)
        model = onnx.load(plain, load_external_data=False)
        # QNN has no Einsum: two partitions, of which the second is a reference.
        model.graph.node[1].CopyFrom(
            onnx.helper.make_node(
                "Einsum", [f"{name}p"], [f"{name}q"], equation="ij->ij"
            )
        )
        plain.write_bytes(model.SerializeToString())
        paths.append(compiled(plain))
    expected = in_turn(*paths)

    report = merge(paths, folder / "whole.onnx")

    found = run(verified(report.model), x=X)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


def test_embedded_payloads_stay_in_the_model(folder):
    first = compiled(product(folder / "one.onnx", y="h"), ep__context_embed_mode="1")
    second = compiled(product(folder / "two.onnx", x="h"), ep__context_embed_mode="1")
    expected = in_turn(first, second)

    report = merge([first, second], folder / "whole.onnx")

    assert len(report.files) == 1
    found = run(verified(report.model), x=X)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)


def refused(folder, match, models, **options):
    with pytest.raises(InvalidArgument, match=match):
        merge(models, folder / "out" / "whole.onnx", **options)
    assert not (folder / "out").exists()


def test_one_model_is_not_merged(folder):
    refused(folder, "fewer than two models", [product(folder / "one.onnx")])


def test_models_of_unlike_opsets_are_refused(folder):
    models = [
        product(folder / "one.onnx", y="h", opset=13),
        product(folder / "two.onnx", x="h", opset=17),
    ]

    refused(
        folder, r"two\.onnx has opset 17 of 'ai\.onnx', and one\.onnx has 13", models
    )


def test_two_outputs_of_one_name_are_refused(folder):
    models = [product(folder / "one.onnx"), product(folder / "two.onnx")]

    refused(folder, r"'y' is a value of two\.onnx and another one", models)


def test_the_prefix_that_a_clash_suggests_lets_models_of_one_stem_be_merged(folder):
    plain = product(folder / "one.onnx")
    context = compiled(product(folder / "two.onnx"))

    for models, prefix in (
        ([plain, plain], "2=one2/"),
        ([plain, context], "1=one1/"),
        ([context, plain], "2=one2/"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            merge(models, folder / "out" / "whole.onnx")
        assert f"such as --prefix {prefix}" in caught.value.hint
        number, _, text = prefix.partition("=")
        merge(models, folder / "out" / "whole.onnx", prefixes={number: text})


def test_a_stem_that_several_models_have_is_answered_with_their_numbers(folder):
    plain = product(folder / "one.onnx")

    with pytest.raises(InvalidArgument) as caught:
        merge([plain, plain], folder / "out" / "whole.onnx", prefixes={"one": "a/"})

    assert caught.value.hint == (
        "The models are one (1), one (2). Give the number of one of them."
    )


def test_a_prefix_at_an_ep_context_node_is_refused(folder):
    models = [compiled(product(folder / f"{n}.onnx")) for n in ("one", "two")]

    refused(
        folder,
        r"two_ctx\.onnx cannot get the prefix 'b_': its value 'x' is at an EPContext",
        models,
        prefixes={"two": "b_"},
    )


def test_inputs_of_unlike_types_are_refused(folder):
    first = product(folder / "one.onnx", y="h")
    second = folder / "two.onnx"
    second.write_bytes(
        onnx.parser.parse_model(
            '<ir_version: 9, opset_import: ["" : 17]> two (int64[3] h) => (int64[3] y) '
            "{ y = Neg(h) }"
        ).SerializeToString()
    )

    refused(folder, r"the input 'h' of two\.onnx is int64\[3\], and", [first, second])


@pytest.mark.parametrize(
    ("join", "match"),
    [
        (("one.z", "two.x"), r"one\.onnx has no output 'z'"),
        (("one.y", "two.z"), r"two\.onnx has no input 'z'"),
        (("two.y", "one.x"), "it is not computed before"),
        (("three.y", "two.x"), r"'three\.y' does not begin with a model"),
    ],
)
def test_a_join_of_nothing_is_refused(folder, join, match):
    models = [product(folder / "one.onnx"), product(folder / "two.onnx")]

    refused(folder, match, models, joins=dict([join]))


def test_models_that_one_ep_compiled_unlike_are_refused(folder):
    first = compiled(product(folder / "one.onnx", y="h"))
    plain = product(folder / "two.onnx", x="h")
    options = epctx.SessionOptions()
    options.add_provider("QNN", {"htp_arch": "75"})
    second = folder / "two_ctx.onnx"
    epctx.ModelCompiler(options, plain).compile_to_file(second)

    refused(folder, "were compiled unlike by QNNExecutionProvider", [first, second])


def test_a_missing_file_of_weights_is_named(folder):
    models = [product(folder / "one.onnx", y="h"), product(folder / "two.onnx", x="h")]
    (folder / "two.weights").unlink()

    with pytest.raises(InvalidGraph, match=r"'two\.weights', which is missing"):
        merge(models, folder / "whole.onnx")


def test_a_missing_model_is_named(folder):
    with pytest.raises(NoSuchFile, match="there is no model"):
        merge([folder / "no.onnx", folder / "none.onnx"], folder / "whole.onnx")


def test_models_of_one_share_group_are_merged_with_their_binary_once(folder):
    plain = [
        product(folder / "one.onnx", y="h", own="a_"),
        product(folder / "two.onnx", x="h", own="b_"),
    ]
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    with epctx.ShareGroup(output_dir=folder / "group") as group:
        for path in plain:
            group.compile(path, options)
    contexts = [folder / "group" / f"{name}_ctx.onnx" for name in ("one", "two")]
    expected = in_turn(*contexts)

    report = merge(contexts, folder / "whole.onnx")

    assert [file.name for file in report.files[1:]] == ["one_qnn.bin"]
    found = run(verified(report.model), x=X)
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5)
