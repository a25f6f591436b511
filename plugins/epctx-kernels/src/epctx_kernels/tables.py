"""Types of operators in a model's metadata: what ONNX Runtime's own format (`.ort`)
states of operators without a schema, and an ONNX model cannot.

See `OperatorTypes`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph
from epctx_kernels.definitions import OperatorTypes

if TYPE_CHECKING:
    from collections.abc import Iterable

OPERATOR_TYPES = "epctx.kernel_type_constraints"
"""Key of the entry in a model's metadata."""
LONGEST_TEXT = 1 << 20
MOST_PARAMETERS = 1024
_VERSION = 1


@lru_cache(maxsize=8)
def read_operator_types(text: str | None) -> tuple[OperatorTypes, ...]:
    """Return the operators that an entry describes; none without an entry, or for an
    unknown version.

    Args:
        text: the entry `OPERATOR_TYPES` of a model's metadata, None if it has none.

    Raises:
        InvalidGraph: the text is damaged, too long, or describes an operator twice.
    """
    if text is None:
        return ()
    what = f"the model's {OPERATOR_TYPES} metadata"
    hint = "Fetch the model again, or compile again."
    if len(text) > LONGEST_TEXT:
        raise InvalidGraph(
            f"{what} has {len(text)} characters; at most {LONGEST_TEXT} are read.",
            hint=hint,
        )
    try:
        return _read_operators(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidGraph(f"{what} is damaged: {error!r:.200}.", hint=hint) from error


def dump_operator_types(operators: Iterable[OperatorTypes]) -> str:
    """Return the text of an entry; of several descriptions of one version of an
    operator the first counts.
    """
    first: dict[tuple[str, str, int], OperatorTypes] = {}
    for operator in operators:
        first.setdefault(_identify(operator), operator)
    entries = [asdict(first[identity]) for identity in sorted(first)]
    return json.dumps(
        {"version": _VERSION, "operators": entries}, separators=(",", ":")
    )


def _identify(operator: OperatorTypes) -> tuple[str, str, int]:
    return operator.domain, operator.op_type, operator.since_version


def _read_operators(data: Any) -> tuple[OperatorTypes, ...]:
    if data["version"] != _VERSION:
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
