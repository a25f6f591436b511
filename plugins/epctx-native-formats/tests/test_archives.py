"""Zip archives of Qualcomm's are named by their lists of entries."""

from __future__ import annotations

import io
import zipfile

import pytest
from epctx_native_formats import describe_binary

from epctx_core.errors import InvalidGraph


def make_archive(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, b"content")
    return memoryview(buffer.getvalue())


def test_a_context_binary_of_several_socs_names_them():
    binary = describe_binary(
        make_archive("htp.cache.sm8750.0", "htp.cache.sm8650.0", "info")
    )

    assert binary.target == "SoCs sm8650, sm8750"
    assert (binary.format, binary.source) == ("zip", "QNN")
    assert binary.parts["htp.cache.sm8750.0"] == len(b"content")


def test_a_dlc_file_is_named_and_no_ep_loads_it():
    binary = describe_binary(make_archive("model.params", "dlc.metadata"))

    assert (binary.format, binary.source) == ("dlc", "")
    assert "DLC" in binary.title


def test_another_archive_is_of_no_known_format_and_a_damaged_one_is_refused(tmp_path):
    assert describe_binary(make_archive("a.txt")) is None
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes(b"PK\x03\x04" + bytes(100))
    for binary in (damaged, memoryview(damaged.read_bytes())):
        with pytest.raises(InvalidGraph, match="list of entries cannot be read"):
            describe_binary(binary)
