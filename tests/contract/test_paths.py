"""Entries 74 to 83: names of files out of models, by an EPContext node and by a weight,
on every route that reads them.
"""

from __future__ import annotations

import contextlib
import os
import socket

import numpy as np
import onnx
import pytest
from onnx import helper
from support.engine_eps import Alpha
from support.routes import refused
from support.small_models import chain, example, saved
from support.validating_eps import options_with, registry_with

import epctx_core as epctx
from epctx_core.errors import InvalidArgument, InvalidGraph

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"


@pytest.fixture
def model(tmp_path):
    """A context model and its binary, alone in a folder; outside lies a copy of the
    binary.
    """
    folder = tmp_path / "model"
    folder.mkdir()
    source = saved(chain(["Relu", "Add"]), tmp_path / "m.onnx")
    path = folder / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(Alpha), source, registry=registry_with(Alpha)
    ).compile_to_file(path)
    (tmp_path / "outside.bin").write_bytes((folder / "m_alpha.bin").read_bytes())
    return path


def naming(path, name):
    """Have the model's node name a file; return the model."""
    model = onnx.load(path)
    (node,) = model.graph.node
    for attribute in node.attribute:
        if attribute.name == "ep_cache_context":
            attribute.s = name if isinstance(name, bytes) else name.encode()
    del model.metadata_props[:]
    return saved(model, path)


def load(model, **entries):
    registry = registry_with(Alpha)
    with epctx.InferenceSession(
        model, options_with(Alpha, **entries), registry=registry
    ) as session:
        return session.run(None, {"x": example()})[0]


def load_bytes(model, **entries):
    return load(model.read_bytes(), ep__context_file_path=model, **entries)


def compile_again(model, **entries):
    output = model.with_name("again_ctx.onnx")
    epctx.ModelCompiler(options_with(**entries), model).compile_to_file(output)
    return load(output)


def verify_first(model, **entries):
    return load(model, ep__context_verify="full", **entries)


def read_into_memory(model, **entries):
    return load(model, ep__context_file_mapping=0, **entries)


MAIN_ROUTES = pytest.mark.parametrize("route", [load, compile_again])
ROUTES = pytest.mark.parametrize(
    "route", [load, load_bytes, compile_again, verify_first, read_into_memory]
)

LEAVES = [
    pytest.param(
        "../outside.bin", "leaves the model's folder", marks=pytest.mark.entry(75, 83)
    ),
    pytest.param(
        "sub/../../outside.bin",
        "leaves the model's folder",
        marks=pytest.mark.entry(75),
    ),
    pytest.param(
        "..\\outside.bin", "leaves the model's folder", marks=pytest.mark.entry(75)
    ),
    pytest.param("..", "leaves the model's folder", marks=pytest.mark.entry(79)),
    pytest.param("/etc/hostname", "an absolute path", marks=pytest.mark.entry(74, 79)),
    pytest.param(
        "//server/share/a.bin", "an absolute path", marks=pytest.mark.entry(79)
    ),
    pytest.param(
        "\\\\server\\share\\a.bin", "an absolute path", marks=pytest.mark.entry(79)
    ),
    pytest.param("\\\\?\\C:\\a.bin", "an absolute path", marks=pytest.mark.entry(79)),
    pytest.param("\\rooted.bin", "an absolute path", marks=pytest.mark.entry(79)),
    pytest.param("C:\\a.bin", "an absolute path", marks=pytest.mark.entry(79)),
    pytest.param("C:/a.bin", "an absolute path", marks=pytest.mark.entry(79)),
    pytest.param(".", "a folder", marks=pytest.mark.entry(79)),
    pytest.param("./", "a folder", marks=pytest.mark.entry(79)),
    pytest.param("sub/..", "a folder", marks=pytest.mark.entry(79)),
    pytest.param("sub/", "a folder", marks=pytest.mark.entry(79)),
    pytest.param("sub", "not a regular file", marks=pytest.mark.entry(79)),
    pytest.param("", "an empty name|no file name", marks=pytest.mark.entry(73, 80)),
    pytest.param("a\0.bin", "no file system takes"),
    pytest.param("n" * 5000, "no file system takes"),
    pytest.param("n" * 300, "cannot be opened|missing"),
    pytest.param("m_alpha.bin/x", "cannot be opened|missing"),
    pytest.param("missing.bin", "missing", marks=pytest.mark.entry(71, 72)),
    pytest.param(b"\xff\xfe.bin", "not a file name", marks=pytest.mark.entry(82)),
]


