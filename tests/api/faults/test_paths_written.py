"""The corpus of paths, by every way in which a host can name a file that a compile writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from end_to_end.share_models import options, run, sharing, write_model
from end_to_end.sim_eps import QNN
from end_to_end.small_models import snapshot
from paths_corpus import AWKWARD, ESCAPES, LINKS, lay_out

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile

ROWS = 2


class Scene:
    """A source, a folder to compile into, and what lies beside it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.folder = top / "folder"
        self.folder.mkdir()
        (top / "outside.bin").write_bytes(b"outside")
        (top / "source").mkdir()
        self.source = write_model(QNN, top / "source" / "m.onnx", ROWS)
        self.expected = run(self.source, ROWS)

    def compiler(self, **arguments):
        return epctx.ModelCompiler(options(QNN), self.source, **arguments)


def for_initializers(scene, name):
    compiler = epctx.ModelCompiler(
        epctx.SessionOptions(),
        scene.source,
        external_initializers_file_path=name,
        external_initializers_size_threshold=0,
    )
    compiler.compile_to_file(scene.folder / "m_ctx.onnx")
    return scene.folder / "m_ctx.onnx"


def by_location_function(scene, name):
    def locate(_tensor, value, _now):
        return epctx.OrtExternalInitializerInfo(name, 0, value.numpy().nbytes)

    compiler = epctx.ModelCompiler(epctx.SessionOptions(), scene.source, get_initializer_location_func=locate)
    compiler.compile_to_file(scene.folder / "m_ctx.onnx")
    # the files are the host's to write


def for_binaries(scene, name):
    compiler = scene.compiler()
    compiler.set_ep_context_binary_information(scene.folder, name)
    compiler.compile_to_file(scene.folder / "m_ctx.onnx")
    return scene.folder / "m_ctx.onnx"


def for_a_group(scene, name):
    with epctx.ShareGroup(output_dir=scene.folder) as group:
        group.compile(scene.source, sharing(QNN), name=name)
    return scene.folder / f"{name}_ctx.onnx"


def for_the_model(scene, name):
    output = f"{scene.folder}/{name}.onnx"
    scene.compiler().compile_to_file(output)
    return Path(output)


def by_the_option(scene, name):
    output = f"{scene.folder}/{name}.onnx"
    session = options(QNN, ep__context_enable=1, ep__context_file_path=output)
    epctx.InferenceSession(scene.source, session).close()
    return Path(output)


INSIDE_ONLY = (for_initializers, by_location_function, for_binaries, for_a_group)
"""Names that have to stay in the context model's folder. Where the model itself goes is the host's to say."""
EVERY_ROUTE = (*INSIDE_ONLY, for_the_model, by_the_option)


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


@pytest.mark.parametrize("route", INSIDE_ONLY)
@pytest.mark.parametrize("name", [pytest.param(name, id=label) for label, name in ESCAPES.items()])
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_written(scene, route, name):
    (scene.folder / "sub").mkdir()
    before = snapshot(scene.top)

    with pytest.raises(InvalidArgument) as caught:
        route(scene, name)

    assert len(str(caught.value)) < 3000
    assert caught.value.hint
    assert snapshot(scene.top) == before


def assert_refused_or_inside(scene, route, name):
    before = snapshot(scene.top)
    try:
        model = route(scene, name)
    except (InvalidArgument, Fail, NoSuchFile) as error:
        assert error.hint
        assert snapshot(scene.top) == before
        return False
    after = snapshot(scene.top)
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed
    assert all(path.startswith("folder/") for path in changed)
    assert not [path for path in after if ".epctx-" in path]
    if model is not None:
        assert model.is_file()
        np.testing.assert_allclose(run(model, ROWS), scene.expected, rtol=1e-4, atol=1e-4)
    return True


@pytest.mark.parametrize("route", EVERY_ROUTE)
@pytest.mark.parametrize("name", [pytest.param(name, id=label) for label, name in AWKWARD.items()])
def test_an_awkward_name_is_refused_or_a_file_inside_that_loads(scene, route, name):
    (scene.folder / "sub").mkdir()

    assert_refused_or_inside(scene, route, name)


@pytest.mark.parametrize("name", [pytest.param(name, id=label) for label, name in LINKS.items()])
def test_what_a_link_leads_to_is_never_written(scene, name):
    lay_out(scene.folder)
    outside = scene.top / "outside.bin"

    assert_refused_or_inside(scene, for_initializers, name)

    assert outside.read_bytes() == b"outside"
    assert not (scene.top / "nowhere.bin").exists()


def test_a_hard_link_is_replaced_and_its_other_name_keeps_the_bytes(scene):
    outside = scene.top / "outside.bin"
    (scene.folder / "hard.bin").hardlink_to(outside)

    written = assert_refused_or_inside(scene, for_initializers, "hard.bin")

    assert written
    assert outside.read_bytes() == b"outside"
    assert not (scene.folder / "hard.bin").samefile(outside)


@pytest.mark.parametrize("twin", ["M\u00c9_qnn.bin", "me\u0301_qnn.bin", "m\u00e9_qnn.bin"])
def test_two_files_whose_names_some_folders_take_for_one_are_refused(scene, twin):
    before = snapshot(scene.top)

    with pytest.raises(InvalidArgument, match="would both write"):
        scene.compiler(external_initializers_file_path=twin).compile_to_file(
            scene.folder / "m\u00e9_ctx.onnx"
        )

    assert snapshot(scene.top) == before
