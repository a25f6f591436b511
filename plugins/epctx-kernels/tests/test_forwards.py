"""What the core had of kernels before they were a package says what to use."""

from __future__ import annotations

import sys

import epctx_kernels
import pytest
from support.acme import X, kernel_ep, model_of, session_of
from support.engine_eps import Alpha
from support.install_commands import pip_install

import epctx_core as epctx
from epctx_core import plugin
from epctx_core.errors import PackageMissing
from epctx_core.plugin import hookimpl

NAMES = ("Kernel", "KernelDef", "KernelLookup", "KernelRegistry", "OperatorTypes")


@pytest.mark.parametrize("name", NAMES)
def test_the_contract_has_the_names_of_the_package(name):
    assert getattr(plugin, name) is getattr(epctx_kernels, name)


@pytest.mark.parametrize("name", NAMES)
def test_without_the_package_its_names_say_what_to_install(monkeypatch, name):
    monkeypatch.delitem(vars(plugin), name, raising=False)
    monkeypatch.setitem(sys.modules, "epctx_kernels", None)

    with pytest.raises(
        PackageMissing, match=f"plugin.{name} needs the package epctx-kernels"
    ) as caught:
        getattr(plugin, name)

    assert caught.value.hint == pip_install("epctx-kernels")


def test_an_ep_with_the_former_hook_is_told_what_to_derive_it_from():
    class Former(Alpha):
        name = "FormerExecutionProvider"

        @hookimpl
        def get_kernel_registry(self):
            return None

    with pytest.raises(epctx.PluginError, match="no hook 'get_kernel_regis") as caught:
        epctx.Registry(entry_points=False).register(Former)

    assert "epctx_kernels.KernelProvider" in str(caught.value)


def test_a_model_with_nodes_of_an_ep_that_only_has_kernels_is_refused():
    provider = epctx_kernels.KernelProvider.__new__(epctx_kernels.KernelProvider)
    provider.name = "AcmeExecutionProvider"

    with pytest.raises(epctx.InvalidGraph, match="loads no EPContext node"):
        provider.load_context([type("Node", (), {"name": "first"})])


def test_a_kernel_that_leaves_out_an_output_that_nobody_reads_is_told():
    two = epctx_kernels.KernelDef(
        domain="acme",
        op_type="Two",
        since_version=1,
        create=lambda _node: lambda inputs: [-inputs[0]],
    )
    model = model_of("[two] y, unread = acme.Two(x)")

    with (
        session_of(model, kernel_ep(two)) as session,
        pytest.raises(
            epctx.PluginError, match="gave 1 results for 2 outputs"
        ) as caught,
    ):
        session.run(None, {"x": X})

    assert caught.value.node == "two"
