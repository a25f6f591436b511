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
from end_to_end.small_models import example, finished, saved, tensor
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


class GraphMaker:
    """Draws nodes one after the other; every value has the one shape."""

    def __init__(self, draw):
        self.draw = draw
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [f"x{number}" for number in range(draw(st.integers(1, 3)))]
        self.weights = [f"w{number}" for number in range(3)]
        self.floats = [*self.inputs]
        self.masks = ["flag"]
        for _ in range(draw(st.integers(1, 14))):
            self._add(draw(st.sampled_from(sorted(self._makers()))))

    def _makers(self):
        return {
            **dict.fromkeys(("Relu", "Neg", "Sigmoid", "Tanh"), self._unary),
            **dict.fromkeys(("Add", "Mul", "Sub"), self._binary),
            "Dropout": self._dropout,
            "Where": self._where,
            "Clip": self._clip,
            "If": self._if,
        }

    def _add(self, operator):
        node = self._makers()[operator](operator, f"v{len(self.nodes)}")
        node.name = f"n{len(self.nodes)}"
        self.nodes.append(node)

    def _value(self):
        return self.draw(st.sampled_from([*self.floats, *self.weights]))

    def _unary(self, operator, output):
        inputs = [self._value()]
        self.floats.append(output)
        return helper.make_node(operator, inputs, [output])

    def _binary(self, operator, output):
        inputs = [self._value(), self._value()]
        self.floats.append(output)
        return helper.make_node(operator, inputs, [output])

    def _dropout(self, operator, output):
        inputs = [self._value()]
        outputs = [output, f"{output}_mask"][: self.draw(st.integers(1, 2))]
        self.floats.append(output)
        self.masks += outputs[1:]
        return helper.make_node(operator, inputs, outputs)

    def _where(self, operator, output):
        inputs = [self.draw(st.sampled_from(self.masks)), self._value(), self._value()]
        self.floats.append(output)
        return helper.make_node(operator, inputs, [output])

    def _clip(self, operator, output):
        inputs = [self._value(), "", "limit"]
        self.floats.append(output)
        return helper.make_node(operator, inputs, [output])

    def _if(self, operator, output):
        """A node whose bodies read values of the enclosing graph that are not among its inputs."""
        bodies = {}
        for branch in ("then_branch", "else_branch"):
            node = helper.make_node("Sub", [self._value(), self._value()], [f"{output}_{branch}"])
            bodies[branch] = helper.make_graph([node], branch, [], [tensor(f"{output}_{branch}")])
        self.floats.append(output)
        return helper.make_node(operator, ["flag"], [output], **bodies)

    def model(self):
        made = [name for node in self.nodes for name in node.output]
        wanted = self.draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
        kinds = {name: TensorProto.BOOL if name.endswith("_mask") else TensorProto.FLOAT for name in wanted}
        arrays = {name: example(number) for number, name in enumerate(self.weights)}
        arrays["limit"] = np.float32(0.5)
        flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [1])
        return finished(
            self.nodes,
            [*(tensor(name) for name in self.inputs), flag],
            [tensor(name, kinds[name]) for name in wanted],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
        )


@st.composite
def cases(draw):
    eps = draw(st.lists(st.sampled_from([Alpha, Beta]), min_size=1, unique=True))
    return Case(model=GraphMaker(draw).model(), eps=eps, embedded=draw(st.booleans()))


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
    event(f"{len(report.partitions)} partitions")
    assert_partitions_are_whole(case, context, report)


def session_result(path, feeds, options=None, *, registry):
    with epctx.InferenceSession(path, options, registry=registry) as session:
        return session.run(None, feeds)


def assert_partitions_are_whole(case, context, report):
    source = case.model.graph
    operators = {node.name: node.op_type for node in source.node}
    groups = [list(partition.node_names) for partition in report.partitions]
    left = [node.name for node in context.graph.node if node.op_type != "EPContext"]

    assert sorted([*itertools.chain(*groups), *left]) == sorted(operators)
    assert [v.name for v in context.graph.input] == [v.name for v in source.input]
    assert [v.name for v in context.graph.output] == [v.name for v in source.output]
    for partition in report.partitions:
        (ep,) = [ep for ep in case.eps if ep.name == partition.ep]
        assert {operators[name] for name in partition.node_names} <= ep.operators
    claimed = set().union(*(ep.operators for ep in case.eps))
    assert not {operators[name] for name in left} & claimed

    edges = edges_of(source)
    whole = [*groups, *([name] for name in left)]
    assert is_acyclic(whole, edges)
    for one, other in itertools.combinations(range(len(groups)), 2):
        if report.partitions[one].ep == report.partitions[other].ep:
            merged = [group for number, group in enumerate(whole) if number not in (one, other)]
            assert not is_acyclic([*merged, groups[one] + groups[other]], edges), (groups[one], groups[other])


def edges_of(graph):
    """Return (producer, consumer) for every value, those that only bodies read included."""
    producer = {name: node.name for node in graph.node for name in node.output if name}
    read = {
        node.name: {
            *node.input,
            *(name for a in node.attribute for inner in a.g.node for name in inner.input),
        }
        for node in graph.node
    }
    return {(producer[name], node) for node, names in read.items() for name in names if name in producer}


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