@MAIN_ROUTES
@pytest.mark.parametrize(("name", "words"), LEAVES)
def test_a_name_that_is_not_of_a_file_in_the_folder_is_refused(
    model, route, name, words
):
    (model.parent / "sub").mkdir()
    naming(model, name)
    node = onnx.load(model).graph.node[0].name

    with refused(InvalidGraph, words, folder=model.parent, node=node) as caught:
        route(model)

    assert len(str(caught.value)) < 2000
    assert route is not load or caught.value.ep == Alpha.name


def link_to(target):
    return lambda folder: (folder / "n.bin").symlink_to(target)


def pipe(folder):
    os.mkfifo(folder / "n.bin")


def listening(folder):
    # The address of a socket is short: it is bound in the folder itself.
    with contextlib.chdir(folder), socket.socket(socket.AF_UNIX) as listener:
        listener.bind("n.bin")


@ROUTES
@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(
            link_to("../outside.bin"),
            "a link that leaves",
            marks=pytest.mark.entry(77, 78),
        ),
        pytest.param(link_to("/dev/zero"), "a link that leaves", id="device"),
        pytest.param(link_to("/proc/self/mem"), "a link that leaves", id="memory"),
        pytest.param(link_to("n.bin"), "cannot be opened|missing", id="itself"),
        pytest.param(link_to("nothing.bin"), "missing", id="dangling"),
        pytest.param(pipe, "not a regular file", id="pipe"),
        pytest.param(listening, "cannot be opened|not a regular file", id="socket"),
        pytest.param(
            lambda folder: (folder / "n.bin").mkdir(), "not a regular file", id="folder"
        ),
    ],
)
def test_what_is_no_file_of_the_folder_is_refused_without_waiting(
    model, route, make, words
):
    make(model.parent)
    naming(model, "n.bin")

    with refused(InvalidGraph, words):
        route(model)


@pytest.mark.entry(76)
@ROUTES
@pytest.mark.parametrize(
    "name", ["sub/n.bin", "./sub//n.bin", "sub/../sub/n.bin", "no/../sub/n.bin"]
)
def test_a_name_that_stays_in_the_folder_is_opened_however_it_is_spelt(
    model, route, name
):
    expected = load(model)
    (model.parent / "sub").mkdir()
    (model.parent / "m_alpha.bin").rename(model.parent / "sub" / "n.bin")

    assert np.array_equal(route(naming(model, name)), expected)


@pytest.mark.entry(76, 82)
@MAIN_ROUTES
@pytest.mark.parametrize(
    "name",
    ["a.b..c_alpha.bin", "..a.bin", "名前.bin", "e\u0301.bin", "a b'\".bin", "-"],
)
def test_any_text_that_a_file_can_be_called_is_a_name(model, route, name):
    expected = load(model)
    (model.parent / "m_alpha.bin").rename(model.parent / name)

    assert np.array_equal(route(naming(model, name)), expected)


@ROUTES
def test_a_link_inside_the_folder_and_a_hard_link_are_files_like_any_other(
    model, route
):
    expected = load(model)
    (model.parent / "link.bin").symlink_to("m_alpha.bin")
    os.link(model.parent / "m_alpha.bin", model.parent / "hard.bin")

    for name in ("link.bin", "hard.bin"):
        assert np.array_equal(route(naming(model, name)), expected)
        (model.parent / "again_ctx.onnx").unlink(missing_ok=True)


