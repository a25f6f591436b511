"""One model on all ways: as it is, with EPs, compiled to files and moved, compiled into
one file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.parser
from support.engine_eps import Alpha, EngineProvider
from support.onnxruntime_results import onnxruntime_result, onnxruntime_says
from support.small_models import saved

import epctx_core as epctx
from epctx_core.plugin import hookimpl, supported_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


class Everything(EngineProvider):
    """Takes every node of the default domain that is no control flow."""

    name = "EverythingExecutionProvider"
    binary_suffix = "everything"

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(
            graph, lambda n: not n.domain and n.op_type not in CONTROL_FLOW
        )


def model_of(text: str) -> onnx.ModelProto:
    """Return a model written in ONNX's text form, without its header."""
    return onnx.parser.parse_model(HEADER + text)


def registry_of(*eps):
    registry, options = epctx.Registry(entry_points=False), epctx.SessionOptions()
    # Bodies of ONNX's cases hold a Constant or an Identity alone.
    options.add_session_config_entry("ep.partition_without_computation", "keep")
    for ep in eps:
        registry.register(ep)
        options.add_provider(ep.name)
    return registry, options


def compiled(model, path: Path, *eps, embedded=False):
    """Write a model and compile it beside; return the report."""
    registry, options = registry_of(*eps or (Alpha,))
    return epctx.ModelCompiler(
        options, saved(model, path), embedded, registry=registry
    ).compile_to_file()


def loaded(path, *eps):
    registry, _ = registry_of(*eps or (Alpha,))
    return epctx.InferenceSession(path, registry=registry)


def results_of_all_ways(
    model: onnx.ModelProto,
    feeds: Sequence[Mapping[str, np.ndarray]],
    folder: Path,
    eps: Sequence[type],
) -> tuple[epctx.CompileReport, dict[str, list[list[np.ndarray]]]]:
    """Return the report, and for each way the outputs for each of the feeds."""
    registry, options = registry_of(*eps)
    here, far = folder / "here", folder / "far"
    here.mkdir()
    source = saved(model, here / "m.onnx")
    results = {"onnxruntime": [onnxruntime_result(source, feed) for feed in feeds]}

    def run(way, path, options=None):
        with epctx.InferenceSession(path, options, registry=registry) as session:
            results[way] = [session.run(None, feed) for feed in feeds]

    run("plain", source)
    run("with EPs", source, options)
    report = epctx.ModelCompiler(options, source, registry=registry).compile_to_file()
    one = epctx.ModelCompiler(options, source, True, registry=registry).compile_to_file(
        here / "one_ctx.onnx"
    )
    source.unlink()
    here.rename(far)
    for written in (far / report.output.name, far / one.output.name):
        onnx.checker.check_model(onnx.load(written))
        if report.partitions:
            assert "is not compatible with any execution provider" in onnxruntime_says(
                written
            )
        run(written.name, written)
    return report, results


def assert_same(results: Sequence[object], expected: Sequence[object]) -> None:
    """Compare outputs: arrays, and sequences of arrays, exactly."""
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        if isinstance(other, list):
            assert isinstance(one, list)
            assert_same(one, other)
        elif other is None:
            assert one is None
        else:
            np.testing.assert_array_equal(one, other, strict=True)


def agreeing(model, feeds, folder, eps=(Alpha,)):
    """Assert that all ways give what onnxruntime gives for the source; return the
    report.
    """
    report, results = results_of_all_ways(model, feeds, folder, eps)
    expected = results.pop("onnxruntime")
    for way, found in results.items():
        for one, other in zip(found, expected, strict=True):
            try:
                assert_same(one, other)
            except AssertionError as error:
                raise AssertionError(f"{way} differs: {error}") from error
    return report


def graphs_of(path_or_model):
    """Return all graphs of a model, the main one first."""
    model = (
        path_or_model
        if isinstance(path_or_model, onnx.ModelProto)
        else onnx.load(path_or_model)
    )

    def walk(graph):
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    yield from walk(attribute.g)

    return list(walk(model.graph))


def context_nodes_of(graph):
    return [node for node in graph.node if node.op_type == "EPContext"]
