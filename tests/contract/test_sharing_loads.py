"""Entries 105, 106 and 116: what sessions share that load the context models of one
group.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from contract.sharing import EPS, ROWS, compiled
from support.isolation import children
from support.share_models import example, options, run, sharing, write_model
from support.sim_eps import QNN, VITISAI

import epctx_core as epctx
from epctx_core.errors import InvalidGraph


@pytest.fixture
def opened(monkeypatch):
    """The paths of the binaries that were opened, in order."""
    paths, really = [], os.open

    def noted(path, *arguments, **keywords):
        descriptor = really(path, *arguments, **keywords)
        if os.fspath(path).endswith(".bin"):
            paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        return descriptor

    monkeypatch.setattr(os, "open", noted)
    return paths


def mapped(folder):
    """Return the binaries below a folder that this process holds."""
    gc.collect()
    paths = [
        line.split(maxsplit=5)[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
    ]
    return {
        path for path in paths if path.startswith(str(folder)) and path.endswith(".bin")
    }


@pytest.mark.entry(105)
@pytest.mark.parametrize("ep", EPS)
def test_a_second_session_takes_its_graph_from_the_first_and_opens_no_file(
    ep, tmp_path, opened
):
    out = compiled(ep, tmp_path, "a", "b")
    opened.clear()

    with epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep)):
        with epctx.InferenceSession(out / "b_ctx.onnx", sharing(ep)) as second:
            result = second.run(None, example(8))[0]
        assert opened == [*mapped(tmp_path)]

    assert np.array_equal(result, run(out / "b_ctx.onnx", 8, options(ep)))
    assert mapped(tmp_path) == set()


@pytest.mark.entry(106)
def test_a_group_compiled_with_a_vendors_sharing_options_is_shared_as_well(tmp_path):
    vendor = {"enable_htp_weight_sharing": "1", "enable_htp_spill_fill_buffer": "1"}
    sources = [write_model(QNN, tmp_path / f"{name}.onnx", ROWS[name]) for name in "ab"]
    with epctx.ShareGroup() as shared:
        for source in sources:
            shared.compile(source, options(QNN, vendor))

    entries = {"ep__share_ep_contexts": 1}
    with (
        epctx.InferenceSession(
            tmp_path / "a_ctx.onnx", options(QNN, vendor, **entries)
        ),
        epctx.InferenceSession(
            tmp_path / "b_ctx.onnx", options(QNN, vendor, **entries)
        ) as second,
    ):
        result = second.run(None, example(8))[0]

    assert np.allclose(result, run(sources[1], 8), atol=1e-4)


@pytest.mark.entry(116)
@pytest.mark.parametrize("ep", EPS)
def test_a_graph_that_was_taken_is_loaded_from_the_file_again(ep, tmp_path, opened):
    out = compiled(ep, tmp_path, "a", "b")
    opened.clear()

    sessions = [
        epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep)) for _ in range(3)
    ]
    results = [session.run(None, example(1))[0] for session in sessions]
    for session in sessions:
        session.close()

    assert all(np.array_equal(result, results[0]) for result in results)
    # The archive of VitisAI stays open for whoever comes; the others read the file
    # again.
    assert len(opened) == (1 if ep == VITISAI else 3)
    assert mapped(tmp_path) == set()


@pytest.mark.parametrize("ep", EPS)
def test_a_first_session_may_end_before_the_second(ep, tmp_path):
    out = compiled(ep, tmp_path, "a", "b")
    first = epctx.InferenceSession(out / "a_ctx.onnx", sharing(ep))
    second = epctx.InferenceSession(out / "b_ctx.onnx", sharing(ep))
    expected = run(out / "b_ctx.onnx", 8, options(ep))

    first.close()

    assert np.array_equal(second.run(None, example(8))[0], expected)
    second.close()
    assert mapped(tmp_path) == set()


def test_sessions_with_other_options_or_another_file_of_that_name_do_not_meet(
    tmp_path, opened
):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        compiled(QNN, folder, "a", "b")
    other = options(QNN, {"htp_performance_mode": "burst"}, ep__share_ep_contexts=1)
    opened.clear()

    sessions = [
        epctx.InferenceSession(here / "out" / "a_ctx.onnx", sharing(QNN)),
        epctx.InferenceSession(here / "out" / "b_ctx.onnx", other),
        epctx.InferenceSession(there / "out" / "b_ctx.onnx", sharing(QNN)),
    ]

    assert len(opened) == 3
    assert len(mapped(tmp_path)) == 2
    for session in sessions:
        session.close()


def test_a_session_that_cannot_be_made_leaves_its_graph_for_another(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    model = onnx.load(out / "b_ctx.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 9
    onnx.save(model, out / "wrong_ctx.onnx")

    with epctx.InferenceSession(out / "a_ctx.onnx", sharing(QNN)):
        with pytest.raises(InvalidGraph):
            epctx.InferenceSession(out / "wrong_ctx.onnx", sharing(QNN))
        with epctx.InferenceSession(out / "b_ctx.onnx", sharing(QNN)) as session:
            assert session.run(None, example(8))[0].shape == (8, 128)


@pytest.mark.parametrize("ep", EPS)
def test_a_session_that_verifies_more_does_not_take_what_another_verified_less(
    ep, tmp_path
):
    out = compiled(ep, tmp_path, "a", "b")
    (binary,) = out.glob("*.bin")
    content = bytearray(binary.read_bytes())
    middle = (
        content.index(
            onnx.numpy_helper.to_array(weight_of(tmp_path / "a.onnx")).tobytes()
        )
        + 20_000 // 8
    )
    content[middle] ^= 1
    binary.write_bytes(content)

    with epctx.InferenceSession(
        out / "a_ctx.onnx", sharing(ep, ep__context_verify="head")
    ):
        for level in ("once", "lazy", "full"):
            with pytest.raises(InvalidGraph):
                epctx.InferenceSession(
                    out / "b_ctx.onnx", sharing(ep, ep__context_verify=level)
                )


@pytest.mark.parametrize("verify", ["once", "head"])
def test_a_session_that_shares_refuses_a_pending_model_whose_old_binary_is_open(
    verify, tmp_path
):
    out = compiled(QNN, tmp_path, "a", "b")
    entries = {"ep__context_verify": verify}

    with epctx.InferenceSession(out / "b_ctx.onnx", sharing(QNN, **entries)):
        compiled(QNN, tmp_path, "a", stop=False)
        with pytest.raises(
            InvalidGraph, match="share group was never stopped"
        ) as raised:
            epctx.InferenceSession(out / "a_ctx.onnx", sharing(QNN, **entries))
        compiled(QNN, tmp_path, "b")

    assert "a_qnn.bin" in raised.value.message
    assert raised.value.node is not None
    assert run(out / "a_ctx.onnx", 1, options(QNN)).shape == (1, 128)


def test_isolated_sessions_that_share_are_in_one_process(tmp_path):
    out = compiled(QNN, tmp_path, "a", "b")
    expected = run(out / "b_ctx.onnx", ROWS["b"], options(QNN))
    before = children()

    isolated = sharing(QNN, ep__isolate="all")
    with (
        epctx.InferenceSession(out / "a_ctx.onnx", isolated) as first,
        epctx.InferenceSession(out / "b_ctx.onnx", isolated) as second,
    ):
        assert len(children() - before) == 1
        first.close()
        (result,) = second.run(None, example(ROWS["b"]))

    assert children() == before
    np.testing.assert_array_equal(result, expected)


def weight_of(path):
    return next(
        tensor for tensor in onnx.load(path).graph.initializer if len(tensor.dims) > 1
    )
