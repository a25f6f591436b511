"""Weights in several files, in subfolders, behind links into a cache; models from
bytes.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.special_models import made, node, numbers, value
from support.taker import Taker, assert_same, compile_with, run_with

import epctx_core as epctx

FOLDER_OPTION = "session__model_external_initializers_file_folder_path"
FEEDS = {"x": numbers(4, 300)}


def spread_out(folder, places):
    """Return a model of one Add and Sigmoid a weight, with each weight's bytes in a
    file of `places`.

    Args:
        folder: where the files are made.
        places: (file, offset) of each weight.
    """
    nodes, weights, last = [], [], "x"
    total = FEEDS["x"]
    for number, (location, offset) in enumerate(places):
        array = numbers(300, seed=number)
        path = folder / location
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(array.tobytes())
        tensor = TensorProto(
            name=f"w{number}",
            data_type=1,
            dims=[300],
            data_location=TensorProto.EXTERNAL,
        )
        entries = {
            "location": location,
            "offset": str(offset),
            "length": str(array.nbytes),
        }
        for key, text in entries.items():
            tensor.external_data.add(key=key, value=text)
        weights.append(tensor)
        nodes += [
            node("Add" if number % 2 else "Sub", [last, f"w{number}"], [f"v{number}"]),
        ]
        last = f"v{number}"
        total = total + array if number % 2 else total - array
    nodes.append(node("Identity", [last], ["y"]))
    return made(
        nodes, [value("x", shape=(4, 300))], [value("y", shape=(4, 300))], weights
    ), total


PLACES = [
    ("a.bin", 0),
    ("sub/folder/b.bin", 64),
    ("a.bin", 4096),
    ("sub/c", 7),
    ("sub/../d.bin", 0),
]


def test_several_files_and_subfolders(tmp_path):
    model, expected = spread_out(tmp_path, PLACES)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())

    original = run_with(Taker, path, FEEDS, providers=False)
    compiled = run_with(Taker, path, FEEDS)
    (out := tmp_path / "out").mkdir()
    report = compile_with(Taker, path, out / "m_ctx.onnx")
    for name in ("a.bin", "d.bin", "sub/c", "sub/folder/b.bin"):
        (tmp_path / name).unlink()
    loaded = run_with(Taker, out / "m_ctx.onnx", FEEDS, providers=False)

    for results in (original, compiled, loaded):
        np.testing.assert_allclose(results[0], expected, 1e-5, 1e-5)
    assert sum(p.nodes for p in report.partitions) == 2


def test_a_model_from_bytes_finds_its_weights_in_the_folder_given(tmp_path):
    (weights := tmp_path / "weights").mkdir()
    model, expected = spread_out(weights, PLACES)
    data = model.SerializeToString()
    out = tmp_path / "m_ctx.onnx"

    compiled = run_with(Taker, data, FEEDS, **{FOLDER_OPTION: weights})
    compile_with(Taker, data, out, **{FOLDER_OPTION: weights})
    loaded = run_with(
        Taker,
        out.read_bytes(),
        FEEDS,
        providers=False,
        ep__context_file_path=tmp_path / "m_ctx.onnx",
    )

    for results in (compiled, loaded):
        np.testing.assert_allclose(results[0], expected, 1e-5, 1e-5)


def test_a_session_from_bytes_writes_where_its_option_says_and_loads_from_there(
    tmp_path,
):
    model, _ = spread_out(tmp_path, PLACES)
    (out := tmp_path / "out").mkdir()
    entries = {FOLDER_OPTION: tmp_path, "ep__context_file_path": out / "net_ctx.onnx"}

    first = run_with(
        Taker, model.SerializeToString(), FEEDS, ep__context_enable=1, **entries
    )
    second = run_with(
        Taker, (out / "net_ctx.onnx").read_bytes(), FEEDS, providers=False, **entries
    )

    assert sorted(path.name for path in out.iterdir()) == [
        "net_ctx.onnx",
        "net_taker.bin",
    ]
    assert_same(second, first)


def test_a_model_from_bytes_says_which_option_it_needs(tmp_path):
    model, _ = spread_out(tmp_path, PLACES)

    with pytest.raises(
        epctx.InvalidArgument, match=r"'w0' in the file 'a\.bin'"
    ) as caught:
        run_with(Taker, model.SerializeToString(), FEEDS)

    assert "session.model_external_initializers_file_folder_path" in caught.value.hint


@pytest.fixture
def cache(tmp_path):
    """A model and its weights as a hub's cache keeps them: links in a snapshot to blobs
    named by digest.
    """
    (blobs := tmp_path / "cache" / "blobs").mkdir(parents=True)
    snapshot = tmp_path / "cache" / "snapshots" / "0123abcd" / "onnx"
    snapshot.mkdir(parents=True)
    (made_in := tmp_path / "made").mkdir()
    model, expected = spread_out(made_in, [("model.onnx_data", 0), ("more/data_1", 0)])
    files = {
        "model.onnx": model.SerializeToString(),
        "model.onnx_data": (made_in / "model.onnx_data").read_bytes(),
        "more/data_1": (made_in / "more" / "data_1").read_bytes(),
    }
    for number, (name, data) in enumerate(files.items()):
        (blobs / f"{number:064x}").write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / f"{number:064x}", link.parent))
    return snapshot / "model.onnx", expected


def test_files_that_are_links_into_a_cache_are_read(tmp_path, cache):
    model, expected = cache

    compiled = run_with(Taker, model, FEEDS)
    compile_with(Taker, model, tmp_path / "m_ctx.onnx")
    loaded = run_with(Taker, tmp_path / "m_ctx.onnx", FEEDS, providers=False)

    for results in (compiled, loaded):
        np.testing.assert_allclose(results[0], expected, 1e-5, 1e-5)


def test_without_an_output_path_the_context_model_lies_beside_the_link(cache):
    model, _ = cache

    report = compile_with(Taker, model)

    assert report.output == model.with_name("model_ctx.onnx")
    assert model.is_symlink()
    assert (model.parent / "model_taker.bin").is_file()


def test_a_link_to_elsewhere_is_refused(tmp_path, cache):
    model, _ = cache
    (tmp_path / "secret").write_bytes(bytes(1200))
    link = model.parent / "model.onnx_data"
    link.unlink()
    link.symlink_to(tmp_path / "secret")

    with pytest.raises(epctx.InvalidGraph, match="leaves the model's folder"):
        run_with(Taker, model, FEEDS)


def test_weights_without_bytes_may_lie_in_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    tensor = TensorProto(
        name="w", data_type=1, dims=[0, 300], data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value="empty")
    model = made(
        [node("Concat", ["x", "w"], ["c"], axis=0), node("Relu", ["c"], ["y"])],
        [value("x", shape=(4, 300))],
        [value("y", shape=(4, 300))],
        [tensor],
    )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())

    (result,) = run_with(Taker, tmp_path / "m.onnx", FEEDS)

    np.testing.assert_array_equal(result, np.maximum(FEEDS["x"], 0))


def test_a_context_model_keeps_no_external_weight(tmp_path):
    model, _ = spread_out(tmp_path, PLACES)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())

    report = compile_with(Taker, tmp_path / "m.onnx")

    left = onnx.load(report.output, load_external_data=False).graph.initializer
    assert [t.name for t in left] == ["w0", "w2", "w4"]
    assert all(t.data_location == TensorProto.DEFAULT for t in left)


def test_a_sparse_tensor_of_text_is_refused_for_that_reason():
    text = helper.make_tensor("text", TensorProto.STRING, [1], [b"a"])
    sparse = helper.make_sparse_tensor(
        text, helper.make_tensor("at", TensorProto.INT64, [1], [1]), [3]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Identity", ["c"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [], [helper.make_tensor_value_info("y", TensorProto.STRING, [3])]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )

    with pytest.raises(epctx.InvalidGraph, match="contains text") as caught:
        epctx.InferenceSession(model.SerializeToString())

    assert "Store it dense" in caught.value.hint
