"""Random models with control flow, and whether their partitions are whole, convex and
maximal.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from support.small_models import SHAPE, example, finished, tensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import epctx_core as epctx

DEPTH = 3
"""Depth of subgraphs: one in one in one of the main graph."""


class Scope:
    """Draws the nodes of a graph one after the other; every value has the one shape.

    Values of bodies at one depth share names, as the bodies of one node may; nodes have
    names of their own.
    """

    fewest = 1
    """Steps of a main graph; shorter ones are drawn more often than longer ones."""

    def __init__(self, draw, floats, masks, *, depth=0, path="n"):
        self.draw = draw
        self.floats, self.masks = [*floats], [*masks]
        self.depth, self.path = depth, path
        self.nodes: list[onnx.NodeProto] = []
        self.own: list[str] = []
        fewest = 1 if depth else self.fewest
        for _ in range(draw(st.integers(fewest, (14, 4, 3, 2)[depth]))):
            self._add(draw(st.sampled_from(sorted(self._makers()))))

    def _makers(self):
        """Return by operator how it is added; a scope of other operators extends
        this.
        """
        deeper = (
            {"If": self._if, "Loop": self._loop, "Scan": self._scan}
            if self.depth < DEPTH
            else {}
        )
        return {
            **dict.fromkeys(("Relu", "Neg", "Sigmoid", "Tanh"), self._unary),
            **dict.fromkeys(("Add", "Mul", "Sub"), self._binary),
            "Dropout": self._dropout,
            "Where": self._where,
            "Clip": self._clip,
            **deeper,
        }

    def _add(self, operator):
        name = f"{self.path}{len(self.nodes)}"
        node = self._makers()[operator](
            operator, f"{'d' * self.depth}v{len(self.nodes)}", name
        )
        node.name = name
        self.nodes.append(node)

    def _value(self):
        return self.draw(st.sampled_from(self.floats))

    def _made(self, output):
        self.floats.append(output)
        self.own.append(output)
        return output

    def _unary(self, operator, output, _name):
        return helper.make_node(operator, [self._value()], [self._made(output)])

    def _binary(self, operator, output, _name):
        return helper.make_node(
            operator, [self._value(), self._value()], [self._made(output)]
        )

    def _dropout(self, operator, output, _name):
        inputs = [self._value()]
        outputs = [self._made(output), f"{output}_mask"][: self.draw(st.integers(1, 2))]
        self.masks += outputs[1:]
        return helper.make_node(operator, inputs, outputs)

    def _where(self, operator, output, _name):
        inputs = [self.draw(st.sampled_from(self.masks)), self._value(), self._value()]
        return helper.make_node(operator, inputs, [self._made(output)])

    def _clip(self, operator, output, _name):
        return helper.make_node(
            operator, [self._value(), "", "limit"], [self._made(output)]
        )

    def _body(self, name, inputs=(), *, before=(), outputs=1, copied=False):
        """Return a body over the values here; it may have a weight of its own, and give
        that or an input.
        """
        mark = "d" * (self.depth + 1)
        weights = [f"{mark}w"] if self.draw(st.booleans()) else []
        states = [v.name for v in inputs if v.name.endswith("c")]
        floats = [*self.floats, *states, *weights]
        scope = type(self)(
            self.draw, floats, ["flag"], depth=self.depth + 1, path=f"{name}."
        )
        choice = st.sampled_from([*scope.own, *weights, *states])
        results = self.draw(
            st.lists(choice, min_size=outputs, max_size=outputs, unique=not copied)
        )
        if copied:
            for place, result in enumerate(results):
                results[place] = f"{mark}r{place}"
                scope.nodes.append(
                    helper.make_node(
                        "Identity", [result], [results[place]], f"{name}.r{place}"
                    )
                )
        values = [
            numpy_helper.from_array(example(self.depth), weight) for weight in weights
        ]
        outs = [*before, *(tensor(result) for result in results)]
        return helper.make_graph(scope.nodes, name, list(inputs), outs, values)

    def _if(self, operator, output, name):
        bodies = {
            branch: self._body(f"{name}.{branch}")
            for branch in ("then_branch", "else_branch")
        }
        return helper.make_node(operator, ["flag"], [self._made(output)], **bodies)

    def _loop(self, operator, output, name):
        """A state and rows; the rows have one dimension more, so that nobody here reads
        them.
        """
        mark = "d" * (self.depth + 1)
        count = helper.make_tensor_value_info(f"{mark}i", TensorProto.INT64, [])
        going = helper.make_tensor_value_info(f"{mark}go", TensorProto.BOOL, [])
        body = self._body(
            name, [count, going, tensor(f"{mark}c")], before=[going], outputs=2
        )
        inputs = [
            self.draw(st.sampled_from(["none", "once", "thrice"])),
            "",
            self._value(),
        ]
        return helper.make_node(
            operator, inputs, [self._made(output), f"{output}_rows"], body=body
        )

    def _scan(self, operator, output, name):
        mark = "d" * (self.depth + 1)
        # onnxruntime's Scan gives nonsense for a value that no node of the body makes,
        # or that stands twice.
        body = self._body(
            name, [tensor(f"{mark}c"), tensor(f"{mark}sc")], outputs=2, copied=True
        )
        inputs = [self._value(), "stack"]
        outputs = [self._made(output), f"{output}_rows"]
        return helper.make_node(operator, inputs, outputs, body=body, num_scan_inputs=1)


class MixedScope(Scope):
    """The same for the simulated EPs: some operators only one of them takes, some none,
    INT8 ones among floats.
    """

    fewest = 8

    def _makers(self):
        return {
            **super()._makers(),
            **dict.fromkeys(("Erf", "Softplus"), self._unary),  # not QNN's
            "IsNaN": self._masked,  # not OpenVINO's
            "IsInf": self._masked,  # nobody's
            "quantised Add": self._quantised,  # VitisAI's, like the next
            "quantised Relu": self._quantised,
        }

    def _masked(self, operator, output, name):
        """A mask, and what is chosen by it."""
        mask = f"{output}_mask"
        self.nodes.append(
            helper.make_node(operator, [self._value()], [mask], f"{name}_mask")
        )
        self.masks.append(mask)
        return helper.make_node(
            "Where", [mask, self._value(), self._value()], [self._made(output)]
        )

    def _quantised(self, operator, output, name):
        """An operator between DequantizeLinear and QuantizeLinear; others may read what
        it reads.
        """
        operator = operator.removeprefix("quantised ")
        count = 2 if operator == "Add" else 1
        given = [
            self._through_int8(self._value(), f"{output}_{i}", f"{name}_{i}")
            for i in range(count)
        ]
        self.nodes.append(
            helper.make_node(operator, given, [f"{output}_r"], f"{name}_r")
        )
        result = self._through_int8(f"{output}_r", output, name)
        if self.draw(st.booleans()):
            self.floats += given
        self._made(result)
        return self.nodes.pop()

    def _through_int8(self, value, output, name):
        for operator, given, made in (
            ("QuantizeLinear", value, f"{output}_q"),
            ("DequantizeLinear", f"{output}_q", output),
        ):
            self.nodes.append(
                helper.make_node(
                    operator, [given, "scale", "zero"], [made], f"{name}_{operator}"
                )
            )
        return output


def drawn_model(draw: st.DrawFn, scope_type: type[Scope] = Scope) -> onnx.ModelProto:
    """Return a model whose outputs are some of the values that its nodes make."""
    inputs = [f"x{number}" for number in range(draw(st.integers(1, 3)))]
    weights = [f"w{number}" for number in range(3)]
    scope = scope_type(draw, [*inputs, *weights], ["flag"])
    made = [
        name for node in scope.nodes for name in node.output if not name.endswith("_q")
    ]
    expected = draw(
        st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True)
    )
    arrays = {name: example(number) for number, name in enumerate(weights)}
    arrays |= {"limit": np.float32(0.5), "stack": example(7, (2, *SHAPE))}
    arrays |= {"scale": np.float32(2.0**-4), "zero": np.int8(0)}
    arrays |= {
        name: np.int64(count)
        for name, count in (("none", 0), ("once", 1), ("thrice", 3))
    }
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])
    return finished(
        scope.nodes,
        [*(tensor(name) for name in inputs), flag],
        [declared(name) for name in expected],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in arrays.items()
        ],
    )


def declared(name):
    if name.endswith("_rows"):
        return tensor(name, shape=["rows", *SHAPE])
    return tensor(
        name, TensorProto.BOOL if name.endswith("_mask") else TensorProto.FLOAT
    )


def assert_partitions_are_whole(
    source: onnx.ModelProto, context: onnx.ModelProto, report: epctx.CompileReport
) -> set[str]:
    """Check a context model against its source; return the names of the nodes that no
    EP took.

    Every node is in one place, inputs and outputs stay, partitions are convex, and no
    two of one EP could be one.
    """
    assert [v.name for v in context.graph.input] == [v.name for v in source.graph.input]
    assert [v.name for v in context.graph.output] == [
        v.name for v in source.graph.output
    ]
    by_first = {partition.node_names[0]: partition for partition in report.partitions}
    left: set[str] = set()
    met: set[str] = set()
    for before, after in kept_graphs(source.graph, context.graph):
        partitions = [
            by_first[node.name] for node in before.node if node.name in by_first
        ]
        met.update(partition.name for partition in partitions)
        left |= _check(before, after, partitions)
    assert met == {partition.name for partition in report.partitions}
    return left


def kept_graphs(
    source: onnx.GraphProto, context: onnx.GraphProto
) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """Yield each graph of a model with what became of it; bodies of nodes that an EP
    took whole are gone.
    """
    yield source, context
    left = {node.name: node for node in context.node}
    for node in source.node:
        bodies = {a.name: a.g for a in node.attribute if a.HasField("g")}
        if bodies and node.name in left:
            for attribute in left[node.name].attribute:
                if attribute.name in bodies:
                    yield from kept_graphs(bodies[attribute.name], attribute.g)


def _check(
    source: onnx.GraphProto,
    context: onnx.GraphProto,
    partitions: Sequence[epctx.PartitionReport],
) -> set[str]:
    groups = [list(partition.node_names) for partition in partitions]
    left = [node.name for node in context.node if node.op_type != "EPContext"]
    assert sorted([*itertools.chain(*groups), *left]) == sorted(
        node.name for node in source.node
    )
    assert {p.name for p in partitions} == {
        n.name for n in context.node if n.op_type == "EPContext"
    }

    edges = edges_of(source)
    whole = [*groups, *([name] for name in left)]
    assert is_acyclic(whole, edges)
    for one, other in itertools.combinations(range(len(groups)), 2):
        if partitions[one].ep == partitions[other].ep:
            merged = [
                group
                for number, group in enumerate(whole)
                if number not in (one, other)
            ]
            assert not is_acyclic([*merged, groups[one] + groups[other]], edges), (
                groups[one],
                groups[other],
            )
    return set(left)


def edges_of(graph):
    """Return (producer, consumer) for every value, those that only bodies read
    included.
    """
    producer = {name: node.name for node in graph.node for name in node.output if name}
    return {
        (producer[name], node.name)
        for node in graph.node
        for name in names_read(node)
        if name in producer
    }


def names_read(node):
    """Return what a node reads; names in bodies at other depths differ, so that nothing
    is mistaken.
    """
    inner = [a.g for a in node.attribute if a.HasField("g")]
    return {
        *node.input,
        *(
            name
            for body in inner
            for within in body.node
            for name in names_read(within)
        ),
    }


def is_acyclic(groups, edges):
    """Whether contracting the groups leaves a graph without cycles (Kahn's way, on
    sets).
    """
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    needs = {number: set() for number in range(len(groups))}
    for producer, consumer in edges:
        if group_of[producer] != group_of[consumer]:
            needs[group_of[consumer]].add(group_of[producer])
    while needs:
        free = {number for number, expected in needs.items() if not expected}
        if not free:
            return False
        needs = {
            number: expected - free
            for number, expected in needs.items()
            if number not in free
        }
    return True
