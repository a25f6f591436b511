"""EPs that a session imports for an EPContext node, and those that it leaves alone."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.acme import Acme, X, compiled, model_of, with_eps
from support.engine_eps import Alpha
from support.installed import install_distribution

import epctx_core as epctx
from epctx_core import Registry

PLUGIN = """
from __future__ import annotations
from epctx_core.plugin import CompiledPartition, ExecutionProvider, hookimpl

class Provider(ExecutionProvider):
    name = "SpyExecutionProvider"

    @classmethod
    def accepts_source(cls, source):
        return source.lower() == cls.name.lower()

    @hookimpl
    def get_capability(self, graph):
        return []

    @hookimpl
    def compile(self, partitions):
        return []

    @hookimpl
    def load_context(self, nodes, reader):
        return [CompiledPartition(lambda inputs, _: [inputs[0] + 0]) for _ in nodes]
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a distribution with the spy EP as pip would leave it, without pip."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def install(distribution):
        module = distribution.replace("-", "_")
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(PLUGIN)
        entries = {"SpyExecutionProvider": f"{module}:Provider"}
        install_distribution(
            tmp_path, distribution, {"epctx.execution_providers": entries}
        )

    yield install
    for module in modules:
        sys.modules.pop(module, None)


def context_model(source, *, maker=None):
    """Return a model of one embedded EPContext node."""
    node = helper.make_node(
        "EPContext", ["x"], ["y"], name="c", domain="com.microsoft",
        embed_mode=1, main_context=1, ep_cache_context=b"payload", source=source,
    )  # fmt: skip
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    if maker is not None:
        providers = {
            source: {
                "distribution": maker,
                "version": "1.0",
                "plugin_api": 1,
                "options": "",
            }
        }
        manifest = {
            "version": 1,
            "source_model": "0" * 64,
            "providers": providers,
            "payloads": [],
        }
        model.metadata_props.add(key="epctx.manifest", value=json.dumps(manifest))
    return model.SerializeToString()


def test_an_explicit_list_never_imports_another_plugin_not_even_to_word_the_error(
    install,
):
    install("spy-first")

    with pytest.raises(
        epctx.NotImplementedByProvider, match="No EP of this session accepts the source"
    ):
        epctx.InferenceSession(
            context_model("SPYexecutionprovider"),
            providers=["CPUExecutionProvider"],
            registry=Registry(),
        )

    assert "spy_first" not in sys.modules


def test_a_source_that_nothing_installed_takes_is_no_matter_of_the_hosts_list():
    with pytest.raises(
        epctx.NotImplementedByProvider, match="No installed plugin"
    ) as caught:
        epctx.InferenceSession(
            context_model("NobodysExecutionProvider"),
            providers=["CPUExecutionProvider"],
            registry=Registry(),
        )

    assert "this session" not in str(caught.value)


@pytest.mark.not_for_onnxruntime("acme's operators are left in it")
def test_an_ep_whose_kernels_ran_nodes_when_a_model_was_compiled_is_found_for_its_load(
    tmp_path,
):
    model = model_of("v = Relu(x)  y = acme.Scale(v)", inner="float[2] v")
    written = compiled(model, tmp_path, Alpha, Acme)
    registry, _ = with_eps(Alpha, Acme)

    with epctx.InferenceSession(written, registry=registry) as session:
        assert session.get_providers() == [
            Alpha.name,
            Acme.name,
            "CPUExecutionProvider",
        ]
        np.testing.assert_array_equal(
            session.run(None, {"x": X})[0], 2 * np.maximum(X, 0)
        )


def test_two_distributions_of_one_ep_are_an_error_where_nothing_says_which(install):
    install("spy-first")
    install("spy-second")

    with pytest.raises(epctx.PluginError, match=r"spy-first 1\.0 and spy-second 1\.0"):
        epctx.InferenceSession(
            context_model("SpyExecutionProvider"), registry=Registry()
        )


def test_of_two_distributions_the_one_that_made_the_context_loads_it(install):
    install("spy-first")
    install("spy-second")
    model = context_model("SpyExecutionProvider", maker="spy-second")
    (shown,) = epctx.inspect_model(model, registry=Registry()).ep_contexts
    assert shown.plugin == {
        "ep": "SpyExecutionProvider", "distribution": "spy-second", "version": "1.0",
        "state": "discovered", "simulated": None,
    }  # fmt: skip
    assert "spy_second" not in sys.modules

    with epctx.InferenceSession(model, registry=Registry()) as session:
        assert session.get_providers()[0] == "SpyExecutionProvider"

    assert "spy_second" in sys.modules
    assert "spy_first" not in sys.modules
