"""SoCs that Qualcomm's EP compiles for, in options and compatibility texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MULTI = "is_multi_soc_ep_context"
"""Attribute of the vendor's nodes: 1 for a payload of several SoCs."""
TARGETS = "epctx_targets"
"""Attribute of nodes with such a payload: the SoCs in it."""
_OPTIONS = {
    "soc_model": (
        r"\d+|[A-Za-z]+\d\w*",
        "numbers or chip names of SoCs, separated by commas, such as 60 or 60,SM8750",
    ),
    "htp_arch": (r"\d+", "whole numbers, separated by commas, such as 73 or 73,79"),
    "vtcm_mb": (r"\d+", "whole numbers, separated by commas, such as 8 or 8,4"),
}
"""Options with a value for each SoC: the form of a value, and the text in words."""
_CHIPS = {
    "30": "SM8350", "36": "SM8450", "42": "SM8475", "43": "SM8550", "57": "SM8650",
    "60": "SC8380XP", "69": "SM8750", "87": "SM8850", "88": "SC8480XP", "103": "SM8975",
}  # fmt: skip
"""Numbers of SoCs that onnxruntime-qnn 2.7 compiles for, with the names of their
chips.
"""
NO_TARGET = "none: for whatever loads it"
_MOST_SOCS = 64
"""SoCs of one model, of which the EP is asked about each."""


def check_targets(ep: str, options: Mapping[str, Any]) -> None:
    """Check options that list values by SoC: onnxruntime-qnn takes what it cannot read
    for 0, an unknown SoC, and compiles all the same.

    Raises:
        InvalidArgument: one is not a list of values of its form, or two lists have
            different lengths.
    """
    lengths: dict[str, int] = {}
    for name, (form, words) in _OPTIONS.items():
        if (text := options.get(name)) is None:
            continue
        values = text.split(",")
        if not all(re.fullmatch(form, value, re.ASCII) for value in values):
            raise InvalidArgument(
                f"{ep}: option {name!r} needs {words}, not {text!r:.80}.",
                ep=ep,
                hint="Write no spaces, and one value for each SoC.",
            )
        lengths[name] = len(values)
    if lengths.get("vtcm_mb") == 1:
        # One for all SoCs.
        del lengths["vtcm_mb"]
    if len(set(lengths.values())) > 1:
        listed = " and ".join(f"{options[name]!r} ({name!r})" for name in lengths)
        raise InvalidArgument(
            f"{ep}: the options {listed} list values of different numbers of SoCs.",
            ep=ep,
            hint="Give each of them one value for each SoC, in the same order.",
        )


def name_target(options: Mapping[str, Any]) -> str:
    """Return what options ask to compile for, in the vendor's words; empty where they
    ask for nothing. 0 is Qualcomm's number of an unknown SoC.
    """
    backend = options.get("backend_type") or "htp"
    if backend != "htp":
        return f"backend_type {backend}"
    asked = [
        f"{name} "
        + ",".join(
            f"{value} ({_CHIPS[value]})"
            if name == "soc_model" and value in _CHIPS
            else value
            for value in text.split(",")
        )
        for name in ("soc_model", "htp_arch")
        if (text := options.get(name) or "0") != "0"
    ]
    return ", ".join(asked)


def advise_target() -> str:
    """Return the names of the targets that exist."""
    chips = ", ".join(f"{number} ({chip})" for number, chip in _CHIPS.items())
    return (
        f"Set soc_model to the number or chip name of a SoC, such as {chips}, and "
        "htp_arch to its architecture, such as 73."
    )


def select_target(options: dict[str, str], *, on_device: bool) -> dict[str, str]:
    """Return options for a session that is not to compile a context model, where
    onnxruntime-qnn refuses lists: the device knows its SoC, and the simulator gets the
    first of those listed.
    """
    listed = {name for name in _OPTIONS if "," in options.get(name, "")}
    return {
        name: text.partition(",")[0] if name in listed else text
        for name, text in options.items()
        if not (on_device and name in listed)
    }


def split_compatibility_info(info: str) -> Sequence[str]:
    """Return a compatibility text of several SoCs as one for each; any other as it is.

    The fields of version 2 are its version, the number of those that follow, the
    versions of QAIRT and of its API, then lists by SoC: architectures, models, VTCM in
    MB. One more is not documented.
    """
    fields = [field.split(",") for field in info.split(":")]
    lengths = {len(values) for values in fields} - {1}
    if fields[0] != ["v2"] or len(lengths) != 1 or max(lengths) > _MOST_SOCS:
        return [info]
    texts = (
        ":".join(values[min(number, len(values) - 1)] for values in fields)
        for number in range(*lengths)
    )
    return list(dict.fromkeys(texts))
