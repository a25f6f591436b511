"""Entries of a context model's metadata: keys, reading and setting one.

Also what EPs wrote about compatibility, and of the types of operators that they have kernels for (`OperatorTypes`).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from epctx_core.errors import InvalidGraph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from onnx import ModelProto

    from epctx_core.plugin import OperatorTypes


MANIFEST = "epctx.manifest"
INITIALIZERS = "epctx.initializers"
KERNEL_TYPES = "epctx.kernel_type_constraints"
COMPATIBILITY_PREFIX = "ep_compatibility_info."
EARLIER_PREFIX = "epctx.earlier_compatibility_info."


def metadata_value(model: ModelProto, key: str) -> str | bytes | None:
    """Return one metadata entry, bytes if it is not UTF-8, None if there is none; of several with one key, the first."""
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def set_metadata(model: ModelProto, key: str, value: str) -> None:
    """Set one metadata entry; an entry of that key is replaced where it stands."""
    for entry in model.metadata_props:
        if entry.key == key:
            entry.value = value
            return
    model.metadata_props.add(key=key, value=value)


MOST_PARTS = 1 << 23
"""Entries of all lists and objects; each takes 20 to 100 bytes of memory, up to 30 times its text.

A manifest of a hundred thousand payloads, or of a hundred of 10 GiB each, has a quarter of them.
"""


def parse_json(text: str | bytes, most: int | None = None) -> Any:
    """Return what a text says.

    Args:
        text: JSON.
        most: entries that it may have; None for `MOST_PARTS`.

    Raises:
        ValueError: no JSON, or too many entries.
        RecursionError: nested too deeply.
    """
    marks: tuple[Any, ...] = (b",", b":", b"[", b"{") if isinstance(text, bytes) else (",", ":", "[", "{")
    most = MOST_PARTS if most is None else most
    if len(text) > most and sum(map(text.count, marks)) > most:
        raise ValueError(f"it has more than {most:,} entries")
    return json.loads(text)


def all_compatibility_info(model: ModelProto) -> dict[str, list[str]]:
    """Return EP type to all that EP said about what it compiled, the newest first.

    Raises:
        InvalidGraph: it is no text.
    """
    metadata: dict[str, str] = {}
    for entry in model.metadata_props:
        # protobuf hands out what is not UTF-8 as bytes.
        key: str | bytes = entry.key
        value: str | bytes = entry.value
        if isinstance(key, str) and key.startswith((COMPATIBILITY_PREFIX, EARLIER_PREFIX)):
            if not isinstance(value, str):
                raise InvalidGraph(
                    f"the model's metadata {key!r} is not UTF-8.", hint="Fetch the model again."
                )
            metadata[key] = value
    eps = dict.fromkeys(
        key.removeprefix(COMPATIBILITY_PREFIX).removeprefix(EARLIER_PREFIX) for key in metadata
    )
    return {ep: texts_of(ep, metadata) for ep in eps}


def texts_of(ep: str, metadata: Mapping[str, str]) -> list[str]:
    """Return all that one EP said, out of a model's metadata; see `all_compatibility_info`."""
    newest = metadata.get(COMPATIBILITY_PREFIX + ep)
    try:
        earlier = parse_json(metadata.get(EARLIER_PREFIX + ep, "[]"))
    except (ValueError, RecursionError):
        earlier = None
    if not isinstance(earlier, list) or not all(isinstance(text, str) for text in earlier):
        raise InvalidGraph(
            f"the model's metadata {EARLIER_PREFIX + ep!r} is damaged.", hint="Fetch the model again."
        )
    return [*([] if newest is None else [newest]), *earlier]


_KERNEL_TYPES_VERSION = 1
LONGEST_KERNEL_TYPES = 1 << 20
MOST_PARAMETERS = 1024
_HINT = "Fetch the model again, or compile again."


def read_kernel_types(model: ModelProto) -> tuple[OperatorTypes, ...]:
    """Return the operators that a model describes; none for a version not known here.

    Raises:
        InvalidGraph: the text is damaged, too long, or describes an operator twice.
    """
    text = metadata_value(model, KERNEL_TYPES)
    if text is None:
        return ()
    if len(text) > LONGEST_KERNEL_TYPES:
        raise InvalidGraph(
            f"the model's {KERNEL_TYPES} metadata has {len(text)} characters; at most {LONGEST_KERNEL_TYPES} are read.",
            hint=_HINT,
        )
    try:
        data = json.loads(text)
        if data["version"] != _KERNEL_TYPES_VERSION:
            return ()
        operators = tuple(_read_operator(entry) for entry in data["operators"])
        _check_single(operators)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidGraph(
            f"the model's {KERNEL_TYPES} metadata is damaged: {error!r}.", hint=_HINT
        ) from error
    return operators


def write_kernel_types(model: ModelProto, operators: Iterable[OperatorTypes]) -> None:
    """Say in a model what its operators' types have in common; of several for one operator the first counts."""
    first: dict[tuple[str, str, int], OperatorTypes] = {}
    for operator in operators:
        first.setdefault(_identity(operator), operator)
    for entry in [p for p in model.metadata_props if p.key == KERNEL_TYPES]:
        model.metadata_props.remove(entry)
    if not first:
        return
    entries = [asdict(first[identity]) for identity in sorted(first)]
    text = json.dumps({"version": _KERNEL_TYPES_VERSION, "operators": entries}, separators=(",", ":"))
    set_metadata(model, KERNEL_TYPES, text)


def _identity(operator: OperatorTypes) -> tuple[str, str, int]:
    return operator.domain, operator.op_type, operator.since_version


def _check_single(operators: tuple[OperatorTypes, ...]) -> None:
    if len({_identity(operator) for operator in operators}) < len(operators):
        raise ValueError("an operator is described twice")


def _read_operator(entry: dict[str, Any]) -> OperatorTypes:
    from epctx_core.plugin import OperatorTypes

    version, inputs, outputs = entry["since_version"], entry["inputs"], entry["outputs"]
    if type(version) is not int:
        raise TypeError(f"the version {version!r:.80} is no number")
    if not all(isinstance(names, list) and len(names) <= MOST_PARAMETERS for names in (inputs, outputs)):
        raise TypeError(f"there is no list of at most {MOST_PARAMETERS} parameters")
    for text in (entry["domain"], entry["op_type"], *inputs, *outputs):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.80} is no text")
    return OperatorTypes(
        domain=entry["domain"],
        op_type=entry["op_type"],
        since_version=version,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
