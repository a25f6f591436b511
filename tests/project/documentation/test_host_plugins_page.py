"""host-plugins.md: its plugins do what the page says."""

from __future__ import annotations

import re
import shlex
import sys

import pytest
from documentation.blocks import blocks, commands, files, install, snippets
from support.command_line import main
from support.engine_eps import Beta
from support.foreign_models import convolution, from_other_process
from support.fragile_eps import Fragile
from support.isolation import options_for, registry_of
from support.pages import read_page
from support.small_models import chain, saved

import epctx_core as epctx

PAGE = "host-plugins.md"
MODULES = ("hook_trace", "keep_off", "hook_metrics", "hook_logs")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of the page, the package installed, and the model."""
    install(PAGE, tmp_path)
    saved(convolution(), tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def without_times(text):
    return re.sub(r"\d+\.\d ms", "0.0 ms", text)


def test_every_block_of_the_page_is_run_here():
    assert {block["kind"] for block in blocks(PAGE)} == {
        "console",
        "python",
        "toml",
    }
    assert set(files(PAGE)) == {
        "pyproject.toml",
        *(f"{name}.py" for name in MODULES[:3]),
    }


@pytest.mark.usefixtures("folder")
def test_each_example_prints_what_the_page_says(capsys):
    text = read_page(PAGE)
    outputs = re.findall(r"\n\n```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {}

    for snippet, output in zip(snippets(PAGE), outputs, strict=True):
        exec(snippet, names)  # noqa: S102 - the page's own code

        assert without_times(capsys.readouterr().out) == without_times(output)

    assert epctx.default_registry.host_plugins == ()


@pytest.mark.usefixtures("folder")
def test_the_trace_is_refused_where_another_process_could_not_find_it():
    trace = snippets(PAGE)[1]
    before, mark, work = trace.partition('print("compile")')
    isolated = f"{before}options.add_session_config_entry('ep.isolate', 'all')\n"

    with pytest.raises(epctx.InvalidArgument, match="Trace wraps hooks that run in an"):
        exec(f"{isolated}{mark}{work}", {})  # noqa: S102 - the page's own code


def test_the_trace_is_refused_where_a_session_works_elsewhere_for_a_payload(folder):
    from hook_trace import Trace

    model = saved(chain(("Add", "Neg")), folder / "m.onnx")
    registry, options = registry_of(Fragile, Beta), options_for(Fragile, Beta)
    options.add_session_config_entry("ep.isolate", "")
    epctx.ModelCompiler(options, model, registry=registry).compile_to_file("c.onnx")
    # Without digests, which a damaged payload could crash.
    path = from_other_process(folder / "c.onnx")
    options.add_host_plugin(Trace())
    Fragile.loads.clear()

    with pytest.raises(epctx.InvalidArgument, match="Trace wraps hooks that run in an"):
        epctx.InferenceSession(path, options, registry=registry)

    assert Fragile.loads == []


LOGGED = """
import logging
from epctx_core.plugin import hookimpl

class Logs:
    @hookimpl(wrapper=True)
    def compile(self, ep, partitions):
        logging.getLogger("epctx.acme").warning("%s compiles", ep)
        return (yield)

logs = Logs()
"""


def test_a_plugin_that_another_process_finds_logs_to_the_host(folder, caplog):
    (folder / "hook_logs.py").write_text(LOGGED)
    from hook_logs import logs

    options = epctx.SessionOptions()
    options.add_provider("QNN")
    options.add_host_plugin(logs)
    options.add_session_config_entry("ep.isolate", "compile")
    epctx.ModelCompiler(options, "model.onnx").compile_to_file()

    assert "QNNExecutionProvider compiles" in caplog.text


@pytest.mark.usefixtures("folder")
def test_the_installed_plugin_is_used_by_name_on_the_command_line(capsys):
    run, compile_ = (shlex.split(command)[1:] for command in commands(PAGE))

    assert main(compile_) == 0
    assert "OpenVINOExecutionProvider.compile: 1 in" in capsys.readouterr().out
    assert main(run) == 0
    assert "QNNExecutionProvider: run" in capsys.readouterr().out
