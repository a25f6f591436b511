"""Types for which EPs have kernels, in a model's metadata: what ONNX Runtime's own
format (`.ort`) states of operators without a schema, and an ONNX model cannot.

See `OperatorTypes`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from epctx_core.context.metadata import (
    KERNEL_TYPES,
    get_metadata,
    read_json_text,
    remove_metadata,
    set_metadata,
)
from epctx_core.errors import InvalidGraph
from epctx_core.plugin import OperatorTypes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onnx import ModelProto

_KERNEL_TYPES_VERSION = 1
LONGEST_KERNEL_TYPES = 1 << 20
MOST_PARAMETERS = 1024


def read_kernel_types(model: ModelProto) -> tuple[OperatorTypes, ...]:
    """Return the operators that a model describes; none for an unknown version.

    Raises:
        InvalidGraph: the text is damaged, too long, or describes an operator twice.
    """
    text = get_metadata(model, KERNEL_TYPES)
    if text is None:
        return ()
    what = f"the model's {KERNEL_TYPES} metadata"
    if len(text) > LONGEST_KERNEL_TYPES:
        raise InvalidGraph(
            f"{what} has {len(text)} characters; at most {LONGEST_KERNEL_TYPES} are "
            "read.",
            hint="Fetch the model again, or compile again.",
        )
    return read_json_text(text, what, _read_operators)


def write_kernel_types(model: ModelProto, operators: Iterable[OperatorTypes]) -> None:
    """Write into a model's metadata for which types EPs have kernels; the first entry
    of an operator counts.
    """
    first: dict[tuple[str, str, int], OperatorTypes] = {}
    for operator in operators:
        first.setdefault(_identify(operator), operator)
    remove_metadata(model, {KERNEL_TYPES})
    if not first:
        return
    entries = [asdict(first[identity]) for identity in sorted(first)]
    text = json.dumps(
        {"version": _KERNEL_TYPES_VERSION, "operators": entries}, separators=(",", ":")
    )
    set_metadata(model, KERNEL_TYPES, text)


def _identify(operator: OperatorTypes) -> tuple[str, str, int]:
    return operator.domain, operator.op_type, operator.since_version


def _read_operators(data: Any) -> tuple[OperatorTypes, ...]:
    if data["version"] != _KERNEL_TYPES_VERSION:
        return ()
    operators = tuple(map(_read_operator, data["operators"]))
    if len({_identify(operator) for operator in operators}) < len(operators):
        raise ValueError("an operator is described twice")
    return operators


def _read_operator(entry: dict[str, Any]) -> OperatorTypes:
    version = entry["since_version"]
    inputs = entry["inputs"]
    outputs = entry["outputs"]
    lists = isinstance(inputs, list) and isinstance(outputs, list)
    if (
        not lists
        or max(len(inputs), len(outputs)) > MOST_PARAMETERS
        or type(version) is not int
    ):
        raise TypeError(
            f"an operator has no version, or no lists of at most {MOST_PARAMETERS} "
            "parameters"
        )

    if not all(
        isinstance(text, str)
        for text in (entry["domain"], entry["op_type"], *inputs, *outputs)
    ):
        raise TypeError("an operator has a name that is not text")

    return OperatorTypes(
        domain=entry["domain"],
        op_type=entry["op_type"],
        since_version=version,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
