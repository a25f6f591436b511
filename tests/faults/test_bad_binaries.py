"""Binaries of others, bytes that changed, sources that nobody takes: one typed error
each.
"""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
from support.folders import REAL
from support.install_commands import pip_install
from support.installed import install_distribution
from support.routes import (
    QNN,
    only_node,
    refused,
    set_attribute,
)
from support.small_models import SHAPE, example, saved

import epctx_core as epctx
from epctx_core import (
    EpctxError,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NotImplementedByProvider,
    PluginError,
)

pytestmark = pytest.mark.usefixtures("no_temporary_files")


# --- binaries -------------------------------------------------------------------------


def test_a_context_model_given_as_bytes_without_its_folder(pair):
    with refused(InvalidArgument, "m_qnn.bin", folder=pair.folder):
        epctx.InferenceSession(pair.model.read_bytes())


@pytest.mark.parametrize("file", ["qnn_ctx0.onnx", "qnn_ctx1.onnx"])
def test_a_payload_made_by_a_vendors_own_compiler_is_named_and_refused(file, tmp_path):
    folder = shutil.copytree(REAL, tmp_path / "real")

    with refused(InvalidGraph, "real QNN SDK", folder=folder, ep=QNN) as caught:
        epctx.InferenceSession(folder / file)

    assert "simulated" in str(caught.value)
    assert caught.value.node


# --- bytes that changed on their way --------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_context_model_with_changed_bytes_loads_or_is_refused(pair, seed):
    generator, good = np.random.default_rng(seed), pair.model.read_bytes()
    refusals = set()

    for _ in range(100):
        bad = bytearray(good)
        for place in generator.integers(0, len(good), generator.integers(1, 4)):
            bad[place] = generator.integers(0, 256)
        pair.model.write_bytes(bad)
        for use in (epctx.InferenceSession, epctx.inspect_model):
            try:
                use(pair.model)
            except EpctxError as error:
                refusals.add(type(error))

    assert {InvalidGraph, InvalidProtobuf} <= refusals
    expected = (
        InvalidGraph,
        InvalidProtobuf,
        InvalidArgument,
        NotImplementedByProvider,
    )
    assert all(issubclass(refusal, expected) for refusal in refusals)


@pytest.mark.parametrize(
    ("key", "match"),
    [
        ("epctx.manifest", "epctx.manifest"),
        (f"ep_compatibility_info.{QNN}", f"{QNN}.*compatibility.*damaged"),
    ],
)
def test_metadata_that_is_no_text(pair, key, match):
    content = pair.model.read_bytes()
    place = content.index(key.encode()) + len(key) + 8
    pair.model.write_bytes(content[:place] + b"\xff" + content[place + 1 :])

    with refused(InvalidGraph, match, folder=pair.folder):
        epctx.InferenceSession(pair.model)


@pytest.mark.parametrize("use", [epctx.InferenceSession, epctx.inspect_model])
def test_an_element_type_that_onnx_does_not_have(pair, use):
    model, _ = only_node(pair.model)
    model.graph.input[0].type.tensor_type.elem_type = 93
    saved(model, pair.model)

    with pytest.raises(InvalidGraph, match="93"):
        use(pair.model)


# --- sources and plugins --------------------------------------------------------------


def test_an_unknown_source_says_which_sources_are_installed(pair):
    node = set_attribute(pair.model, "source", "NoSuchNPU")

    with refused(
        NotImplementedByProvider,
        "Installed: .*QNN",
        folder=pair.folder,
        node=node,
    ):
        epctx.InferenceSession(pair.model)


def test_a_source_that_is_not_installed_says_which_package_would_bring_it(pair):
    bare = epctx.Registry(entry_points=False)

    with refused(
        NotImplementedByProvider, "No installed plugin accepts.*Installed: none"
    ) as caught:
        epctx.InferenceSession(pair.model, registry=bare)

    assert pip_install("epctx-sim-qnn") in caught.value.hint


def test_a_node_without_a_source_is_nobodys(pair):
    node = set_attribute(pair.model, "source", "")

    with refused(NotImplementedByProvider, "no source", node=node):
        epctx.InferenceSession(pair.model)


@pytest.mark.entry(60)
def test_an_explicit_list_of_providers_is_exhaustive(pair):
    with refused(NotImplementedByProvider, QNN, folder=pair.folder) as caught:
        epctx.InferenceSession(pair.model, providers=["CPUExecutionProvider"])

    assert "providers" in str(caught.value)


@pytest.fixture
def broken_plugin(tmp_path, monkeypatch):
    """A plugin as pip installs it, whose import fails."""
    site = tmp_path / "site"
    entries = {
        "epctx.execution_providers": {
            "BrokenExecutionProvider": "epctx_broken_npu:Provider"
        },
        "epctx.ep_sources": {"BrokenNPU": "epctx_broken_npu:Provider"},
    }
    install_distribution(site, "epctx-broken-npu", entries, version="2.1")
    (site / "epctx_broken_npu.py").write_text(
        "raise ImportError('libnpu.so.4: cannot open shared object')\n"
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    yield epctx.Registry()
    sys.modules.pop("epctx_broken_npu", None)


@pytest.mark.parametrize(
    "spelling", ["BrokenExecutionProvider", "BrokenNPU", "brokennpu"]
)
def test_a_source_whose_plugin_is_broken_says_so_and_why(pair, broken_plugin, spelling):
    set_attribute(pair.model, "source", spelling)

    with pytest.raises(
        (PluginError, NotImplementedByProvider), match=r"epctx-broken-npu 2\.1"
    ) as caught:
        epctx.InferenceSession(pair.model, registry=broken_plugin)

    assert "libnpu.so.4" in str(caught.value)
    assert caught.value.hint


def test_a_broken_plugin_harms_nobody_else(pair, broken_plugin):
    with refused(PluginError, "libnpu.so.4", ep="BrokenExecutionProvider") as caught:
        epctx.InferenceSession(pair.model, providers=["Broken"], registry=broken_plugin)
    assert (caught.value.distribution, caught.value.version) == (
        "epctx-broken-npu",
        "2.1",
    )

    with epctx.InferenceSession(pair.model, registry=broken_plugin) as session:
        assert session.run(None, {"x": example()})[0].shape == SHAPE


def test_an_ep_that_nobody_installed(source):
    options = epctx.SessionOptions()
    options.add_provider("QNM")

    with refused(InvalidArgument, "'QNM'.* Did you mean 'QNN'", folder=source.parent):
        epctx.ModelCompiler(options, source).compile_to_file()
