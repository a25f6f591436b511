"""Counts the bytecode instructions that each further node of a graph costs, and prints
them as JSON.

Called by `test_counts_of_nodes.py` in a process of its own: what other tests have left
in theirs would be counted, too.

A chain of five operators of which QNN takes four, so that every fifth node is a
boundary: compiled and loaded with twice as many nodes, what is fixed cancels out.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path

from onnx import GraphProto, TensorProto, helper

import epctx_core as epctx

OPERATORS = "Relu", "Sigmoid", "Tanh", "Neg", "Acosh"
FEW, MANY = 500, 1000


def make_options() -> epctx.SessionOptions:
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    return options


def write_chain(path: Path, nodes: int) -> None:
    graph = GraphProto(name="chain")
    value = "x"
    for i in range(nodes):
        operator = OPERATORS[i % len(OPERATORS)]
        graph.node.add(op_type=operator, name=f"n{i}", input=[value], output=[f"v{i}"])
        value = f"v{i}"
    for values, name in ((graph.input, "x"), (graph.output, value)):
        type_ = helper.make_tensor_type_proto(TensorProto.FLOAT, [1, 16])
        values.add(name=name, type=type_)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    path.write_bytes(model.SerializeToString())


@contextmanager
def counting_instructions():
    """Yield a list that gets the number of instructions that this thread runs.

    Garbage is collected before: finalisers would be counted.
    """
    gc.collect()
    gc.disable()
    count = 0

    def trace_instruction(_frame, event, _argument):
        nonlocal count
        count += event == "opcode"
        return trace_instruction

    def trace_call(frame, _event, _argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return trace_instruction

    counts: list[int] = []
    sys.settrace(trace_call)
    try:
        yield counts
    finally:
        sys.settrace(None)
        gc.enable()
        counts.append(count)


def count_model(folder: Path, nodes: int) -> dict[str, int]:
    """Return the instructions of all that takes a whole model."""
    source, context = folder / "chain.onnx", folder / "chain_ctx.onnx"
    write_chain(source, nodes)

    with counting_instructions() as compiling:
        report = epctx.ModelCompiler(make_options(), source).compile_to_file(context)
    assert len(report.partitions) == nodes // len(OPERATORS)

    with counting_instructions() as loading:
        session = epctx.InferenceSession(context, make_options())
    session.close()

    with counting_instructions() as verifying:
        assert epctx.verify_model(context, make_options()).ok

    with counting_instructions() as inspecting:
        epctx.inspect_model(context)

    return {
        "compile": compiling[0],
        "load": loading[0],
        "verify": verifying[0],
        "inspect": inspecting[0],
    }


def main(folder: Path) -> None:
    # The first two are not used: they import, fill caches, and leave receipts of models
    # that this machine meets for the first time.
    os.environ["EPCTX_RECEIPTS"] = str(folder / "receipts")
    for nodes in (FEW, MANY):
        count_model(folder, nodes)

    # One receipt in 16 has the folder of receipts listed: the least counts.
    rounds = [(count_model(folder, FEW), count_model(folder, MANY)) for _ in range(3)]
    few, many = (
        {case: min(counts[case] for counts in each) for case in each[0]}
        for each in zip(*rounds, strict=True)
    )
    counts = {case: (many[case] - few[case]) / (MANY - FEW) for case in few}
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
