"""Progress of commands on a terminal: what is drawn, when, and what is left of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from support.cli_fixtures import on_a_terminal
from support.installed import install_distribution
from support.small_models import chain, saved

ERASE = "\x1b[2K"
FRAME = r"\d:\d\d:\d\d  "
COLOUR = r"\x1b\[[0-9;]*m"
USAGE = 2
CODE = """
import os
import time

import onnx

from epctx_core.plugin import (
    CompiledPartition, EPContextNode, ExecutionProvider, Purpose, hookimpl,
    supported_partitions,
)


def be_slow(place):
    if place in os.environ.get("SLOW", "").split(","):
        # A line appears after a second; three nodes are loaded.
        time.sleep(1.5 if place == "load" else 0.5)


class Provider(ExecutionProvider):
    name = "SlowExecutionProvider"
    # So a check of a model loads its payloads, too.
    loads_without_device = True

    def __init__(self, context):
        super().__init__(context)
        self.models = []

    @hookimpl
    def get_capability(self, graph):
        return supported_partitions(graph, lambda node: node.op_type == "Relu")

    @hookimpl
    def compile(self, partitions):
        compiled = []
        for done, partition in enumerate(partitions):
            self.context.progress("compile", done, len(partitions))
            be_slow("compile")
            if "print" in os.environ.get("SLOW", ""):
                print("layer", end=" ")
                print(done, "was tuned")
            model = partition.model().SerializeToString()
            self.models.append((partition, model))
            compiled.append(self.make(model))
        return compiled

    def make(self, model):
        if self.context.purpose is Purpose.EXPORT:
            return CompiledPartition(None)
        return CompiledPartition(
            self.context.engine.prepare(onnx.load_from_string(bytes(model))).run
        )

    @hookimpl
    def get_ep_context_nodes(self, writer):
        nodes = []
        for number, (partition, model) in enumerate(self.models):
            payload = writer.payload(f"{number}")
            payload.write(model)
            while "write" in os.environ.get("SLOW", "") and payload.size < 40 << 20:
                payload.write(bytes(1 << 20))
                time.sleep(0.05)
            nodes.append(EPContextNode(partition, payload))
        return nodes

    @hookimpl
    def load_context(self, nodes, reader):
        for _ in nodes:
            be_slow("load")
        return [self.make(reader.payload(node).view) for node in nodes]
"""


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What a terminal showed.

    Attributes:
        frames: the lines of progress, without colours.
        rest: all other lines.
    """

    frames: list[str]
    rest: list[str]


