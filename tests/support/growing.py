"""A model with every repeated field of ONNX and of what epctx writes into metadata, any
of which can be grown to a length.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from support.context_pairs import EP, Alpha, context_node, knowing
from support.small_models import tensor

from epctx_core.plugin import CompiledPartition, hookimpl

MODEL, BINARY, WEIGHTS = "g_ctx.onnx", "g_alpha.bin", "w.bin"
_MANIFEST, _TYPES, _SEAL = (
    "epctx.manifest",
    "epctx.kernel_type_constraints",
    "epctx.initializers",
)
_DEFINING = ("name", "key", "domain", "tensor_name", "dim_param", "configuration_id")
"""Fields that say what a message is called; a copy gets another name."""
_PAYLOAD = bytes(range(200))
_NO_DIGEST = "0" * 64


def _given_back(inputs, outputs=None):
    """Return what is given."""
    return inputs


class Loading(Alpha):
    """An EP that loads any node."""

    @hookimpl
    def load_context(self, nodes, reader):
        """Ask for the payloads, and look at nothing in them."""
        for node in nodes:
            if node.main_context:
                reader.payload(node)
        return [CompiledPartition(_given_back) for _ in nodes]


REGISTRY = knowing(Loading)


def repeated_fields() -> list[str]:
    """Return the repeated fields that a model can have, by message and name, as the
    installed onnx says.
    """
    found: list[str] = []
    seen, pending = set(), [onnx.ModelProto.DESCRIPTOR]
    while pending:
        message = pending.pop(0)
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        found += [
            f"{message.name}.{field.name}"
            for field in message.fields
            if field.is_repeated
        ]
        pending += [
            field.message_type
            for field in message.fields
            if field.message_type is not None
        ]
    return found


METADATA_LISTS = (
    "payloads", "segments", "references", "pending", "source_weights", "providers",
    "kernel_providers", "operators", "parameters", "sealed",
)  # fmt: skip
"""Lists in metadata: of the manifest, of what the model says of operators for kernels,
of a seal.
"""


class Growable:
    """The model in a folder, grown as asked.

    Args:
        folder: gets the model's files.
        loadable: False for a model with a node of an operator that nobody knows, which
            holds bodies. A loadable one grows only where the ONNX checker counts
            nothing: inputs and outputs of EPContext nodes, attributes of its nodes and
            of calls of functions.

    Calls of functions are not copied: what they become is what the functions are, times
    the calls, and has a bound.
    """

    def __init__(self, folder: Path, *, loadable: bool) -> None:
        self.path = folder / MODEL
        (folder / BINARY).write_bytes(_PAYLOAD)
        (folder / WEIGHTS).write_bytes(bytes(8))
        self._base, self._loadable = _base(loadable=loadable), loadable

    def write(self, count: int, *fields: str, renamed: bool = True) -> Path:
        """Write the model with `count` more entries in each of some fields, and return
        its path.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._base)
        called = {(function.domain, function.name) for function in model.functions}
        # What is copied is as it was in the beginning, so that the size grows with the
        # sum of the counts.
        sites = [
            (
                field,
                message,
                [
                    _copy(v)
                    for v in getattr(message, field.partition(".")[2])
                    if not _is_call(v, called)
                ],
            )
            for field in fields
            if "." in field
            for message in _sites(model, field)
            if not self._loadable or _is_open(message, field)
        ]
        for field, message, templates in sites:
            apart = renamed and not (self._loadable and field == "NodeProto.input")
            _grow(
                getattr(message, field.partition(".")[2]),
                templates,
                count,
                renamed=apart,
            )
        for key, text in _metadata({f: count for f in fields if "." not in f}).items():
            next(
                entry for entry in model.metadata_props if entry.key == key
            ).value = text
        self.path.write_bytes(model.SerializeToString())
        return self.path


def _copy(value: Any) -> Any:
    if not isinstance(value, Message):
        return value
    copy = type(value)()
    copy.CopyFrom(value)
    return copy


def _is_call(value: Any, functions: set[tuple[str, str]]) -> bool:
    return (
        isinstance(value, onnx.NodeProto) and (value.domain, value.op_type) in functions
    )


def _is_open(message: Message, field: str) -> bool:
    """Tell whether the ONNX checker leaves a node as many entries as it has."""
    if field in {"NodeProto.input", "NodeProto.output"}:
        return message.op_type == "EPContext"
    return field != "NodeProto.attribute" or bool(message.domain)


