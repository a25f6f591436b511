"""Names of what is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx_core.file_names import (
    find_free_name,
    is_folder_name,
    make_binary_name,
    make_context_model_path,
)

pytestmark = pytest.mark.internal


@pytest.mark.parametrize(
    ("given_path", "expected"),
    [
        ("model.onnx", "model_ctx.onnx"),
        ("d.x/net.v2.onnx", "d.x/net.v2_ctx.onnx"),
        ("model", "model_ctx.onnx"),
        (".onnx", ".onnx_ctx.onnx"),
        ("model_ctx.onnx", "model_ctx_ctx.onnx"),
    ],
)
def test_a_context_model_stands_beside_its_source(given_path, expected):
    assert make_context_model_path(Path(given_path)) == Path(expected)


@pytest.mark.parametrize(
    ("output", "name", "expected"),
    [
        ("out/model_ctx.onnx", None, "model_qnn.bin"),
        ("model.onnx", None, "model_qnn.bin"),
        ("net_ctx_ctx.onnx", None, "net_ctx_qnn.bin"),
        ("net.v2_ctx.onnx", None, "net.v2_qnn.bin"),
        ("model_ctx.onnx", "weights", "model_qnn_weights.bin"),
    ],
)
def test_a_binary_is_named_after_the_output_and_the_ep(output, name, expected):
    assert make_binary_name(Path(output), "qnn", name) == expected


def test_an_output_that_ends_in_a_separator_or_exists_as_a_folder_is_a_folder(tmp_path):
    assert is_folder_name("new/")
    assert is_folder_name(f"new{os.sep}")
    assert is_folder_name(tmp_path)
    assert not is_folder_name(tmp_path / "m_ctx.onnx")


@pytest.mark.parametrize(
    ("name", "taken", "found"),
    [
        (None, (), "m_qnn.bin"),
        (None, ("m_qnn.bin",), "m_qnn_1.bin"),
        (None, ("m_qnn.bin", "m_qnn_1.bin"), "m_qnn_2.bin"),
        ("a", ("m_qnn.bin",), "m_qnn_a.bin"),
        ("A", ("m_qnn_a.bin",), "m_qnn_A_1.bin"),
    ],
)
def test_a_binary_gets_a_number_if_another_file_has_its_name_in_any_case(
    name, taken, found
):
    assert (
        find_free_name(
            lambda payload: make_binary_name(Path("m_ctx.onnx"), "qnn", payload),
            name,
            taken,
        )
        == found
    )
