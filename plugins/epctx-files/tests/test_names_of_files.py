"""Names of files that work on files writes: each means one file, whatever lies there."""

from __future__ import annotations

import os
import shutil

import numpy as np
import onnx
import pytest
from epctx_files import bundle, embed, externalize, extract, merge
from file_models import X, compiled, product, run, verified

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, InvalidGraph, InvalidProtobuf

pytestmark = pytest.mark.internal


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "models"


def rename_weights(path, names):
    """Have a model name its files of weights differently, and rename these."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                (path.parent / names[tensor.name]).parent.mkdir(exist_ok=True)
                shutil.copy(path.parent / entry.value, path.parent / names[tensor.name])
                entry.value = names[tensor.name]
    path.write_bytes(model.SerializeToString())
    return path


def two_files(path, *, names, **options):
    """Write a model whose weight and bias lie in files of these names."""
    product(path, **options)
    model = onnx.load(path, load_external_data=False)
    bias = model.graph.initializer[1]
    path.with_suffix(".bias").write_bytes(bias.raw_data)
    onnx.external_data_helper.set_external_data(bias, f"{path.stem}.bias")
    bias.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return rename_weights(path, dict(zip(("weight", "bias"), names, strict=True)))


def test_a_new_name_is_no_other_one_of_the_same_model(folder):
    names = ("w.bin", "two_w.bin")
    first = two_files(folder / "a" / "one.onnx", names=("w.bin", "v.bin"), y="h")
    second = two_files(folder / "b" / "two.onnx", names=names, x="h", seed=2)
    expected = run(second, h=run(first, x=X)["h"])["y"]

    report = merge([first, second], folder / "whole.onnx")

    assert len({file.name for file in report.files}) == 5
    found = run(report.model, x=X)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_numbered_name_is_no_other_one_of_the_same_model(folder):
    plain = two_files(folder / "a" / "one.onnx", names=("w.bin", "w_2.bin"))
    (folder / "w.bin").write_bytes(b"another's")

    report = extract(plain, folder / "part.onnx", outputs=["y"])

    assert len({file.name for file in report.files}) == 3
    np.testing.assert_array_equal(run(report.model, x=X)["y"], run(plain, x=X)["y"])


def test_a_binary_that_a_third_model_names_too_is_not_replaced(folder):
    shared = compiled(product(folder / "net.onnx"))
    other = shutil.copy(shared, folder / "other_ctx.onnx")
    inside = compiled(
        product(folder / "more" / "net.onnx", seed=5), ep__context_embed_mode="1"
    )
    expected = run(other, x=X)["y"]

    report = externalize(inside, shared)

    assert report.files[1].name == "net_qnn_2.bin"
    np.testing.assert_array_equal(run(other, x=X)["y"], expected)
    verified(report.model)


def test_writing_again_replaces_the_files_of_the_model_that_it_replaces(folder):
    inside = compiled(product(folder / "net.onnx"), ep__context_embed_mode="1")

    reports = [externalize(inside, folder / "out" / "net_ctx.onnx") for _ in range(2)]

    names = [[file.name for file in report.files] for report in reports]
    assert names == [["net_ctx.onnx", "net_qnn.bin"]] * 2
    verified(reports[1].model)


@pytest.mark.parametrize("work", [embed, externalize])
@pytest.mark.parametrize("mode", ["0", "1"])
def test_a_model_may_be_its_own_output(folder, work, mode):
    context = compiled(product(folder / "net.onnx"), ep__context_embed_mode=mode)
    expected = run(context, x=X)["y"]

    assert work(context, context).model == context

    np.testing.assert_array_equal(run(verified(context), x=X)["y"], expected)


def test_a_merged_model_may_replace_one_of_its_models(folder):
    first = compiled(product(folder / "one.onnx", y="h"))
    second = compiled(product(folder / "two.onnx", x="h"))
    expected = run(second, h=run(first, x=X)["h"])["y"]

    merge([first, second], first)

    found = run(verified(first), x=X)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_weights_in_sub_folders_stay_in_sub_folders(folder):
    plain = rename_weights(product(folder / "net.onnx"), {"weight": "deep/w.bin"})
    expected = run(plain, x=X)["y"]

    report = extract(plain, folder / "new" / "part.onnx", outputs=["y"])

    assert report.files[1].name == "deep/w.bin"
    np.testing.assert_array_equal(run(report.model, x=X)["y"], expected)


def test_an_output_through_a_link_lies_where_the_link_leads(folder):
    context = compiled(product(folder / "net.onnx"))
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")

    report = extract(context, folder / "link" / "part.onnx", outputs=["y"])

    verified(folder / "real" / "part.onnx")
    assert (folder / "real" / report.files[1].name).is_file()


def test_a_file_that_was_replaced_since_it_was_opened_is_copied(folder, monkeypatch):
    plain = product(folder / "net.onnx")
    expected = run(plain, x=X)["y"]
    weights, encode = folder / "net.weights", bundle._encode

    def replace_and_encode(*arguments):
        weights.unlink()
        weights.write_bytes(b"another's")
        return encode(*arguments)

    monkeypatch.setattr(bundle, "_encode", replace_and_encode)
    report = extract(plain, folder / "out" / "part.onnx", outputs=["y"])

    assert report.files[1].how == "copied"
    np.testing.assert_array_equal(run(report.model, x=X)["y"], expected)


def test_a_file_that_was_removed_since_it_was_opened_is_copied(folder, monkeypatch):
    plain = product(folder / "net.onnx")
    encode = bundle._encode

    def remove_and_encode(*arguments):
        (folder / "net.weights").unlink()
        return encode(*arguments)

    monkeypatch.setattr(bundle, "_encode", remove_and_encode)
    report = extract(plain, folder / "out" / "part.onnx", outputs=["y"])

    assert report.files[1].how == "copied"


def test_a_file_that_is_replaced_while_it_is_linked_is_refused(folder, monkeypatch):
    plain = product(folder / "net.onnx")
    weights, link = folder / "net.weights", bundle.Publication.link

    def replace_and_link(self, name, path):
        weights.unlink()
        weights.write_bytes(b"another's")
        return link(self, name, path)

    monkeypatch.setattr(bundle.Publication, "link", replace_and_link)
    with pytest.raises(Fail, match="was replaced while"):
        extract(plain, folder / "out" / "part.onnx", outputs=["y"])
    assert not (folder / "out").exists()


def test_the_seal_beside_a_model_that_is_replaced_is_not_read_for_the_new_one(folder):
    inside = compiled(product(folder / "net.onnx"), ep__context_embed_mode="1")
    model = onnx.load(inside)
    del model.metadata_props[:]
    foreign = folder / "foreign.onnx"
    onnx.save(model, foreign)
    target = shutil.copy(foreign, folder / "target.onnx")
    epctx.seal_model(target, beside=True)

    with pytest.raises(InvalidArgument, match=r"target\.onnx\.epctx\.json"):
        externalize(foreign, target)


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (b"", InvalidProtobuf, "is empty"),
        (b"\x08\0\0\0ORTM....", InvalidProtobuf, "ONNX Runtime's format"),
        (b"no model", InvalidProtobuf, "is not an ONNX model"),
    ],
)
def test_a_file_that_is_no_model_is_refused(folder, content, error, match):
    folder.mkdir()
    (folder / "m.onnx").write_bytes(content)

    with pytest.raises(error) as caught:
        embed(folder / "m.onnx", folder / "out.onnx")
    assert match in f"{caught.value.message} {caught.value.hint}"


def test_a_pipe_is_no_model(folder):
    folder.mkdir()
    os.mkfifo(folder / "m.onnx")

    with pytest.raises(InvalidArgument, match="is a pipe"):
        embed(folder / "m.onnx", folder / "out.onnx")


def test_a_folder_is_no_model(folder):
    folder.mkdir()

    with pytest.raises(epctx.EpctxError, match="is a folder"):
        embed(folder, folder / "out.onnx")


def test_a_file_of_more_than_two_gib_is_no_model(folder):
    folder.mkdir()
    with (folder / "m.onnx").open("wb") as file:
        file.truncate(5 << 30)

    with pytest.raises(InvalidProtobuf, match="2 GiB"):
        embed(folder / "m.onnx", folder / "out.onnx")


@pytest.mark.parametrize("wrong", [None, b"m.onnx", 5])
def test_what_is_no_path_is_refused(folder, wrong):
    plain = product(folder / "net.onnx")

    with pytest.raises(InvalidArgument, match="is a path"):
        embed(wrong, folder / "out.onnx")
    with pytest.raises(InvalidArgument, match="is a path"):
        embed(plain, wrong)


def test_a_model_whose_seal_does_not_fit_is_not_sealed_anew(folder):
    inside = compiled(product(folder / "net.onnx"), ep__context_embed_mode="1")
    model = onnx.load(inside)
    del model.metadata_props[:]
    onnx.save(model, inside)
    epctx.seal_model(inside)
    changed = onnx.load(inside)
    changed.graph.doc_string = "changed"
    seal = changed.metadata_props.pop()
    end = onnx.ModelProto(metadata_props=[seal]).SerializeToString()
    inside.write_bytes(changed.SerializeToString() + end)
    assert "seal-broken" in {f.code for f in epctx.verify_model(inside).findings}

    with pytest.raises(InvalidGraph, match="seal"):
        externalize(inside, folder / "out" / "net_ctx.onnx")
