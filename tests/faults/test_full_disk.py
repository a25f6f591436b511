"""A real disk that fills up, and names that others take, in the middle of a compile."""

from __future__ import annotations

import resource
import shutil
from contextlib import contextmanager

import pytest
from faults.disks import small_disk
from faults.pairs import NEW, OLD, Group, OneModel, files, put, staging
from support.engine_eps import scripted
from support.publication import at_final, take_name_last
from support.routes import compile_with
from support.small_models import chain, saved

import epctx_core as epctx
from epctx_core import Fail

pytestmark = pytest.mark.internal

NO_CLOBBER = epctx.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS


@contextmanager
def files_limited_to(size):
    """No file grows beyond so many bytes: the system refuses a write, as on a full
    disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("harness", [OneModel, Group])
@pytest.mark.parametrize("size", [0, 100, 5_000, 60_000])
def test_a_write_that_the_system_refuses_keeps_the_older_state(harness, size, tmp_path):
    pairs = harness(tmp_path)
    put(pairs.out, pairs.states[OLD])

    with pytest.raises(Fail, match="File too large") as caught, files_limited_to(size):
        pairs.compile(NEW)

    assert caught.value.hint
    assert files(pairs.out) == pairs.states[OLD]
    assert staging(pairs.out) == []
    pairs.compile(NEW)
    assert files(pairs.out) == pairs.states[NEW]


@pytest.fixture
def disk(tmp_path):
    """A file system of 100 KiB, where this process may make one."""
    with small_disk(tmp_path / "disk", "100k") as folder:
        yield folder


def test_a_disk_without_room_for_both_states_keeps_the_older_one(disk, tmp_path):
    pairs = OneModel(tmp_path)
    pairs.out = disk
    put_into(disk, pairs.states[OLD])

    with pytest.raises(Fail, match="No space left") as caught:
        pairs.compile(NEW)

    # Not only a compile publishes.
    assert caught.value.hint.startswith("Free some space")
    assert caught.value.hint.endswith("then try again.")
    assert files(disk) == pairs.states[OLD]
    assert staging(disk) == []
    assert pairs.loaded() == [OLD]


def put_into(folder, content):
    for name, data in content.items():
        (folder / name).write_bytes(data)


# --- names that others take -----------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    return saved(chain(["Relu", "Add", "Sigmoid", "Add"]), folder / "m.onnx")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["m_ctx.onnx", "m_scripted.bin"])
@pytest.mark.parametrize("links", [True, False])
def test_without_clobbering_a_file_that_appears_at_the_last_moment_stays(
    source, tmp_path, name, links
):
    output = tmp_path / "out" / "m_ctx.onnx"
    output.parent.mkdir()

    with (
        take_name_last(name, links=links),
        pytest.raises(Fail, match=f"{name} exists already"),
    ):
        compile_with(scripted(), source, output, flags=NO_CLOBBER)

    assert list(contents(output.parent)) == [name]
    assert b"foreign" in contents(output.parent)[name]


@pytest.mark.parametrize("flags", [NO_CLOBBER, epctx.OrtCompileApiFlags.NONE])
def test_a_binary_that_appears_while_the_ep_compiles_is_kept_if_a_model_names_it(
    source, tmp_path, flags
):
    out, other = tmp_path / "out", tmp_path / "other"
    out.mkdir()
    other.mkdir()
    compile_with(scripted(), source, other / "n_ctx.onnx")
    (other / "n_scripted.bin").rename(other / "m_scripted.bin")
    model = (
        (other / "n_ctx.onnx")
        .read_bytes()
        .replace(b"n_scripted.bin", b"m_scripted.bin")
    )
    (other / "n_ctx.onnx").write_bytes(model)

    def copying(honest):
        shutil.copytree(other, out, dirs_exist_ok=True)
        return honest()

    ep = scripted(compile=copying)

    with pytest.raises(Fail, match=r"belongs to 'n_ctx\.onnx'"):
        compile_with(ep, source, out / "m_ctx.onnx", flags=flags)

    assert contents(out) == contents(other)


def test_a_model_that_may_be_replaced_is_replaced_even_if_it_appears_at_the_last_moment(
    source, tmp_path
):
    output = tmp_path / "m_ctx.onnx"

    with at_final("replace", output.name, lambda path: path.write_bytes(b"theirs")):
        compile_with(scripted(), source, output)

    with epctx.InferenceSession(output, registry=registry_of(scripted())) as session:
        assert session.get_inputs()


def registry_of(ep):
    registry = epctx.Registry(entry_points=False)
    registry.register(ep)
    return registry
