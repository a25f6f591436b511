"""The corpus of paths, by every way in which a model can name a file that a load
opens.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import helper
from support.engine_eps import Alpha
from support.paths_corpus import AWKWARD, ESCAPES, LINKS, NOT_UTF8, lay_out
from support.small_models import chain, example, saved, snapshot
from support.validating_eps import compiled, session
from support.weightless import Harness

import epctx_core as epctx
from epctx_core.errors import EpctxError, InvalidGraph

if TYPE_CHECKING:
    from pathlib import Path

REFUSED = [
    pytest.param(name, id=label)
    for label, name in {**ESCAPES, **LINKS, **NOT_UTF8}.items()
]
INSIDE = [pytest.param(name, id=label) for label, name in AWKWARD.items()]


class ByPayload:
    """A context model's binary."""

    def __init__(self, folder: Path) -> None:
        source = saved(chain(["Relu", "Add"]), folder.parent / "m.onnx")
        self.model = compiled(source, Alpha, output=folder / "m_ctx.onnx")
        self.file = folder / "m_alpha.bin"

    def name(self, name: str | bytes) -> None:
        model = onnx.load(self.model)
        (attribute,) = [
            a for a in model.graph.node[0].attribute if a.name == "ep_cache_context"
        ]
        attribute.s = name if isinstance(name, bytes) else name.encode()
        del model.metadata_props[:]
        saved(model, self.model)

    def load(self) -> np.ndarray:
        with session(self.model, Alpha) as live:
            return live.run(None, {"x": example()})[0]


class ByWeight:
    """The file of a weight."""

    def __init__(self, folder: Path) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        self._weight = onnx.numpy_helper.from_array(array, "w")
        self._weight.ClearField("raw_data")
        self._weight.data_location = onnx.TensorProto.EXTERNAL
        self.file = folder / "w.data"
        self.file.write_bytes(array.tobytes())
        self.model = folder / "m.onnx"
        self.name("w.data")

    def name(self, name: str | bytes) -> None:
        del self._weight.external_data[:]
        marker = "?" * 7
        self._weight.external_data.add(
            key="location", value=name if isinstance(name, str) else marker
        )
        x, y = (helper.make_tensor_value_info(value, 1, [2, 3]) for value in "xy")
        graph = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [self._weight]
        )
        data = helper.make_model(
            graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]
        )
        text = data.SerializeToString()
        if isinstance(name, bytes):
            text = text.replace(marker.encode(), name.ljust(len(marker), b"x"))
        self.model.write_bytes(text)

    def load(self) -> np.ndarray:
        with epctx.InferenceSession(self.model) as live:
            return live.run(None, {"x": example()})[0]


class BySource:
    """The source model of a weightless context model."""

    def __init__(self, folder: Path) -> None:
        self._harness = Harness(folder)
        self.model = self._harness.compile()
        self.file = self._harness.source

    def name(self, name: str | bytes) -> None:
        model = onnx.load(self.model)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "onnx_model_filename":
                    attribute.s = name if isinstance(name, bytes) else name.encode()
        saved(model, self.model)

    def load(self) -> np.ndarray:
        with epctx.InferenceSession(self.model) as live:
            return live.run(None, {"x": self._harness.x})[0]


ROUTES = pytest.mark.parametrize("route", [ByPayload, ByWeight, BySource])


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder


@ROUTES
@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_leaves_or_is_no_file_of_the_folder_is_refused(route, folder, name):
    harness = route(folder)
    harness.load()
    # What lies outside would do: only the rule keeps it from being read.
    shutil.copyfile(harness.file, folder.parent / "outside.bin")
    lay_out(folder)
    harness.name(name)

    with pytest.raises(InvalidGraph) as caught:
        harness.load()

    assert len(str(caught.value)) < 3000
    assert caught.value.hint


@ROUTES
@pytest.mark.parametrize("name", INSIDE)
def test_an_awkward_name_is_a_file_inside_or_refused(route, folder, name):
    harness = route(folder)
    expected = harness.load()
    shutil.copyfile(harness.file, folder.parent / "outside.bin")
    (folder / "sub").mkdir()
    harness.name(name)
    with pytest.raises(InvalidGraph):
        # Nothing of that name is there, and nothing else is taken for it.
        harness.load()
    target = folder / os.path.normpath(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    harness.file.rename(target)
    before = snapshot(folder.parent)

    try:
        found = harness.load()
    except EpctxError as error:
        assert isinstance(error, InvalidGraph)
    else:
        assert np.array_equal(found, expected)

    assert snapshot(folder.parent) == before


@ROUTES
def test_a_hard_link_is_a_file_like_any_other(route, folder):
    harness = route(folder)
    expected = harness.load()
    shutil.copyfile(harness.file, folder.parent / "outside.bin")
    os.link(folder.parent / "outside.bin", folder / "hard.bin")

    harness.name("hard.bin")

    assert np.array_equal(harness.load(), expected)


@ROUTES
def test_names_that_differ_in_case_or_in_how_letters_are_composed_are_different_files(
    route, folder
):
    harness = route(folder)
    expected = harness.load()
    for wanted, other in (("\u00e9.bin", "e\u0301.bin"), ("a.bin", "A.bin")):
        shutil.copyfile(harness.file, folder / wanted)
        if (folder / other).exists():
            pytest.skip("this folder takes the two for one")
        (folder / other).write_bytes(b"another")
        harness.name(wanted)

        assert np.array_equal(harness.load(), expected)
