"""Cost in nodes: a long chain, of which an EP takes four operators in five (20,000
partitions of 100,000 nodes).
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

from harness import DATA, Bar, measure, peak_memory, report, seconds, show

OPERATORS = ("Relu", "Neg", "Abs", "Sigmoid", "Tanh")
NODES = 100_000
SIZES = (25_000, 50_000, 100_000, 200_000, 400_000)


def make_chain(nodes: int) -> Path:
    """Write the chain, once."""
    from onnx import GraphProto, TensorProto, helper, save

    path = DATA / f"chain_{nodes}.onnx"
    if path.exists():
        return path
    DATA.mkdir(exist_ok=True)
    graph = GraphProto(name="chain")
    value = "x"
    for i in range(nodes):
        node = graph.node.add(op_type=OPERATORS[i % len(OPERATORS)], name=f"n{i}")
        node.input.append(value)
        value = f"v{i}"
        node.output.append(value)
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16]))
    graph.output.append(
        helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 16])
    )
    save(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ),
        path,
    )
    return path


def options():  # noqa: ANN201 - epctx is imported by children only
    """Return session options with the simulated QNN EP that leaves every fifth operator
    to the CPU.
    """
    from epctx_sim_qnn import QnnProvider

    import epctx_core as epctx
    from epctx_core.plugin import hookimpl, supported_partitions

    class FourOfFive(QnnProvider):
        name = "FourOfFiveExecutionProvider"

        @hookimpl
        def get_capability(self, graph):  # noqa: ANN001, ANN202 - a hook
            return supported_partitions(
                graph, lambda node: node.op_type != "Tanh" or "Tanh is left over"
            )

    epctx.register_execution_provider(FourOfFive)
    so = epctx.SessionOptions()
    so.add_provider(FourOfFive.name)
    return so


def core(path: Path) -> None:
    """Load, index, partition and splice; no checker, inference, EP or writing."""
    from onnx import NodeProto

    from epctx_core.graph.extraction import GraphPartition
    from epctx_core.graph.index import GraphIndex
    from epctx_core.graph.model_io import parse_model, read_model
    from epctx_core.graph.partition import Partitioner
    from epctx_core.graph.splice import splice
    from epctx_core.graph.type_table import TypeTable
    from epctx_core.process import pause_collection

    @pause_collection(NODES)
    def work() -> None:
        model = parse_model(*read_model(path))
        graph = GraphIndex(model.graph, types=TypeTable(), weights={}, owner=model)
        partitioner = Partitioner(graph.predecessors)
        groups = partitioner.group(
            [[i] for i, node in enumerate(graph.nodes) if node.op_type != "Tanh"]
        )
        partitioner.take(groups)
        replacements = {}
        for group in groups:
            partition = GraphPartition(graph, group, ep="x")
            node = NodeProto(name="p", op_type="EPContext", domain="com.microsoft")
            node.input.extend(partition.input_names)
            node.output.extend(partition.output_names)
            replacements[group[0]] = node
        splice(model, graph, partitioner.execution_order(), replacements)

    report(s=seconds(work), peak_bytes=peak_memory())


def compile_chain(path: Path) -> None:
    """`compile_to_file` with everything."""
    import epctx_core as epctx

    compiler = epctx.ModelCompiler(options(), path)
    output = path.with_name(path.stem + "_ctx.onnx")
    warm_up()
    report(
        s=seconds(lambda: compiler.compile_to_file(output)), peak_bytes=peak_memory()
    )


def load(path: Path) -> None:
    """Create a session from the context model."""
    import epctx_core as epctx

    so = options()
    warm_up()
    sessions = []
    report(
        s=seconds(lambda: sessions.append(epctx.InferenceSession(path, so))),
        peak_bytes=peak_memory(),
    )


def onnxruntime_session(path: Path) -> None:
    """Create onnxruntime's session for the source, without optimisation."""
    import onnxruntime

    so = onnxruntime.SessionOptions()
    so.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    warm_up()
    sessions = []
    report(
        s=seconds(lambda: sessions.append(onnxruntime.InferenceSession(str(path), so))),
        peak_bytes=peak_memory(),
    )


def warm_up() -> None:
    """Import both libraries and make one small session with each, as the comparison
    demands.
    """
    import onnxruntime
    from onnx import parser

    import epctx_core as epctx

    small = parser.parse_model(
        '<ir_version: 9, opset_import: ["": 17]> g (float[1] x) => (float[1] y) { y = '
        "Relu(x) }"
    )
    onnxruntime.InferenceSession(small.SerializeToString())
    epctx.InferenceSession(small.SerializeToString()).close()
    gc.collect()


CHILDREN = {
    "core": core,
    "compile": compile_chain,
    "load": load,
    "onnxruntime": onnxruntime_session,
}


def main() -> None:
    """Measure everything and print the table."""
    path = make_chain(NODES)
    context = path.with_name(path.stem + "_ctx.onnx")
    measurement = measure(
        __file__,
        {
            "load+index+partition+splice": ("core", str(path)),
            "compile_to_file": ("compile", str(path)),
            "session from the context model": ("load", str(context)),
            "onnxruntime's session": ("onnxruntime", str(path)),
        },
    )
    peer = "onnxruntime's session"
    show(
        f"{NODES:,} nodes in a chain, 20,000 partitions",
        measurement,
        [
            Bar(ours="load+index+partition+splice", peer=peer, at_most=0.25),
            Bar(ours="compile_to_file", peer=peer, at_most=0.5),
            Bar(ours="session from the context model", peer=peer, at_most=0.3),
        ],
    )
    sizes = {f"{n:,}": ("compile", str(make_chain(n))) for n in (SIZES[0], SIZES[-1])}
    grown = measure(__file__, sizes, runs=3)
    show(
        "16 times the nodes, compile_to_file",
        grown,
        [Bar(ours=f"{SIZES[-1]:,}", peer=f"{SIZES[0]:,}", at_most=25)],
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](Path(sys.argv[2]))
    else:
        main()
