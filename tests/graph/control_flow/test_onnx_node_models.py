"""The ONNX project's own cases for If, Loop and Scan, with an EP that takes whatever it
can in their bodies.
"""

from __future__ import annotations

import importlib
import pkgutil

import numpy as np
import pytest
from onnx.backend.test.case import node as node_cases
from support.agreement_of_routes import (
    CONTROL_FLOW,
    Everything,
    assert_same,
    graphs_of,
    registry_of,
)
from support.small_models import saved

import epctx_core as epctx


def control_flow_cases():
    """Return the cases whose models hold control flow, by name; the module of If has
    had two names.
    """
    for module in pkgutil.iter_modules(node_cases.__path__):
        if module.name in {"if", "if_", "loop", "scan", "range"}:
            importlib.import_module(f"{node_cases.__name__}.{module.name}")
    cases = {case.name: case for case in node_cases._NodeTestCases}  # noqa: SLF001 - collect_testcases() imports and makes every case
    return {
        name: case
        for name, case in sorted(cases.items())
        if any(node.op_type in CONTROL_FLOW for node in case.model.graph.node)
    }


CASES = control_flow_cases()


def test_there_are_cases_of_each_operator():
    operators = {
        node.op_type for case in CASES.values() for node in case.model.graph.node
    }

    assert operators >= CONTROL_FLOW


@pytest.mark.parametrize("name", CASES)
def test_the_case_gives_what_it_says_compiled_and_loaded(tmp_path, name):
    model, (inputs, expected) = CASES[name].model, CASES[name].data_sets[0]
    source = saved(model, tmp_path / "m.onnx")
    feeds = dict(zip((value.name for value in model.graph.input), inputs, strict=True))
    registry, options = registry_of(Everything)

    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    for path, given in ((source, options), (report.output, None)):
        with epctx.InferenceSession(path, given, registry=registry) as session:
            results = session.run(None, feeds)
        assert_same(
            [np.asarray(r) if isinstance(r, np.ndarray) else r for r in results],
            list(expected),
        )

    left = {node.op_type for graph in graphs_of(report.output) for node in graph.node}
    assert left & CONTROL_FLOW
    # Scan-8 is not executed by sessions, and stays whole.
    assert report.partitions or model.opset_import[0].version < 9
