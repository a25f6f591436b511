"""Models of one operator: each of onnx's, with inputs, attributes and shapes at their
limits.

A case is a number: the same number gives the same model with the same onnx. Most parts
of a model are right, so that what comes behind the first check is reached, too.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, TypeProto, helper
from onnx.defs import OpSchema

_FORMAL = OpSchema.FormalParameterOption
_KINDS = OpSchema.AttrType
_SMALL = (1, 2, 3, 4)
_LENGTHS = (0, 1, 2, 3, 5, 1 << 16, 1 << 31, 1 << 40, (1 << 63) - 1, "n", "m", None)
_INTEGERS = (
    -(1 << 63), -(1 << 31) - 1, -3, -2, -1, 0, 1, 2, 3, 7, 1 << 16, 1 << 31,
    1 << 40, (1 << 63) - 1,
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 3e38, float("inf"), float("nan"))
_TEXTS = (
    "", "a", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "constant", "linear",
    "nearest", "cubic", "reflect", "edge", "forward", "reverse", "bidirectional",
    "add", "mul", "max", "sum", "mean", "none", "DCR", "CRD", "LEFT", "RIGHT", "TF",
    "IDF", "i.j", "ij,jk->ik", "...i->...", "ii->i", "->", ",", "i->ij", "SUM",
    "SOFTMAX", "BRANCH_LEQ", "LEAF", "BRANCH_EQ", "\0", "Relu", "Tanh", "asymmetric",
    "half_pixel", "tf_crop_and_resize", "round_prefer_floor", "xxxxxxxxxxxxxxxxxxxx",
)  # fmt: skip
_SEQUENCES = {"seq": helper.make_sequence_type_proto, "optional": helper.make_optional_type_proto}  # fmt: skip
_NAMES = {
    "float": "FLOAT", "double": "DOUBLE", "float16": "FLOAT16",
    "bfloat16": "BFLOAT16", "string": "STRING", "bool": "BOOL",
}  # fmt: skip


@cache
def list_schemas() -> tuple[OpSchema, ...]:
    """Return every version of every operator that onnx has."""
    return tuple(
        sorted(
            onnx.defs.get_all_schemas_with_history(),
            key=lambda s: (s.domain, s.name, s.since_version),
        )
    )


def make_model(number: int) -> ModelProto:
    """Return a model of one operator."""
    draw = random.Random(number)  # noqa: S311 - a case is to come again
    return _OneOperator(draw, draw.choice(list_schemas())).make()


class _OneOperator:
    """A model in the making.

    Attributes:
        wildness: how often a part is drawn from all that there is, rather than from
            what is probably right.
    """

    def __init__(self, draw: random.Random, schema: OpSchema) -> None:
        self.draw, self.schema = draw, schema
        self.wildness = draw.choice((0.0, 0.05, 0.2, 0.5))
        self.rank = draw.choice((1, 2, 2, 3, 4, 4))
        self.types: dict[str, TypeProto] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.initializers: list[TensorProto] = []

    def make(self) -> ModelProto:
        schema, draw = self.schema, self.draw
        node = NodeProto(op_type=schema.name, domain=schema.domain)
        node.input.extend(self._inputs())
        count = self._count(schema.outputs, schema.min_output, schema.max_output)
        node.output.extend(f"y{index}" for index in range(count))
        for attribute in schema.attributes.values():
            if draw.random() < (0.95 if attribute.required else 0.5):
                made = self._attribute(attribute)
                if made is not None:
                    node.attribute.append(made)
        graph = helper.make_graph(
            [node], "one operator", self.inputs, self._outputs(node), self.initializers
        )
        imports = {"": 21, schema.domain: schema.since_version}
        return helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid(domain, version)
                for domain, version in imports.items()
            ],
            ir_version=10,
        )

    def _is_wild(self) -> bool:
        return self.draw.random() < self.wildness

    def _count(self, formals: Any, least: int, most: int) -> int:
        variadic = bool(formals) and formals[-1].option == _FORMAL.Variadic
        highest = max(least, min(most, len(formals) + (3 if variadic else 0)))
        count = self.draw.randint(least, highest)
        return max(0, count + self.draw.choice((-1, 1))) if self._is_wild() else count

    def _inputs(self) -> list[str]:
        formals = self.schema.inputs
        count = self._count(formals, self.schema.min_input, self.schema.max_input)
        names: list[str] = []
        for index in range(count):
            formal = formals[min(index, len(formals) - 1)] if formals else None
            optional = formal is not None and formal.option == _FORMAL.Optional
            if self.draw.random() < (0.3 if optional else self.wildness / 10):
                names.append("")
                continue
            names.append(f"x{index}")
            self._add_input(names[-1], formal)
        return names

    def _outputs(self, node: NodeProto) -> list[onnx.ValueInfoProto]:
        """Return the declarations of the results, a few without a type."""
        formals = self.schema.outputs
        declared = []
        for index, name in enumerate(node.output):
            formal = formals[min(index, len(formals) - 1)] if formals else None
            type_ = None if self.draw.random() < 0.1 else self._type(formal)
            declared.append(onnx.ValueInfoProto(name=name, type=type_))
            if type_ is not None and self.draw.random() < 0.8:
                declared[-1].type.tensor_type.ClearField("shape")
        return declared

    def _add_input(self, name: str, formal: Any) -> None:
        type_ = self._type(formal)
        if type_.HasField("tensor_type") and self.draw.random() < 0.4:
            tensor = self._tensor(type_.tensor_type.elem_type, name)
            if tensor is not None:
                self.initializers.append(tensor)
                return
        self.inputs.append(onnx.ValueInfoProto(name=name, type=type_))

    def _type(self, formal: Any) -> TypeProto:
        if formal is None or self._is_wild():
            return self._parse(self.draw.choice(("tensor(float)", "tensor(int64)", "tensor(string)", "seq(tensor(float))", "optional(tensor(float))")))  # fmt: skip
        variable = formal.type_str
        if variable not in self.types:
            self.types[variable] = self._parse(self.draw.choice(sorted(formal.types)))
        made = TypeProto()
        made.CopyFrom(self.types[variable])
        if made.HasField("tensor_type"):
            self._set_shape(made.tensor_type)
        return made

    def _parse(self, text: str) -> TypeProto:
        """Return the type of a text such as `seq(tensor(float))`."""
        outer, _, inner = text.removesuffix(")").partition("(")
        if outer in _SEQUENCES:
            return _SEQUENCES[outer](self._parse(inner))
        if outer == "map":
            key, _, value = inner.partition(",")
            return helper.make_map_type_proto(
                TensorProto.DataType.Value(_NAMES.get(key, key.upper())),
                self._parse(value.strip()),
            )
        made = TypeProto()
        holder = (
            made.sparse_tensor_type if outer == "sparse_tensor" else made.tensor_type
        )
        holder.elem_type = TensorProto.DataType.Value(_NAMES.get(inner, inner.upper()))
        self._set_shape(holder)
        return made

    def _set_shape(self, holder: Any) -> None:
        holder.ClearField("shape")
        if self.draw.random() < 0.1:
            return
        holder.shape.SetInParent()
        for _ in range(self._rank()):
            length = self._length()
            dim = holder.shape.dim.add()
            if isinstance(length, int):
                dim.dim_value = length
            elif length is not None:
                dim.dim_param = length

    def _rank(self) -> int:
        return self.draw.choice((0, 1, 5, 8)) if self._is_wild() else self.rank

    def _length(self) -> Any:
        return self.draw.choice(_LENGTHS if self._is_wild() else _SMALL)

    def _tensor(self, elem_type: int, name: str = "") -> TensorProto | None:
        """Return a small constant, None for a type that numpy cannot write."""
        vector = self.draw.random() < 0.6
        rank = 1 if vector else min(self._rank(), 4)
        shape = [self.draw.choice((0, 1, 2, 3, 4) if self._is_wild() else _SMALL) for _ in range(rank)]  # fmt: skip
        if self._is_wild():
            shape = []
        count = int(np.prod(shape, dtype=np.int64))
        if elem_type == TensorProto.STRING:
            return helper.make_tensor(
                name, elem_type, shape, [self.draw.choice(_TEXTS) for _ in range(count)]
            )
        try:
            kind = helper.tensor_dtype_to_np_dtype(elem_type)
        except KeyError:
            return None
        numbers = [self._number(kind) for _ in range(count)]
        with np.errstate(all="ignore"):
            values = np.array(numbers).astype(kind).reshape(shape)
        tensor = onnx.numpy_helper.from_array(values, name)
        if self._is_wild() and self.draw.random() < 0.2:
            tensor.dims[:] = [self.draw.choice((-1, 0, 7, 1 << 40))]
        return tensor

    def _number(self, kind: Any) -> Any:
        if np.issubdtype(kind, np.int64) or np.issubdtype(kind, np.int32):
            info = np.iinfo(kind)
            value = self.draw.choice(_INTEGERS if self._is_wild() else (-1, 0, 1, 2, 3))
            return max(info.min, min(info.max, value))
        if np.issubdtype(kind, np.floating):
            return self.draw.choice(
                _FLOATS if self._is_wild() else (0.0, 0.5, 1.0, 2.0)
            )
        return self.draw.choice((0, 1))

    def _attribute(self, schema: Any) -> AttributeProto | None:
        kind, draw = schema.type, self.draw
        default = schema.default_value
        if draw.random() < 0.2 and default is not None and default.name:
            return default
        values: dict[Any, Any] = {
            _KINDS.INT: self._integer,
            _KINDS.FLOAT: self._float,
            _KINDS.STRING: lambda: draw.choice(_TEXTS),
            _KINDS.INTS: lambda: self._some(self._integer),
            _KINDS.FLOATS: lambda: self._some(self._float),
            _KINDS.STRINGS: lambda: self._some(lambda: draw.choice(_TEXTS)),
            _KINDS.TENSOR: lambda: self._tensor(draw.choice((1, 6, 7, 8, 11))),
            _KINDS.GRAPH: self._subgraph,
            _KINDS.TYPE_PROTO: lambda: self._parse("tensor(float)"),
        }
        if kind not in values:
            return None
        value = values[kind]()
        if value is None:
            return None
        attribute_type = getattr(AttributeProto, str(kind).rpartition(".")[2])
        return helper.make_attribute(schema.name, value, attr_type=attribute_type)

    def _integer(self) -> int:
        return self.draw.choice(_INTEGERS if self._is_wild() else (-1, 0, 1, 1, 2, 3))

    def _float(self) -> float:
        return self.draw.choice(_FLOATS if self._is_wild() else (0.0, 0.5, 1.0))

    def _some(self, make: Any) -> list[Any]:
        length = self.draw.choice((0, 1, 2, 3, 9)) if self._is_wild() else self.draw.choice((self.rank, 1, 2, max(self.rank - 2, 1)))  # fmt: skip
        return [make() for _ in range(length)]

    def _subgraph(self) -> onnx.GraphProto:
        """Return a graph that gives its inputs back, of types that nobody declared."""
        count = self.draw.randint(0, 3)
        names = [f"b{index}" for index in range(count)]
        values = [onnx.ValueInfoProto(name=name, type=self._parse("tensor(float)")) for name in names]  # fmt: skip
        nodes = [helper.make_node("Identity", [n], [f"{n} out"]) for n in names]
        return helper.make_graph(
            nodes, "body", values, [onnx.ValueInfoProto(name=f"{n} out") for n in names]
        )
