"""Cost of handing over: 20 partitions that alternate between two EPs, against the same
cut through onnxruntime's own `run`.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from harness import measure, pair_turns, report, seconds, show

STEPS = 20
COUNT = 320
"""Runs in a turn."""
TURNS = 20
THREADS = 16

Work: TypeAlias = Callable[[], object]


def chain(width: int) -> bytes:
    """Return a chain of Relu and Neg over `width` floats, and so many bytes as a tensor
    times 4.
    """
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node(("Relu", "Neg")[i % 2], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}")
        for i in range(STEPS)
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width])
        for n in ("v0", f"v{STEPS}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return model.SerializeToString()


def two_eps(width: int):  # noqa: ANN201 - a session
    """Return a session in which two EPs take every other node."""
    import epctx_core as epctx
    from epctx_core.plugin import (
        CompiledPartition,
        ExecutionProvider,
        hookimpl,
        supported_partitions,
    )

    def provider(name: str, operator: str) -> type[ExecutionProvider]:
        class OneOperator(ExecutionProvider):
            @hookimpl
            def get_capability(self, graph):  # noqa: ANN001, ANN202 - a hook
                return supported_partitions(
                    graph, lambda node: node.op_type == operator
                )

            @hookimpl
            def compile(self, partitions):  # noqa: ANN001, ANN202 - a hook
                return [
                    CompiledPartition(self.context.engine.prepare(p.model()).run)
                    for p in partitions
                ]

        OneOperator.name = name
        return OneOperator

    for name, operator in (
        ("AExecutionProvider", "Relu"),
        ("BExecutionProvider", "Neg"),
    ):
        epctx.register_execution_provider(provider(name, operator))
    return epctx.InferenceSession(chain(width), providers=["A", "B"])


def same_cut(width: int):  # noqa: ANN201 - a callable
    """Return a function that runs the same cut through onnxruntime sessions, one call
    after the other.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    so = onnxruntime.SessionOptions()
    so.intra_op_num_threads = 1
    sessions = {}
    for operator in ("Relu", "Neg"):
        ends = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, width])
            for n in "xy"
        ]
        graph = helper.make_graph(
            [helper.make_node(operator, ["x"], ["y"])], "one", ends[:1], ends[1:]
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        )
        sessions[operator] = onnxruntime.InferenceSession(model.SerializeToString(), so)

    def run(x):  # noqa: ANN001, ANN202 - arrays
        for i in range(STEPS):
            x = sessions[("Relu", "Neg")[i % 2]].run(["y"], {"x": x})[0]
        return x

    return run


def child(kind: str, width: str) -> None:
    """Report seconds a run of both, and the ratio of neighbouring turns."""
    import numpy as np

    x = np.ones([1, int(width)], np.float32)
    session = two_eps(int(width))
    cut = same_cut(int(width))
    works: list[Work] = [lambda: session.run(None, {"v0": x}), lambda: cut(x)]
    repeat = repeat_in_threads if kind == "threads" else repeat_alone
    for work in works:
        work()

    taken: list[list[float]] = []
    order = [0, 1]
    for _ in range(TURNS):
        taken.append([0.0, 0.0])
        for who in order:
            taken[-1][who] = seconds(partial(repeat, works[who])) / COUNT
        order.reverse()
    ours, theirs = zip(*taken, strict=True)
    report(
        epctx_s=statistics.median(ours),
        cut_s=statistics.median(theirs),
        ratio=pair_turns(ours, theirs),
    )


def repeat_alone(work: Work) -> None:
    """Call a function `COUNT` times."""
    for _ in range(COUNT):
        work()


def repeat_in_threads(work: Work) -> None:
    """Call a function `COUNT` times, from threads that share one session."""
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work) for _ in range(COUNT)]:
            done.result()


def main() -> None:
    """Measure and print the table."""
    cases = {
        f"{int(width) * 4:,} bytes a tensor, {title}": (kind, width)
        for kind, title in (("one", "one thread"), ("threads", f"{THREADS} threads"))
        for width in ("16", "1024")
    }
    show(
        "20 alternating partitions, against the same cut through onnxruntime (bar of "
        "the ratio: 1.0)",
        measure(__file__, cases),
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    else:
        main()
