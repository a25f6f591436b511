"""Compatibility texts, in the form of onnxruntime's OpenVINO EP, so that each of the
two can judge the other's.
"""

from __future__ import annotations

import json
from typing import Any

from epctx_core.plugin import Compatibility
from epctx_openvino.native import read_requirements

_FORM = "1.0"
_REQUIREMENTS = "ov_compat_string"


def write_text(requirements: str, version: str) -> str:
    """Return the text for a model.

    Args:
        requirements: of OpenVINO, see `native.requirements_of`.
        version: of this EP.
    """
    facts = {
        "ovep_compat_ver": _FORM,
        "ovep_ver": f"epctx-openvino-{version}",
        "ovep_bin_ver": "1.0",
        _REQUIREMENTS: requirements,
    }
    return json.dumps(facts, separators=(",", ":"))


def judge_text(text: str, device: str) -> Compatibility:
    """Return whether OpenVINO imports what was compiled under a text: only if its
    requirements are exactly these.

    A device that this machine does not have is no fault of the text: the EP's instance
    says so.
    """
    facts = _read(text)
    if facts.get("ovep_compat_ver") != _FORM or not isinstance(
        facts.get(_REQUIREMENTS), str
    ):
        return Compatibility.EP_NOT_APPLICABLE
    try:
        here = read_requirements(device)
    except RuntimeError:
        return Compatibility.EP_NOT_APPLICABLE
    if facts[_REQUIREMENTS] == here:
        return Compatibility.EP_SUPPORTED_OPTIMAL
    return Compatibility.EP_UNSUPPORTED


def _read(text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
