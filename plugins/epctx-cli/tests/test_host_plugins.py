"""`--host-plugin` of the commands that make sessions or compile."""

from __future__ import annotations

import pytest
from support.installed import install_distribution

from epctx_core import SessionOptions

PACKAGE = """
import sys
from epctx_core.plugin import hookimpl
from epctx_core.errors import Fail

class Wraps:
    @hookimpl(wrapper=True)
    def get_capability(self, ep):
        sys.stderr.write(f"{type(self).__name__} before {ep}\\n")
        result = yield
        sys.stderr.write(f"{type(self).__name__} after\\n")
        return result

class First(Wraps):
    pass

class Second(Wraps):
    pass

class Refuses:
    @hookimpl(wrapper=True)
    def get_capability(self, ep):
        raise Fail(f"{ep} is not for us.")
        yield
"""


@pytest.fixture
def package(tmp_path):
    """A folder with a package of three host plugins."""
    folder = tmp_path / "site"
    names = {
        name.lower(): f"acme_hosts:{name}" for name in ("First", "Second", "Refuses")
    }
    install_distribution(folder, "acme-hosts", {"epctx.host_plugins": names})
    (folder / "acme_hosts.py").write_text(PACKAGE)
    return folder


@pytest.mark.parametrize(
    ("command", "hooks"),
    [
        ("compile", ("get_capability", "compile", "get_ep_context_nodes")),
        ("share", ("get_capability", "compile", "get_ep_context_nodes")),
        ("explain", ("get_capability",)),
        ("run", ("get_capability", "compile")),
        ("compare", ("get_capability", "compile")),
    ],
)
def test_each_command_that_calls_eps_has_their_hooks_wrapped(
    epctx, model, command, hooks
):
    path = model("y = Relu(x)")
    more = [model("y = Abs(x)", "other.onnx")] if command == "share" else []
    if command == "compare":
        more = [path]

    plain = epctx(command, path, *more, "--ep", "OpenVINO")
    traced = epctx(command, path, *more, "--ep", "OpenVINO", "--host-plugin", "trace")

    assert plain.code == traced.code == 0, traced.err
    assert "epctx.trace" not in plain.err
    for hook in hooks:
        assert f"epctx.trace: OpenVINOExecutionProvider.{hook}(" in traced.err


@pytest.mark.parametrize("command", ["verify", "run"])
def test_loads_of_a_context_model_are_wrapped(epctx, compiled, command):
    said = epctx(command, compiled, "--host-plugin", "trace")

    assert said.code == 0
    assert "epctx.trace: QNNExecutionProvider.load_context(" in said.err


def test_the_first_of_several_is_the_outermost(epctx, model, package):
    said = epctx(
        "explain", model("y = Relu(x)"), "--ep", "OpenVINO",
        "--host-plugin", "first", "--host-plugin", "acme-hosts:second", path=[package],
    )  # fmt: skip

    assert said.code == 0
    assert said.err.splitlines() == [
        "First before OpenVINOExecutionProvider",
        "Second before OpenVINOExecutionProvider",
        "Second after",
        "First after",
    ]


def test_what_a_plugin_refuses_ends_the_command(epctx, model, package, tmp_path):
    said = epctx(
        "compile", model("y = Relu(x)"), "--ep", "OpenVINO",
        "--host-plugin", "refuses", path=[package],
    )  # fmt: skip

    assert said.code == 1
    assert "OpenVINOExecutionProvider is not for us." in said.err
    assert not (tmp_path / "small_ctx.onnx").exists()


@pytest.mark.parametrize("command", ["compile", "explain", "run"])
def test_a_plugin_that_is_not_installed_is_an_error(epctx, model, command):
    path = model("y = Relu(x)")

    said = epctx(command, path, "--ep", "QNN", "--host-plugin", "tracer")

    assert said.code == 3
    assert "the host plugin 'tracer' is not installed" in said.err
    assert "Did you mean 'trace'?" in said.err


def test_a_compile_says_so_before_it_reads_the_model(epctx, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")

    said = epctx(
        "compile", tmp_path / "m.onnx", "--ep", "QNN", "--host-plugin", "tracer"
    )

    assert "the host plugin 'tracer' is not installed" in said.err


def test_options_keep_the_name(epctx):
    options = SessionOptions()
    options.add_host_plugin("trace")

    assert options.copy().host_plugins == ("trace",)
