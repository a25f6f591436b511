"""Strategies for what foreign files say: JSON, attributes and payloads, arbitrary and
nearly as they should be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import onnx
from epctx_sim_sdk import container
from fuzz.payloads import archived, joined, members, split
from hypothesis import strategies as st
from onnx import AttributeProto, TensorProto, helper
from support.mutations import NUMBERS, TEXTS

Kind = AttributeProto.AttributeType
Path = tuple[Any, ...]

_HOSTILE_TEXT = st.integers(0, len(TEXTS) - 1).map(TEXTS.__getitem__)
"""By place: Hypothesis writes strategies into its messages, and some of these are
long.
"""
TEXT = _HOSTILE_TEXT | st.text(st.characters(), max_size=20)
"""Halves of surrogate pairs among it: JSON can say them, UTF-8 cannot."""
NUMBER = st.one_of(
    st.sampled_from(NUMBERS),
    st.just(4300).map(lambda digits: 10**digits - 1),
    st.integers(),
    st.floats(),
)
ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | NUMBER
    | TEXT
    | st.sampled_from(["0" * 64, "m.data", "m_qnn.bin"]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
    ),
    max_leaves=8,
)


def json_near(text: str | bytes) -> st.SearchStrategy[str]:
    """Texts like one of JSON: with some parts replaced or gone, cut off, or something
    else altogether.
    """
    content = json.loads(text)
    changes = st.lists(
        st.tuples(st.sampled_from(_paths(content)), st.just(_GONE) | ANY_JSON),
        max_size=3,
    )
    near = changes.map(lambda drawn: json.dumps(_changed(content, drawn)))
    cut = st.integers(0, len(text)).map(lambda end: json.dumps(content)[:end])
    # Near ones most often: the others are refused at the door.
    return near | near | near | ANY_JSON.map(json.dumps) | cut | st.text(max_size=50)


_GONE = object()


def _paths(content: Any) -> list[Path]:
    """Return the ways to all parts of a JSON value."""
    found: list[Path] = []
    pending: list[tuple[Path, Any]] = [((), content)]
    while pending:
        path, value = pending.pop()
        keys = (
            value
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        below = [((*path, key), value[key]) for key in keys]
        found += [way for way, _ in below]
        pending += below
    return found or [()]


def _changed(content: Any, changes: list[tuple[Path, Any]]) -> Any:
    result = json.loads(json.dumps(content))
    for path, value in changes:
        holder = result
        try:
            for key in path[:-1]:
                holder = holder[key]
            if value is _GONE:
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
        except (LookupError, TypeError):  # a change before has left no such part
            continue
    return result


SAID = {
    Kind.INT: ("embed_mode", "main_context", "max_size", "index", "enable_encryption"),
    Kind.STRING: (
        "ep_cache_context", "source", "partition_name", "notes", "ep_sdk_version",
        "hardware_architecture", "onnx_model_filename", "cache_file_prefix",
        "version_of_vaip", "version_of_xcompiler", "version_of_xrt",
    ),
}  # fmt: skip
"""The attributes that the core or one of the simulated EPs reads, by the kind that each
should have.
"""
FILES = (
    "m_qnn.bin",
    "m_vitisai.bin",
    "m_OpenVINOExecutionProvider.bin",
    "m_ctx.onnx",
    ".",
    "sub/../m_qnn.bin",
)
SOURCES = (
    "QNN",
    "qnnexecutionprovider",
    "OpenVINOExecutionProvider",
    "VitisAIExecutionProvider",
)
_STRINGS = st.one_of(
    st.sampled_from([*FILES, *SOURCES, "sim-2.51.0", "htp-v73 (simulated)", "{}"]).map(
        str.encode
    ),
    _HOSTILE_TEXT.map(str.encode),
    ANY_JSON.map(lambda content: json.dumps(content).encode()),
    st.binary(max_size=40),
)
_INTS = st.sampled_from([0, 1, 2, -1]) | st.integers(-(1 << 63), (1 << 63) - 1)
_FLOATS = st.floats(width=32)
_TENSORS = st.builds(
    TensorProto,
    data_type=st.integers(0, 30),
    dims=st.lists(st.sampled_from([0, 1, 2, -1, 1 << 62]), max_size=4),
    raw_data=st.binary(max_size=16),
    data_location=st.sampled_from([TensorProto.DEFAULT, TensorProto.EXTERNAL]),
)
_CONTEXT_NODE = helper.make_node(
    "EPContext",
    ["x"],
    ["in_a_body"],
    "inner",
    domain="com.microsoft",
    source="QNN",
    main_context=0,
)
_GRAPHS = st.sampled_from(
    [onnx.GraphProto(), helper.make_graph([_CONTEXT_NODE], "body", [], [])]
)
_SPARSE = st.builds(onnx.SparseTensorProto, values=_TENSORS, indices=_TENSORS)
_TYPES = st.sampled_from([onnx.TypeProto(), helper.make_tensor_type_proto(1, [2])])
FIELDS: dict[int, tuple[str, st.SearchStrategy[Any]]] = {
    Kind.UNDEFINED: ("ref_attr_name", st.sampled_from(["", "alpha"])),
    Kind.FLOAT: ("f", _FLOATS),
    Kind.INT: ("i", _INTS),
    Kind.STRING: ("s", _STRINGS),
    Kind.TENSOR: ("t", _TENSORS),
    Kind.GRAPH: ("g", _GRAPHS),
    Kind.SPARSE_TENSOR: ("sparse_tensor", _SPARSE),
    Kind.TYPE_PROTO: ("tp", _TYPES),
    Kind.FLOATS: ("floats", st.lists(_FLOATS, max_size=3)),
    Kind.INTS: ("ints", st.lists(_INTS, max_size=3)),
    Kind.STRINGS: ("strings", st.lists(_STRINGS, max_size=3)),
    Kind.TENSORS: ("tensors", st.lists(_TENSORS, max_size=3)),
    Kind.GRAPHS: ("graphs", st.lists(_GRAPHS, max_size=3)),
    Kind.SPARSE_TENSORS: ("sparse_tensors", st.lists(_SPARSE, max_size=3)),
    Kind.TYPE_PROTOS: ("type_protos", st.lists(_TYPES, max_size=3)),
}
"""The field that holds an attribute's value, by its kind."""


