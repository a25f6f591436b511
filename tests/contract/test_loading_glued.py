"""Two context models of two partitions each, glued into one: every installed EP finds
each node's payload.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from contract.two_partitions import SCALE, SHAPE, network
from onnx import helper
from support.validating_eps import options_with

import epctx_core as epctx

EPS = epctx.get_available_providers()[:-1]

every_ep = pytest.mark.parametrize("ep", EPS)
modes = pytest.mark.parametrize("embed", [False, True], ids=["file", "embedded"])


def example():
    return np.random.default_rng(9).standard_normal(SHAPE, dtype=np.float32)


def run(model, name, x, **arguments):
    with epctx.InferenceSession(model, **arguments) as session:
        return session.run(None, {name: x})[0]


def options(ep, **entries):
    found = options_with(**entries)
    found.add_provider(ep)
    return found


@pytest.fixture
def parts(tmp_path):
    """Compile two networks with an EP; return their sources and context models."""

    def parts(ep, *, embed):
        found = []
        for number in (0, 1):
            source, path = (
                tmp_path / f"m{number}.onnx",
                tmp_path / f"m{number}_ctx.onnx",
            )
            onnx.save(network(number), source)
            chosen = options(ep, ep__context_node_name_prefix=f"p{number}_")
            report = epctx.ModelCompiler(chosen, source, embed).compile_to_file(path)
            assert len(report.partitions) == 2
            found.append((source, path))
        return found

    return parts


def glued(parts, folder, *, metadata=False):
    """Return the path of one model behind the other."""
    models = []
    for number, (_, path) in enumerate(parts):
        model = onnx.load(path)
        if not metadata or number:
            del model.metadata_props[:]
        for node in model.graph.node:
            if node.op_type != "EPContext":
                node.name = f"m{number}_{node.name}"
        models.append(onnx.compose.add_prefix(model, f"m{number}_", rename_nodes=False))
    one, other = models
    joined = onnx.compose.merge_models(
        one, other, io_map=[(one.graph.output[0].name, "m1_x")]
    )
    onnx.save(joined, folder / "glued_ctx.onnx")
    return folder / "glued_ctx.onnx"


def primaries(path):
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "EPContext"]
    return [helper.get_node_attr_value(node, "main_context") for node in nodes]


def expected(parts):
    (first, _), (second, _) = parts
    between = run(first, "x", example(), providers=["CPUExecutionProvider"])
    return run(second, "x", between, providers=["CPUExecutionProvider"])


def test_there_are_eps_to_glue():
    assert {
        "QNNExecutionProvider",
        "OpenVINOExecutionProvider",
        "VitisAIExecutionProvider",
    } <= set(EPS)


@every_ep
@modes
@pytest.mark.parametrize(
    "metadata", [False, True], ids=["bare", "with the manifest of one"]
)
def test_two_models_of_two_partitions_each_run_as_one(
    parts, tmp_path, ep, embed, metadata
):
    made = parts(ep, embed=embed)
    path = glued(made, tmp_path, metadata=metadata)

    assert len(primaries(path)) == 4
    assert sum(primaries(path)) >= 2
    assert np.allclose(run(path, "m0_x", example()), expected(made), atol=SCALE)


@every_ep
@modes
def test_what_was_glued_passes_through_another_compile(parts, tmp_path, ep, embed):
    made = parts(ep, embed=embed)
    path = glued(made, tmp_path)
    (tmp_path / "out").mkdir()

    moved = epctx.ModelCompiler(options_with(), path, not embed).compile_to_file(
        tmp_path / "out" / "n_ctx.onnx"
    )

    assert moved.partitions == ()
    assert len(primaries(moved.output)) == 4
    assert np.allclose(run(moved.output, "m0_x", example()), expected(made), atol=SCALE)


@every_ep
def test_an_ep_may_compile_the_rest_of_its_own_model(tmp_path, ep):
    source = tmp_path / "m.onnx"
    onnx.save(network(0), source)
    path = tmp_path / "m_ctx.onnx"
    epctx.ModelCompiler(options(ep, ep__partition_max_count=1), source).compile_to_file(
        path
    )

    report = epctx.ModelCompiler(options(ep), path).compile_to_file(
        tmp_path / "n_ctx.onnx"
    )

    assert [len(primaries(path)), len(primaries(report.output))] == [1, 2]
    by_session = tmp_path / "s_ctx.onnx"
    chosen = options(ep, ep__context_enable=1, ep__context_file_path=by_session)
    wanted = run(source, "x", example(), providers=["CPUExecutionProvider"])
    assert np.allclose(
        run(path, "x", example(), sess_options=chosen), wanted, atol=SCALE
    )
    for model in (report.output, by_session):
        assert np.allclose(run(model, "x", example()), wanted, atol=SCALE)
