"""Owners of a context binary: only a model that names it keeps another compile from
replacing it.
"""

from __future__ import annotations

import pytest
from context.compiling import Writing, model_of, one_payload
from context.loading import context_model, node

from epctx_core.errors import Fail


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a_x.bin").write_bytes(b"of somebody")
    return tmp_path


def compile_there(folder):
    """Compile a model whose binary gets the name of the one that is there."""
    Writing(one_payload, path=folder / "a.onnx", suffix="x").compiled(model_of(1))


def put(folder, name, cache, *, embed=False):
    (folder / name).write_bytes(
        context_model(node("n", cache=cache, embed=embed)).SerializeToString()
    )


@pytest.mark.parametrize("said", ["a_x.bin", "./a_x.bin"])
def test_a_binary_is_named_by_the_model_whose_payload_it_is(folder, said):
    put(folder, "b_ctx.onnx", said)

    with pytest.raises(Fail, match=r"'a_x\.bin' in .* belongs to 'b_ctx\.onnx'"):
        compile_there(folder)

    assert (folder / "a_x.bin").read_bytes() == b"of somebody"


def test_no_other_file_keeps_it_from_being_replaced(folder):
    put(folder, "other_ctx.onnx", "aa_x.bin")
    put(folder, "embedded_ctx.onnx", b"a_x.bin", embed=True)
    (folder / "broken.onnx").write_bytes(b"a_x.bin \xff")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "gone.onnx").symlink_to("nothing")
    (folder / "folder.onnx").mkdir()

    compile_there(folder)

    assert (folder / "a_x.bin").read_bytes() == b"p"