def _attribute(
    names: st.SearchStrategy[str], says: int, holds: int
) -> st.SearchStrategy[AttributeProto]:
    field, values = FIELDS[holds]
    return st.builds(AttributeProto, name=names, type=st.just(says), **{field: values})


FITTING = st.one_of(
    *(_attribute(st.sampled_from(names), kind, kind) for kind, names in SAID.items())
)
_NAMES = st.sampled_from([name for names in SAID.values() for name in names]) | st.text(
    max_size=10
)
_KINDS = st.sampled_from(sorted(FIELDS))
ATTRIBUTE = (
    FITTING
    | st.tuples(_KINDS, _KINDS).flatmap(lambda kinds: _attribute(_NAMES, *kinds))
    | FITTING
)
"""Attributes that mostly are of their kind; others are of any, or say one kind and hold
another.
"""


def bytes_near(content: bytes) -> st.SearchStrategy[bytes]:
    """Bytes like given ones: with up to three places overwritten, filled in, or cut
    out; or cut off.
    """
    change = st.tuples(
        st.integers(0, len(content)), st.integers(0, 20), st.binary(max_size=20)
    )
    cut = st.integers(0, len(content)).map(lambda end: content[:end])
    return (
        st.lists(change, max_size=3).map(lambda changes: _overwritten(content, changes))
        | cut
    )


def _overwritten(content: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for at, length, new in changes:
        content = content[:at] + new + content[at + length :]
    return content


def container_near(content: bytes) -> st.SearchStrategy[bytes]:
    """Containers of the simulated SDK: any part differs, and the digest over them is
    right.
    """
    weights, structures, tables = split(content)
    sizes = st.sampled_from(
        [0, 1, 15, 16, len(content), (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1]
    )
    wrong = st.just({}) | st.dictionaries(st.integers(0, 3), sizes, max_size=2)
    texts = json_near(tables).map(lambda text: text.encode("utf-8", "replace"))
    return st.builds(
        joined, st.just(weights), st.just(structures), texts, st.just({})
    ) | st.builds(joined, bytes_near(weights), bytes_near(structures), texts, wrong)


def archive_near(content: bytes) -> st.SearchStrategy[bytes]:
    """Archives of the simulated VitisAI: what it says of itself differs, or the
    container in it.
    """
    context, compiled = members(content)
    texts = json_near(context).map(lambda text: text.encode("utf-8", "replace"))
    return st.builds(archived, texts, st.just(compiled)) | st.builds(
        archived, st.just(context), container_near(compiled).filter(_has_foot)
    )


def _has_foot(content: bytes) -> bool:
    weights, structures, tables = split(content)
    return bool(weights and structures and tables)


def payload_near(
    content: bytes, near: Callable[[bytes], st.SearchStrategy[bytes]]
) -> st.SearchStrategy[bytes]:
    """Payloads like one: by the rules of its format, by bytes, with the right first
    bytes only, or arbitrary.
    """
    begun = st.binary(max_size=200).map(
        lambda rest: content[: len(container.head())] + rest
    )
    return (
        near(content)
        | near(content)
        | bytes_near(content)
        | begun
        | st.binary(max_size=200)
    )