def _sites(message: Message, field: str) -> Iterator[Message]:
    kind, _, name = field.partition(".")
    if kind == message.DESCRIPTOR.name and getattr(message, name):
        yield message
    for each, value in list(message.ListFields()):
        if each.message_type is not None:
            for inner in value if each.is_repeated else [value]:
                yield from _sites(inner, field)


def _grow(values: Any, templates: list[Any], count: int, *, renamed: bool) -> None:
    """Add copies of each entry in turn, under names of their own if wished."""
    for i in range(count):
        template = templates[i % len(templates)]
        if isinstance(template, Message):
            _name_apart(values.add(), template, i, renamed=renamed)
        else:
            values.append(
                f"{template}_{i}" if isinstance(template, str) and renamed else template
            )


def _name_apart(copy: Any, template: Message, number: int, *, renamed: bool) -> None:
    copy.CopyFrom(template)
    if not renamed:
        return
    names = {
        field.name
        for field in copy.DESCRIPTOR.fields
        if field.type == field.TYPE_STRING
    }
    for name in _DEFINING:
        if (
            name in names
            and (copy.HasField(name) or name == "key")
            and (name != "domain" or copy.DESCRIPTOR.name == "OperatorSetIdProto")
        ):
            setattr(copy, name, f"{getattr(copy, name)}_{number}")
    if copy.DESCRIPTOR.name == "NodeProto":
        copy.output[:] = [f"{name}_{number}" for name in copy.output]


def _metadata(counts: dict[str, int]) -> dict[str, str]:
    """Return what epctx writes into a model's metadata, its lists grown."""

    def many(name: str) -> range:
        return range(counts.get(name, 0))

    def segments(name: str) -> list[list[Any]]:
        empty = [0, hashlib.sha256().hexdigest()]
        return [
            [len(_PAYLOAD), hashlib.sha256(_PAYLOAD).hexdigest()],
            *[empty for _ in many(name)],
        ]

    parts = segments("segments")
    first = {
        "name": BINARY, "embedded": False, "bytes": sum(length for length, _ in parts),
        "root": _root(parts), "segments": parts,
        "references": ["b", *[f"b_{i}" for i in many("references")]],
    }  # fmt: skip
    payload = {
        "embedded": False,
        "bytes": 1,
        "root": _root([[1, _NO_DIGEST]]),
        "segments": [[1, _NO_DIGEST]],
        "references": ["b"],
    }
    weight = [_NO_DIGEST, 1, [2], "", 0]
    manifest = {
        "version": 1,
        "source_model": "",
        "providers": {
            EP: {},
            **{f"{EP}_{i}": {"distribution": "d"} for i in many("providers")},
        },
        "payloads": [
            first,
            *[{**payload, "name": f"p{i}.bin"} for i in many("payloads")],
        ],
        "source_weights": {f"w{i}": weight for i in many("source_weights")},
        "pending": [f"q{i}.bin" for i in many("pending")],
        "kernel_providers": [f"K{i}" for i in many("kernel_providers")],
    }
    operator = {"domain": "own", "since_version": 1, "inputs": [], "outputs": ["T"]}
    inputs = [f"T{i}" for i in many("parameters")]
    operators = [
        {**operator, "op_type": "Op", "inputs": inputs},
        *[{**operator, "op_type": f"Op{i}"} for i in many("operators")],
    ]
    parts = segments("sealed")
    sealed = {"name": "sealed.data", "digest": _root(parts), "segments": parts}
    sealed["bytes"] = sum(length for length, _ in parts) + len(
        f"epctx initializers {_root(parts)}\n"
    )
    return {
        _MANIFEST: json.dumps(manifest),
        _TYPES: json.dumps({"version": 1, "operators": operators}),
        _SEAL: json.dumps(sealed),
    }


def _root(segments: list[list[Any]]) -> str:
    """Return the digest over a list of segments as a manifest says it."""
    sha, offset = hashlib.sha256(), 0
    for length, digest in segments:
        sha.update(f"{offset} {length} {digest}\n".encode())
        offset += length
    return sha.hexdigest()


