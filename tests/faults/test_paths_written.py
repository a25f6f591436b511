"""The corpus of paths, by every way in which a host can name a file that a compile
writes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.paths_corpus import AWKWARD, ESCAPES, LINKS, lay_out
from support.share_models import options, run, sharing, write_model
from support.sim_eps import QNN
from support.small_models import snapshot

import epctx_core as epctx
from epctx_core.errors import Fail, InvalidArgument, NoSuchFile

ROWS = 2


class Harness:
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


def for_initializers(harness, name):
    compiler = epctx.ModelCompiler(
        epctx.SessionOptions(),
        harness.source,
        external_initializers_file_path=name,
        external_initializers_size_threshold=0,
    )
    compiler.compile_to_file(harness.folder / "m_ctx.onnx")
    return harness.folder / "m_ctx.onnx"


def by_location_function(harness, name):
    def locate(_tensor, value, _now):
        return epctx.OrtExternalInitializerInfo(name, 0, value.numpy().nbytes)

    compiler = epctx.ModelCompiler(
        epctx.SessionOptions(), harness.source, get_initializer_location_func=locate
    )
    compiler.compile_to_file(harness.folder / "m_ctx.onnx")
    # the files are the host's to write


def for_binaries(harness, name):
    compiler = harness.compiler()
    compiler.set_ep_context_binary_information(harness.folder, name)
    compiler.compile_to_file(harness.folder / "m_ctx.onnx")
    return harness.folder / "m_ctx.onnx"


def for_a_group(harness, name):
    with epctx.ShareGroup(output_dir=harness.folder) as group:
        group.compile(harness.source, sharing(QNN), name=name)
    return harness.folder / f"{name}_ctx.onnx"


def for_the_model(harness, name):
    output = f"{harness.folder}/{name}.onnx"
    harness.compiler().compile_to_file(output)
    return Path(output)


def by_the_option(harness, name):
    output = f"{harness.folder}/{name}.onnx"
    session = options(QNN, ep__context_enable=1, ep__context_file_path=output)
    epctx.InferenceSession(harness.source, session).close()
    return Path(output)


INSIDE_ONLY = (for_initializers, by_location_function, for_binaries, for_a_group)
"""Names that have to stay in the context model's folder.

Where the model itself goes is the host's to say.
"""
EVERY_ROUTE = (*INSIDE_ONLY, for_the_model, by_the_option)


@pytest.fixture
def harness(tmp_path):
    return Harness(tmp_path)


@pytest.mark.parametrize("route", INSIDE_ONLY)
@pytest.mark.parametrize(
    "name", [pytest.param(name, id=label) for label, name in ESCAPES.items()]
)
def test_a_name_that_leaves_the_folder_is_refused_and_nothing_is_written(
    harness, route, name
):
    (harness.folder / "sub").mkdir()
    before = snapshot(harness.top)

    with pytest.raises(InvalidArgument) as caught:
        route(harness, name)

    assert len(str(caught.value)) < 3000
    assert caught.value.hint
    assert snapshot(harness.top) == before


def assert_refused_or_inside(harness, route, name):
    before = snapshot(harness.top)
    try:
        model = route(harness, name)
    except (InvalidArgument, Fail, NoSuchFile) as error:
        assert error.hint
        assert snapshot(harness.top) == before
        return False
    after = snapshot(harness.top)
    changed = {path for path in after if after[path] != before.get(path)}
    assert changed
    assert all(path.startswith("folder/") for path in changed)
    assert not [path for path in after if ".epctx-" in path]
    if model is not None:
        assert model.is_file()
        np.testing.assert_allclose(
            run(model, ROWS), harness.expected, rtol=1e-4, atol=1e-4
        )
    return True


@pytest.mark.parametrize("route", EVERY_ROUTE)
@pytest.mark.parametrize(
    "name", [pytest.param(name, id=label) for label, name in AWKWARD.items()]
)
def test_an_awkward_name_is_refused_or_a_file_inside_that_loads(harness, route, name):
    (harness.folder / "sub").mkdir()

    assert_refused_or_inside(harness, route, name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=label) for label, name in LINKS.items()]
)
def test_what_a_link_leads_to_is_never_written(harness, name):
    lay_out(harness.folder)
    outside = harness.top / "outside.bin"

    assert_refused_or_inside(harness, for_initializers, name)

    assert outside.read_bytes() == b"outside"
    assert not (harness.top / "nowhere.bin").exists()


def test_a_hard_link_is_replaced_and_its_other_name_keeps_the_bytes(harness):
    outside = harness.top / "outside.bin"
    (harness.folder / "hard.bin").hardlink_to(outside)

    written = assert_refused_or_inside(harness, for_initializers, "hard.bin")

    assert written
    assert outside.read_bytes() == b"outside"
    assert not (harness.folder / "hard.bin").samefile(outside)


@pytest.mark.parametrize(
    "twin", ["M\u00c9_qnn.bin", "me\u0301_qnn.bin", "m\u00e9_qnn.bin"]
)
def test_two_files_whose_names_some_folders_take_for_one_are_refused(harness, twin):
    before = snapshot(harness.top)

    with pytest.raises(InvalidArgument, match="would both write"):
        harness.compiler(external_initializers_file_path=twin).compile_to_file(
            harness.folder / "m\u00e9_ctx.onnx"
        )

    assert snapshot(harness.top) == before
