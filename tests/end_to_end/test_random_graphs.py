"""Invariants 1, 2 and 10 on random graphs: same results on every way, partitions whole, convex and maximal."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from end_to_end.engine_eps import Alpha, Beta
from end_to_end.onnxruntime_eye import onnxruntime_result, onnxruntime_says
from end_to_end.small_models import SHAPE, example, finished, saved, tensor
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import epctx_core as epctx


@dataclass(frozen=True, kw_only=True)
class Case:
    """A random model, the EPs in order of priority, and how it is compiled."""

    model: onnx.ModelProto
    eps: list[type]
    embedded: bool


DEPTH = 3
"""How deep bodies go: a body in a body in a body of the main graph."""


class Scope:
    """Draws the nodes of a graph one after the other; every value has the one shape.

    Values of bodies at one depth share names, as the bodies of one node may; nodes have names of their own.
    """

    def __init__(self, draw, floats, masks, *, depth=0, path="n"):
        self.draw = draw
        self.floats, self.masks = [*floats], [*masks]
        self.depth, self.path = depth, path
        self.nodes: list[onnx.NodeProto] = []
        self.own: list[str] = []
        for _ in range(draw(st.integers(1, (14, 4, 3, 2)[depth]))):
            self._add(draw(st.sampled_from(sorted(self._makers()))))

    def _makers(self):
        deeper = {"If": self._if, "Loop": self._loop, "Scan": self._scan} if self.depth < DEPTH else {}
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
        node = self._makers()[operator](operator, f"{'d' * self.depth}v{len(self.nodes)}", name)
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
        return helper.make_node(operator, [self._value(), self._value()], [self._made(output)])

    def _dropout(self, operator, output, _name):
        inputs = [self._value()]
        outputs = [self._made(output), f"{output}_mask"][: self.draw(st.integers(1, 2))]
        self.masks += outputs[1:]
        return helper.make_node(operator, inputs, outputs)

    def _where(self, operator, output, _name):
        inputs = [self.draw(st.sampled_from(self.masks)), self._value(), self._value()]
        return helper.make_node(operator, inputs, [self._made(output)])

    def _clip(self, operator, output, _name):
        return helper.make_node(operator, [self._value(), "", "limit"], [self._made(output)])

    def _body(self, name, inputs=(), *, before=(), outputs=1, copied=False):
        """Return a body over the values here; it may have a weight of its own, and give that or an input."""
        mark = "d" * (self.depth + 1)
        weights = [f"{mark}w"] if self.draw(st.booleans()) else []
        states = [v.name for v in inputs if v.name.endswith("c")]
        floats = [*self.floats, *states, *weights]
        scope = Scope(self.draw, floats, ["flag"], depth=self.depth + 1, path=f"{name}.")
        choice = st.sampled_from([*scope.own, *weights, *states])
        results = self.draw(st.lists(choice, min_size=outputs, max_size=outputs, unique=not copied))
        if copied:
            for place, result in enumerate(results):
                results[place] = f"{mark}r{place}"
                scope.nodes.append(
                    helper.make_node("Identity", [result], [results[place]], f"{name}.r{place}")
                )
        values = [numpy_helper.from_array(example(self.depth), weight) for weight in weights]
        outs = [*before, *(tensor(result) for result in results)]
        return helper.make_graph(scope.nodes, name, list(inputs), outs, values)

    def _if(self, operator, output, name):
        bodies = {branch: self._body(f"{name}.{branch}") for branch in ("then_branch", "else_branch")}
        return helper.make_node(operator, ["flag"], [self._made(output)], **bodies)

    def _loop(self, operator, output, name):
        """A state and rows; the rows have one dimension more, so that nobody here reads them."""
        mark = "d" * (self.depth + 1)
        count = helper.make_tensor_value_info(f"{mark}i", TensorProto.INT64, [])
        going = helper.make_tensor_value_info(f"{mark}go", TensorProto.BOOL, [])
        body = self._body(name, [count, going, tensor(f"{mark}c")], before=[going], outputs=2)
        inputs = [self.draw(st.sampled_from(["none", "once", "thrice"])), "", self._value()]
        return helper.make_node(operator, inputs, [self._made(output), f"{output}_rows"], body=body)

    def _scan(self, operator, output, name):
        mark = "d" * (self.depth + 1)
        # onnxruntime's Scan gives nonsense for a value that no node of the body makes, or that stands twice.
        body = self._body(name, [tensor(f"{mark}c"), tensor(f"{mark}sc")], outputs=2, copied=True)
        inputs = [self._value(), "stack"]
        outputs = [self._made(output), f"{output}_rows"]
        return helper.make_node(operator, inputs, outputs, body=body, num_scan_inputs=1)


def drawn_model(draw):
    """Return a model whose outputs are some of the values that its nodes make."""
    inputs = [f"x{number}" for number in range(draw(st.integers(1, 3)))]
    weights = [f"w{number}" for number in range(3)]
    scope = Scope(draw, [*inputs, *weights], ["flag"])
    made = [name for node in scope.nodes for name in node.output]
    wanted = draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    arrays = {name: example(number) for number, name in enumerate(weights)}
    arrays |= {"limit": np.float32(0.5), "stack": example(7, (2, *SHAPE))}
    arrays |= {name: np.int64(count) for name, count in (("none", 0), ("once", 1), ("thrice", 3))}
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])
    return finished(
        scope.nodes,
        [*(tensor(name) for name in inputs), flag],
        [declared(name) for name in wanted],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )


def declared(name):
    if name.endswith("_rows"):
        return tensor(name, shape=["rows", *SHAPE])
    return tensor(name, TensorProto.BOOL if name.endswith("_mask") else TensorProto.FLOAT)


@st.composite
def cases(draw):
    eps = draw(st.lists(st.sampled_from([Alpha, Beta]), min_size=1, unique=True))
    return Case(model=drawn_model(draw), eps=eps, embedded=draw(st.booleans()))


@given(case=cases(), flag=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_graph_and_any_mix_of_eps_keeps_results_and_partitions_whole(case, flag):
    registry = epctx.Registry(entry_points=False)
    options = epctx.SessionOptions()
    for ep in case.eps:
        registry.register(ep)
        options.add_provider(ep.name)
    feeds = {name: example(9 + number) for number, name in enumerate(v.name for v in case.model.graph.input)}
    feeds["flag"] = np.array([flag])

    with tempfile.TemporaryDirectory() as folder:
        source, written = saved(case.model, Path(folder, "m.onnx")), Path(folder, "out", "m_ctx.onnx")
        written.parent.mkdir()
        wanted = onnxruntime_result(source, feeds)
        report = epctx.ModelCompiler(options, source, case.embedded, registry=registry).compile_to_file(
            written
        )
        results = [
            session_result(source, feeds, registry=registry),
            session_result(source, feeds, options, registry=registry),
            session_result(written, feeds, registry=registry),
        ]
        context = onnx.load(written)
        if report.partitions:
            assert "is not compatible with any execution provider" in onnxruntime_says(written)

    for result in results:
        for one, other in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(one, other, strict=True)
    event(f"{len(report.partitions)} partitions, {'some' if len(graphs(context.graph)) > 1 else 'no'} bodies")
    by_first = {partition.node_names[0]: partition for partition in report.partitions}
    kept = {graph.name: graph for graph in graphs(context.graph)}
    for graph in graphs(case.model.graph):
        assert_partitions_are_whole(case, graph, kept[graph.name], by_first)


def session_result(path, feeds, options=None, *, registry):
    with epctx.InferenceSession(path, options, registry=registry) as session:
        return session.run(None, feeds)


def graphs(graph):
    """Return a graph and all bodies in it; the bodies of control flow that stays keep their names."""
    inner = [body for node in graph.node for a in node.attribute if a.HasField("g") for body in graphs(a.g)]
    return [graph, *inner]


def assert_partitions_are_whole(case, source, context, by_first):
    operators = {node.name: node.op_type for node in source.node}
    partitions = [by_first[name] for name in operators if name in by_first]
    groups = [list(partition.node_names) for partition in partitions]
    left = [node.name for node in context.node if node.op_type != "EPContext"]

    assert sorted([*itertools.chain(*groups), *left]) == sorted(operators)
    assert {p.name for p in partitions} == {n.name for n in context.node if n.op_type == "EPContext"}
    claimed = set().union(*(ep.operators for ep in case.eps))
    assert not {operators[name] for name in left} & claimed

    edges = edges_of(source)
    whole = [*groups, *([name] for name in left)]
    assert is_acyclic(whole, edges)
    for one, other in itertools.combinations(range(len(groups)), 2):
        if partitions[one].ep == partitions[other].ep:
            merged = [group for number, group in enumerate(whole) if number not in (one, other)]
            assert not is_acyclic([*merged, groups[one] + groups[other]], edges), (groups[one], groups[other])


def edges_of(graph):
    """Return (producer, consumer) for every value, those that only bodies read included."""
    producer = {name: node.name for node in graph.node for name in node.output if name}
    return {
        (producer[name], node.name) for node in graph.node for name in names_read(node) if name in producer
    }


def names_read(node):
    """Return what a node reads; names in bodies at other depths differ, so that nothing is mistaken."""
    inner = [a.g for a in node.attribute if a.HasField("g")]
    return {*node.input, *(name for body in inner for within in body.node for name in names_read(within))}


def is_acyclic(groups, edges):
    """Whether contracting the groups leaves a graph without cycles (Kahn's way, on sets)."""
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    needs = {number: set() for number in range(len(groups))}
    for producer, consumer in edges:
        if group_of[producer] != group_of[consumer]:
            needs[group_of[consumer]].add(group_of[producer])
    while needs:
        free = {number for number, wanted in needs.items() if not wanted}
        if not free:
            return False
        needs = {number: wanted - free for number, wanted in needs.items() if number not in free}
    return True


def test_the_check_for_cycles_sees_one():
    edges = {("a", "b"), ("b", "c")}

    assert is_acyclic([["a"], ["b"], ["c"]], edges)
    assert not is_acyclic([["a", "c"], ["b"]], edges)