def _base(*, loadable: bool) -> onnx.ModelProto:
    """Return a small model in which every repeated field has an entry."""
    kinds = {"doc_string": "d"}
    weights = _weights()
    bodies = [
        helper.make_graph(
            [context_node(f"{name}_node", ["v"], [f"{name}_out"])],
            name,
            [],
            [tensor(f"{name}_out")],
            [numpy_helper.from_array(np.ones(3, np.float32), f"{name}_w")],
            value_info=[tensor(f"{name}_v")],
        )
        for name in ("one", "two")
    ]
    nodes = [
        context_node(
            "a", ["x"], ["v"], main_context=1, ep_cache_context=BINARY.encode()
        ),
        context_node("b", ["v"], ["w"]),
        context_node(
            "e", ["v"], ["u"], main_context=1, embed_mode=1, ep_cache_context=b"payload"
        ),
        helper.make_node(
            "If",
            ["c"],
            ["chosen"],
            "choice",
            then_branch=bodies[0],
            else_branch=bodies[1],
        ),
        helper.make_node("Relu", ["w"], ["r"], "relu"),
        _holder(bodies),
        helper.make_node("F", ["w"], ["y"], "call", domain="own"),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [tensor("x"), tensor("c", TensorProto.BOOL, [])],
            [tensor("y"), tensor("chosen")],
            weights,
            value_info=[tensor("v"), tensor("w"), tensor("u")],
            sparse_initializer=[_sparse()],
        ),
        opset_imports=[
            helper.make_opsetid(*each)
            for each in (("", 18), ("com.microsoft", 1), ("own", 1))
        ],
        ir_version=11,
        functions=[_function("F"), *([_function("Holder")] if loadable else [])],
        **kinds,
    )
    _add_rare_messages(model)
    for key, text in _metadata({}).items():
        model.metadata_props.add(key=key, value=text)
    return model


def _weights() -> list[TensorProto]:
    """Return initializers in raw bytes, in a file, and in each typed field."""
    outside = TensorProto(
        name="outside",
        data_type=TensorProto.FLOAT,
        dims=[2],
        data_location=TensorProto.EXTERNAL,
    )
    outside.external_data.add(key="location", value=WEIGHTS)
    return [
        numpy_helper.from_array(np.ones(3, np.float32), "inline"),
        outside,
        helper.make_tensor("text", TensorProto.STRING, [1], [b"t"]),
        *[
            helper.make_tensor(kind.lower(), TensorProto.DataType.Value(kind), [1], [1])
            for kind in ("FLOAT", "INT32", "INT64", "DOUBLE", "UINT64")
        ],
    ]


def _sparse() -> onnx.SparseTensorProto:
    values = helper.make_tensor("values", TensorProto.FLOAT, [1], [1.0])
    return helper.make_sparse_tensor(
        values, helper.make_tensor("indices", TensorProto.INT64, [1], [0]), [2]
    )


def _holder(bodies: list[onnx.GraphProto]) -> onnx.NodeProto:
    """Return a node of an operator that nobody knows, with attributes of every kind."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    node = helper.make_node("Holder", ["w"], ["held"], "holder", domain="own")
    for name, value in {
        "floats": [1.0],
        "ints": [1],
        "strings": ["s"],
        "tensors": [_weights()[0]],
        "graphs": [bodies[0]],
        "sparse_tensors": [_sparse()],
        "type_protos": [kind],
        "body": bodies[1],
    }.items():
        # Fmt: skip.
        node.attribute.append(helper.make_attribute(name, value))
    node.attribute.append(
        AttributeProto(name="outside", type=AttributeProto.TENSOR, t=_weights()[1])
    )
    return node


def _function(name: str) -> onnx.FunctionProto:
    return helper.make_function(
        "own", name, ["i"], ["o"], [helper.make_node("Relu", ["i"], ["o"])],
        [helper.make_opsetid("", 18)], ["alpha"], [helper.make_attribute("beta", 1)],
    )  # fmt: skip


def _add_rare_messages(model: onnx.ModelProto) -> None:
    """Give each field that has no entry anywhere one, where its message stands last."""
    missing = [
        field for field in repeated_fields() if next(_sites(model, field), None) is None
    ]
    while missing:
        before = len(missing)
        for field in list(missing):
            kind, _, name = field.partition(".")
            hosts = list(_all_messages(model, kind))
            if hosts:
                values = getattr(hosts[-1], name)
                values.add() if hasattr(values, "add") else values.append(
                    _filler(hosts[-1], name)
                )
                missing.remove(field)
        assert len(missing) < before, missing


def _filler(message: Message, name: str) -> Any:
    kind = message.DESCRIPTOR.fields_by_name[name]
    return {kind.TYPE_STRING: "s", kind.TYPE_BYTES: b"s"}.get(kind.type, 1)


def _all_messages(message: Message, kind: str) -> Iterator[Message]:
    if message.DESCRIPTOR.name == kind:
        yield message
    for each, value in list(message.ListFields()):
        if each.message_type is not None:
            for inner in value if each.is_repeated else [value]:
                yield from _all_messages(inner, kind)
