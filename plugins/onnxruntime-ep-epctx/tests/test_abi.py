"""Positions in onnxruntime's tables stand twice, for C and for Python."""

from __future__ import annotations

import re
from pathlib import Path

from onnxruntime_ep_epctx import capi

HEADER = Path(__file__).parents[1] / "native" / "onnxruntime_abi.h"


def test_c_and_python_have_the_same_positions_of_functions():
    text = HEADER.read_text("utf-8")
    of_c = {name: int(n) for name, n in re.findall(r"\bAPI_(\w+) = (\d+)", text)}

    both = {name for name in of_c if name in capi._OF_API}
    assert len(both) > 8
    assert {n: of_c[n] for n in both} == {n: capi._OF_API[n] for n in both}


def test_no_two_functions_have_one_position():
    for table in (capi._OF_API, capi._OF_EP_API, capi._OF_MODEL_EDITOR):
        assert len(set(table.values())) == len(table)


def test_the_version_that_python_states_is_that_of_the_library():
    text = HEADER.read_text("utf-8")
    hosted = Path(capi.__file__).with_name("hosted.py").read_text("utf-8")

    (version,) = re.findall(r"#define API_VERSION (\d+)", text)
    assert re.findall(r"ort_version_supported=(\d+)", hosted) == [version]