def test_a_model_in_a_cache_of_links_is_loaded_and_compiled_again(model, tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    expected = load(model)
    for number, path in enumerate((model, model.with_name("m_alpha.bin"))):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    out = tmp_path / "out"
    out.mkdir()

    assert np.array_equal(load(snapshot / "m_ctx.onnx"), expected)
    epctx.ModelCompiler(options_with(), snapshot / "m_ctx.onnx").compile_to_file(
        out / "n_ctx.onnx"
    )
    assert np.array_equal(load(out / "n_ctx.onnx"), expected)


def test_beside_links_a_new_model_would_not_find_the_binary_and_the_old_one_is_not_lost(
    model, tmp_path
):
    real = tmp_path / "real"
    real.mkdir()
    for path in (model, model.with_name("m_alpha.bin")):
        path.rename(real / path.name)
        path.symlink_to(real / path.name)

    with refused(
        InvalidArgument, "'m_alpha.bin' would be written, but 'm_ctx.onnx'.* reads it"
    ):
        epctx.ModelCompiler(options_with(), model).compile_to_file(
            model.with_name("n_ctx.onnx")
        )

    assert load(model).shape == (2, 3)


# --- names of weights -----------------------------------------------------------------


@pytest.mark.entry(74, 75, 79)
@pytest.mark.parametrize(
    "option", [False, True], ids=["beside the model", "in the option's folder"]
)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("../outside.data", "leaves the model's folder"),
        ("sub/../../outside.data", "leaves the model's folder"),
        ("/outside.data", "an absolute path|absolute"),
        ("C:\\outside.data", "an absolute path"),
        ("\\\\server\\outside.data", "an absolute path"),
        ("sub/..", "a folder"),
        ("link.data", "a link that leaves"),
        ("gone.data", "missing"),
    ],
)
def test_a_weights_file_is_held_to_the_same_rule(tmp_path, name, words, option):
    folder = tmp_path / "model"
    folder.mkdir()
    array = np.ones((64, 64), np.float32)
    (tmp_path / "outside.data").write_bytes(array.tobytes())
    (folder / "link.data").symlink_to("../outside.data")
    weight = onnx.numpy_helper.from_array(array, "w")
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=name)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", 1, [64, 64])],
        [helper.make_tensor_value_info("y", 1, [64, 64])], [weight],
    )  # fmt: skip
    path = saved(helper.make_model(graph, ir_version=8), folder / "m.onnx")
    entries = {FOLDER_OPTION.replace(".", "__"): folder} if option else {}

    for given in (path, path.read_bytes()) if option else (path,):
        with refused(InvalidGraph, words):
            load(given, **entries)
        with refused(InvalidGraph, words):
            epctx.ModelCompiler(options_with(**entries), given).compile_to_file(
                tmp_path / "o_ctx.onnx"
            )


# --- round trips ----------------------------------------------------------------------


@pytest.mark.entry(81)
def test_a_payload_that_is_written_again_leaves_nothing_of_the_old_one(tmp_path):
    long = saved(
        chain(["Relu", "Add", "Add", "Add", "Add", "Add"]), tmp_path / "long.onnx"
    )
    short = saved(chain(["Relu"]), tmp_path / "short.onnx")
    path = tmp_path / "m_ctx.onnx"

    for source in (long, short, long):
        compiler = epctx.ModelCompiler(
            options_with(Alpha), source, registry=registry_with(Alpha)
        )
        written = compiler.compile_to_file(path)
        assert (tmp_path / "m_alpha.bin").stat().st_size == written.outputs[0].bytes
        assert load(path).shape == (2, 3)


@pytest.mark.entry(80)
def test_a_reference_may_have_an_empty_text_for_the_payload_that_it_does_not_carry(
    tmp_path,
):
    source = saved(chain(["Relu", "Sigmoid", "Add"]), tmp_path / "m.onnx")
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(
        options_with(Alpha), source, registry=registry_with(Alpha)
    ).compile_to_file(path)
    model = onnx.load(path)
    model.graph.node[-1].attribute.append(
        helper.make_attribute("ep_cache_context", b"")
    )
    saved(model, path)

    assert load(path).shape == (2, 3)
    assert compile_again(path).shape == (2, 3)
