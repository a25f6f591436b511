"""Report pages of large models: time and memory beside those of the explanation that
they show, and the size of the page.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness import DATA, measure, peak_memory, report, seconds, show

if TYPE_CHECKING:
    from pathlib import Path

    from epctx_core import SessionOptions

RUNS = 3
NODES = 100_000
EPS = ("OpenVINO",)


def path_of(shape: str) -> Path:
    """Return the path of a model."""
    return DATA / f"report_{shape}.onnx"


def make_model(shape: str) -> None:
    """Write a model of so many nodes: a chain of which the EP takes all (`one`) or
    every other node (`alternating`), or one of random operators and shortcuts
    (`mixed`).
    """
    from onnx import TensorProto, helper, save

    chosen = random.Random(0)  # noqa: S311 - a model, no secret
    operators = {
        "one": ("Relu", "Tanh"),
        "alternating": ("Relu", "Hardmax"),
        "mixed": ("Relu", "Tanh", "Add", "Mul", "Add", "Hardmax"),
    }[shape]
    names = ["x"]
    nodes = []
    for number in range(NODES):
        operator = operators[number % len(operators)]
        if shape == "mixed":
            operator = chosen.choice(operators)
        inputs = names[-1:]
        if operator in ("Add", "Mul"):
            inputs = [names[-1], chosen.choice(names[-40:])]
        names.append(
            "y" if number == NODES - 1 else f"/model/layer.{number}/act/Output_0"
        )
        name = f"/model/layer.{number}/act"
        nodes.append(helper.make_node(operator, inputs, names[-1:], name=name))
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4])
        for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "chain", values[:1], values[1:])
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]),
        path_of(shape),
    )


def with_eps() -> SessionOptions:
    """Return session options with the EPs."""
    from epctx_core import SessionOptions

    options = SessionOptions()
    for ep in EPS:
        options.add_provider(ep)
    return options


def measure_page(shape: str) -> None:
    """One page of a model, after its explanation."""
    from epctx_report import make_report

    from epctx_core import explain_model

    options = with_eps()
    explained: list[object] = []
    explaining = seconds(
        lambda: explained.append(explain_model(path_of(shape), options))
    )
    before = peak_memory()
    pages: list[str] = []
    s = seconds(
        lambda: pages.append(
            make_report(
                path_of(shape),
                sess_options=options,
                explanation=explained[0],  # type: ignore[arg-type]
            ).html()
        )
    )
    report(
        explaining_s=explaining,
        s=s,
        beyond_bytes=peak_memory() - before,
        page_bytes=len(pages[0]),
    )


CHILDREN: dict[str, Callable[..., None]] = {"page": measure_page}


def main() -> None:
    """Print the table."""
    DATA.mkdir(exist_ok=True)
    for shape in ("one", "alternating", "mixed"):
        make_model(shape)
    measurement = measure(
        __file__,
        {
            "one partition": ("page", "one"),
            "50,000 partitions": ("page", "alternating"),
            "random operators": ("page", "mixed"),
        },
        runs=RUNS,
    )
    show(f"pages of {NODES:,} nodes", measurement)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        CHILDREN[sys.argv[1]](*sys.argv[2:])
    else:
        main()
