"""Plugins for API 1 go on working, and the promises of API 1 hold."""

from __future__ import annotations

import ast
import hashlib

import numpy as np
import onnx
import pytest
from contract import public_api
from data.frozen_api_1.frozen_ep import FrozenProvider
from onnx import helper, numpy_helper
from support.folders import TESTS
from support.small_models import finished, saved, tensor

import epctx_core as epctx
from epctx_core import plugin
from epctx_core.plugin import PLUGIN_API, Purpose
from epctx_core.plugin.hookspecs import HookSpecs

pytestmark = pytest.mark.internal

FROZEN = TESTS / "data/frozen_api_1"
DIGEST = "493d506b47ab73882a2b2f3ed817c4e6353465d70b5f7628d5dcf1c2ddbc4ccf"
NAME, SIZE = FrozenProvider.name, 20
CLASS_METHODS = (
    "accepts_source",
    "availability",
    "get_compatibility_info",
    "validate_compatibility",
    "verify_payloads",
)
X = np.random.default_rng(3).standard_normal((4, SIZE), dtype=np.float32)


def model(rows=4):
    """Return a network of two partitions with a kept node between them, and one
    node for the CPU EP.
    """
    weights = [
        numpy_helper.from_array(
            np.random.default_rng(i).standard_normal((SIZE, SIZE), dtype=np.float32),
            f"w{i}",
        )
        for i in range(2)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Neg", ["a"], ["b"], name="negate"),
        helper.make_node("MatMul", ["b", "w1"], ["c"], name="second"),
        helper.make_node("Relu", ["c"], ["d"], name="clip"),
        helper.make_node("Tanh", ["d"], ["y"], name="bound"),
    ]
    shape = (rows, SIZE)
    return finished(
        nodes, [tensor("x", shape=shape)], [tensor("y", shape=shape)], weights
    )


@pytest.fixture
def registry():
    result = epctx.Registry(entry_points=False)
    result.register(FrozenProvider)
    return result


@pytest.fixture
def seen(monkeypatch):
    monkeypatch.setattr(FrozenProvider, "seen", [])
    return FrozenProvider.seen


@pytest.fixture
def source(tmp_path):
    return saved(model(), tmp_path / "m.onnx")


@pytest.fixture
def expected(source):
    with epctx.InferenceSession(source) as session:
        return session.run(None, {"x": X})[0]


def options(level=2, **entries):
    result = epctx.SessionOptions()
    result.add_provider(NAME, {"level": str(level)})
    for key, value in entries.items():
        result.add_session_config_entry(key.replace("__", "."), str(value))
    return result


def run(path, registry, session_options=None):
    with epctx.InferenceSession(
        path, session_options or options(), registry=registry
    ) as session:
        assert session.get_providers()[0] == NAME
        return session.run(None, {"x": X})[0]


def test_the_frozen_plugin_was_not_edited():
    text = (FROZEN / "frozen_ep.py").read_bytes()

    assert hashlib.sha256(text).hexdigest() == DIGEST, (
        "frozen_ep.py is never edited: see README.md"
    )


def test_the_frozen_plugin_uses_every_name_and_every_hook_of_its_day():
    tree = ast.parse((FROZEN / "frozen_ep.py").read_text("utf-8"))
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "epctx_core.plugin"
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    methods = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    }

    assert imported <= used
    assert len(imported) == 37
    assert imported <= set(plugin.__all__)
    assert {
        "get_capability",
        "compile",
        "load_context",
        "allocate",
        "shutdown",
        *CLASS_METHODS,
    } <= methods


def test_the_plugin_api_still_takes_plugins_of_version_1():
    assert FrozenProvider.api_version == 1 <= PLUGIN_API


@pytest.mark.parametrize("embedded", [False, True], ids=["file", "embedded"])
def test_the_frozen_plugin_compiles_loads_and_runs(
    source, registry, expected, embedded, seen
):
    report = epctx.ModelCompiler(
        options(), source, embedded, registry=registry
    ).compile_to_file()

    result = run(report.output, registry)

    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert [file.path for file in report.outputs] == (
        ["m_ctx.onnx"] if embedded else ["m_frozen.bin", "m_ctx.onnx"]
    )
    assert [partition.node_names for partition in report.partitions] == [
        ("first",),
        ("second", "clip"),
    ]


def test_every_hook_and_class_method_of_the_frozen_plugin_is_called(
    source, registry, seen
):
    path = (
        epctx.ModelCompiler(
            options(), source, registry=registry, graph_optimization_level=1
        )
        .compile_to_file()
        .output
    )
    epctx.verify_model(path, registry=registry)
    changed = onnx.load(path)
    for node in changed.graph.node:
        for attribute in node.attribute:
            if attribute.name == "source":
                attribute.s = NAME.lower().encode()
    onnx.save(changed, path.with_name("lower.onnx"))
    epctx.InferenceSession(path.with_name("lower.onnx"), registry=registry).close()
    with epctx.InferenceSession(source, options(), registry=registry) as session:
        session.set_ep_dynamic_options({"ep.dynamic.mode": "b"})
        session.run(None, {"x": X}, epctx.RunOptions())

    called = {each.partition(" ")[0] for each in seen}
    hooks = {name for name in vars(HookSpecs) if not name.startswith("_")}
    assert hooks - called <= NOT_IN_API_1
    assert set(CLASS_METHODS) <= called
    assert seen.count("shutdown") == 3