def split(shown):
    """Return the frames, each of which begins with the time, and the other lines."""
    pieces = re.split(r"\r\x1b\[2K|\r\n(?:\r?\x1b\[1A\x1b\[2K)?|\r", shown)
    plain = [re.sub(COLOUR, "", piece).rstrip() for piece in pieces]
    frames = [piece for piece in plain if re.match(FRAME, piece)]
    return Shown(frames=frames, rest=[p for p in plain if not re.match(FRAME, p)])


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Folder of a package whose EP is slow where the variable `SLOW` says so."""
    folder = tmp_path_factory.mktemp("site")
    entries = {"epctx.execution_providers": {"SlowExecutionProvider": "slow:Provider"}}
    install_distribution(folder, "epctx-slow", entries)
    (folder / "slow.py").write_text(CODE)
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return saved(
        chain(["Relu", "Neg", "Relu", "Neg", "Relu"]),
        tmp_path_factory.mktemp("slow") / "m.onnx",
    )


@pytest.fixture(scope="module")
def loaded(slow, model):
    """A context model of three EPContext nodes."""
    context = model.with_name("loaded_ctx.onnx")
    code, output = on_a_terminal(
        "compile", model, "--ep", "Slow", "-o", context, PYTHONPATH=slow
    )
    assert code == 0, output
    return context


def test_a_slow_compile_shows_stage_elapsed_time_partitions_and_the_time_left(
    slow, model
):
    code, output = on_a_terminal(
        "compile", model, "--ep", "Slow", PYTHONPATH=slow, SLOW="compile"
    )

    shown = split(output)
    assert code == 0
    assert any(
        re.fullmatch(
            r"0:00:\d\d  compiling ━+╸?╺?━+ [12] of 3 partitions, "
            r"about 0:00:\d\d left, with Slow",
            frame,
        )
        for frame in shown.frames
    ), shown.frames
    assert re.search(f"{COLOUR}━", output)
    # The last one is erased before the report begins.
    assert f"\x1b[1A{ERASE}{model} -> " in output
    assert not any("partitions, " in line for line in shown.rest)


def test_what_an_ep_prints_meanwhile_stays_whole(slow, model):
    _, output = on_a_terminal(
        "compile", model, "--ep", "Slow", PYTHONPATH=slow, SLOW="compile,print"
    )

    for layer in range(3):
        assert f"layer {layer} was tuned" in split(output).rest


def test_a_slow_load_shows_which_ep_loads(slow, loaded):
    code, output = on_a_terminal("run", loaded, PYTHONPATH=slow, SLOW="load")

    assert code == 0
    frames = split(output).frames
    assert frames
    assert re.fullmatch(
        r"0:00:\d\d  loading payloads +3 EPContext nodes with Slow", frames[0]
    ), frames


def test_a_slow_check_of_a_model_shows_elapsed_time(slow, loaded):
    _, output = on_a_terminal("verify", loaded, PYTHONPATH=slow, SLOW="load")

    frames = split(output).frames
    assert frames
    assert re.match(r"0:00:\d\d  (checking the model|loading payloads )", frames[0])


def test_a_fast_command_shows_no_progress(slow, loaded):
    _, output = on_a_terminal("inspect", loaded, PYTHONPATH=slow)

    assert "loaded_ctx.onnx: 3 EPContext nodes" in output
    assert ERASE not in output


def test_quiet_shows_no_progress_and_no_result(slow, loaded):
    code, output = on_a_terminal("run", loaded, "-q", PYTHONPATH=slow, SLOW="load")

    assert (code, output) == (0, "")


def test_quiet_keeps_errors(epctx):
    said = epctx("-q", "inspect", "no.onnx")

    assert said.code == USAGE
    assert said.err.startswith("error: ")


def test_quiet_and_verbose_exclude_each_other(epctx):
    said = epctx("inspect", "no.onnx", "-q", "-v")

    assert said.code == USAGE
    assert "-v and -q exclude each other" in said.err


def test_a_pipe_gets_no_control_characters(process, slow, loaded):
    said = process("run", loaded, path=[slow], SLOW="load")

    assert said.code == 0
    assert re.findall(r"[\x00-\x09\x0b-\x1f]", said.out + said.err) == []


def test_json_on_a_terminal_has_no_progress(slow, loaded):
    _, output = on_a_terminal("run", loaded, "--json", PYTHONPATH=slow, SLOW="load")

    assert ERASE not in output
    assert '"schema": 1' in output


def test_bytes_of_a_slow_write_grow_and_have_a_speed(slow, tmp_path):
    source = saved(chain(["Relu"]), tmp_path / "one.onnx")

    _, output = on_a_terminal(
        "compile", source, "--ep", "Slow", PYTHONPATH=slow, SLOW="write"
    )

    sizes = [
        float(match[1])
        for frame in split(output).frames
        if (match := re.match(rf"{FRAME}writing +([0-9.]+) MiB, [0-9.]+ MiB/s$", frame))
    ]
    assert len(set(sizes)) >= 2
    assert sizes == sorted(sizes)


def test_a_load_of_many_nodes_names_its_stages(tmp_path):
    source = saved(chain(["Sigmoid", "Neg", "Add"] * 7000), tmp_path / "many.onnx")

    code, output = on_a_terminal("run", source)

    frames = split(output).frames
    assert code == 0
    assert any("preparing kernels" in frame for frame in frames), frames


def test_lines_fit_a_narrow_terminal_and_have_no_colour_with_no_color(slow, model):
    code, output = on_a_terminal(
        "compile", model, "--ep", "Slow",
        PYTHONPATH=slow, SLOW="compile", COLUMNS="48", NO_COLOR="1",
    )  # fmt: skip

    frames = split(output).frames
    assert code == 0
    assert not re.search(COLOUR, output)
    assert max(map(len, frames)) <= 48
    assert any("━" in frame and " of 3 partitions" in frame for frame in frames)
