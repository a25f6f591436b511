"""Blobs of OpenVINO say what made them; without the package openvino that is all."""

from __future__ import annotations

import struct
import sys

import pytest
from epctx_native_formats import describe_binary, openvino_blob

from epctx_core.errors import NotImplementedByProvider

pytestmark = pytest.mark.internal

TEXT = b"meta=1.0;ov=2026.4.1;isa=Intel AVX2"
SECTIONS = struct.pack("<6Q", 48, 8, 56, 4, 60, 4) + bytes(16)
BLOB = struct.pack("<8sIII", b"RR_UPCVO", 1, len(TEXT), 0) + TEXT + SECTIONS


def test_a_blob_names_its_version_and_instructions():
    binary = describe_binary(memoryview(BLOB))

    assert (binary.format, binary.sdk) == ("openvino-blob", "OpenVINO 2026.4.1")
    assert binary.target == "Intel AVX2"
    assert binary.graphs == ()
    assert binary.facts["graphs"].startswith("not read: ")


def test_an_older_blob_is_known_by_its_sections():
    binary = describe_binary(memoryview(SECTIONS))

    assert (binary.format, binary.sdk, binary.target) == ("openvino-blob", "", "CPU")


@pytest.mark.parametrize("numbers", [(40, 8, 56, 4, 60, 4), (48, 8, 57, 4, 60, 4)])
def test_sections_that_do_not_follow_each_other_are_no_blob(numbers):
    content = memoryview(struct.pack("<6Q", *numbers) + bytes(16))

    assert describe_binary(content) is None


@pytest.mark.parametrize("length", [20, 30, len(BLOB) - len(SECTIONS)])
def test_a_blob_that_is_cut_off_is_described_as_far_as_it_goes(length):
    assert describe_binary(memoryview(BLOB)[:length]).format == "openvino-blob"


def test_without_openvino_its_absence_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)

    with pytest.raises(NotImplementedByProvider, match="openvino"):
        openvino_blob.describe(memoryview(BLOB), "net.blob")