NOT_IN_API_1: frozenset[str] = frozenset()
"""Hooks that came later; the frozen plugin knows nothing of them."""


def test_the_frozen_plugin_runs_the_node_that_it_keeps(
    source, registry, expected, monkeypatch
):
    session_options = options(session__record_ep_graph_assignment_info=1)

    with epctx.InferenceSession(source, session_options, registry=registry) as session:
        (result,) = session.run(None, {"x": X})
        info = session.get_provider_graph_assignment_info()

    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert "negate" in {
        node.name for part in info if part.ep_name == NAME for node in part.get_nodes()
    }


def test_the_frozen_plugin_takes_part_in_a_share_group(tmp_path, registry):
    for name, rows, stop in (("a", 4, 0), ("b", 1, 1)):
        saved(model(rows), tmp_path / f"{name}.onnx")
        group = options(ep__share_ep_contexts=1, ep__stop_share_ep_contexts=stop)
        epctx.ModelCompiler(
            group, tmp_path / f"{name}.onnx", registry=registry
        ).compile_to_file()

    for name, x in (("a", X), ("b", X[:1])):
        sharing = options(ep__share_ep_contexts=1)
        with epctx.InferenceSession(
            tmp_path / f"{name}_ctx.onnx", sharing, registry=registry
        ) as session:
            (result,) = session.run(None, {"x": x})
        with epctx.InferenceSession(tmp_path / f"{name}.onnx") as plain:
            np.testing.assert_allclose(
                result, plain.run(None, {"x": x})[0], rtol=1e-5, atol=1e-6
            )
    assert [path.name for path in tmp_path.glob("*.bin")] == ["a_frozen.bin"]


def test_the_frozen_plugin_leaves_weights_in_the_source(source, registry, expected):
    weightless = options(ep__enable_weightless_mode=2)
    path = (
        epctx.ModelCompiler(weightless, source, registry=registry)
        .compile_to_file()
        .output
    )
    size = path.with_name("m_frozen.bin").stat().st_size

    assert size < 2 * SIZE * SIZE * 4
    np.testing.assert_allclose(run(path, registry), expected, rtol=1e-5, atol=1e-6)


def test_what_the_frozen_plugin_says_of_its_payloads_is_heard(source, registry):
    path = (
        epctx.ModelCompiler(options(), source, registry=registry)
        .compile_to_file()
        .output
    )
    good = epctx.verify_model(path, registry=registry)
    changed = onnx.load(path)
    del changed.metadata_props[:]
    onnx.save(changed, path)
    binary = path.with_name("m_frozen.bin")
    binary.write_bytes(b"X" + binary.read_bytes()[1:])

    bad = epctx.verify_model(path, registry=registry)

    assert good.ok
    assert "container-refused" in {finding.code for finding in bad.findings}


def test_the_frozen_plugins_verdicts_count(source, registry):
    path = (
        epctx.ModelCompiler(options(level=1), source, registry=registry)
        .compile_to_file()
        .output
    )

    same = epctx.get_model_compatibility(path, NAME, {"level": "1"}, registry=registry)
    other = epctx.get_model_compatibility(path, NAME, {"level": "2"}, registry=registry)

    assert (same.name, other.name) == (
        "EP_SUPPORTED_OPTIMAL",
        "EP_SUPPORTED_PREFER_RECOMPILATION",
    )


def test_the_frozen_plugin_says_where_it_is_not_available(
    source, registry, monkeypatch
):
    monkeypatch.setattr(FrozenProvider, "lacks", Purpose.RUN)

    with pytest.raises(epctx.NotImplementedByProvider, match="frozen out") as caught:
        epctx.InferenceSession(source, options(), registry=registry)

    assert caught.value.hint == "Wait for spring."


def test_no_public_name_or_signature_of_the_contract_goes_or_changes():
    kept = (FROZEN / "public_api.txt").read_text("utf-8").splitlines()

    gone = sorted(set(kept) - set(public_api.lines()))

    assert gone == [], (
        "this breaks plugins: it takes a new PLUGIN_API; see stability.md"
    )


def test_what_is_added_to_the_contract_is_written_down():
    kept = (FROZEN / "public_api.txt").read_text("utf-8").splitlines()

    new = [line for line in public_api.lines() if line not in kept]

    assert new == [], "add these lines: python tests/contract/public_api.py"
