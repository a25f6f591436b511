"""What is seen on a terminal, and what is not seen elsewhere."""

from __future__ import annotations

import os
import re

import onnx
import pytest
from rich.cells import cell_len
from support.cli_fixtures import on_a_terminal
from support.small_models import chain, saved

import epctx_core as epctx

COLOUR = r"\x1b\[[0-9;]*m"


def test_a_terminal_is_told_how_far_the_conformance_kit_is():
    _, shown = on_a_terminal("plugins", "check", "QNN", "--only", "values")

    assert re.search(r"\d:\d\d  \w+ .*\b[1-9]\d* of \d+\b", shown)


def test_a_terminal_is_told_which_check_runs():
    _, shown = on_a_terminal("plugins", "check", "QNN", "--only", "values")

    assert re.search(r"values .* \d+ of \d+, [a-z]+ [a-z]+", shown)


def test_no_color_is_honoured_in_the_report_and_in_errors(resnet):
    _, report = on_a_terminal("compile", resnet.path, "--ep", "QNN", NO_COLOR="1")
    _, error = on_a_terminal("inspect", "no.onnx", NO_COLOR="1")
    _, coloured = on_a_terminal("inspect", "no.onnx")

    assert "resnet_qnn.bin" in report
    assert re.findall(COLOUR, report + error) == []
    assert re.search(COLOUR, coloured)


def test_a_dumb_terminal_gets_neither_colour_nor_progress(resnet):
    _, shown = on_a_terminal("compile", resnet.path, "--ep", "QNN", TERM="dumb")

    assert "\x1b" not in shown


def lines_of(shown):
    """Return what a terminal shows at last, without colour and erased progress."""
    lines = [line.rpartition("\x1b[2K")[2] for line in shown.splitlines()]
    return [re.sub(COLOUR, "", line) for line in lines]


def list_too_wide(shown, width):
    """Return the lines that do not fit, but commands and paths, which stay whole."""
    return [
        line
        for line in lines_of(shown)
        if cell_len(line) > width
        and len(line.split()) > 1
        and not re.search(r"Next: epctx|pip install", line)
    ]


CONV = "Conv <kernel_shape = [1, 1]>"


@pytest.fixture
def long_names(model):
    """A model of which two EPs take partitions, with long names of nodes."""
    return model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "small (float[1, 2, 4, 4] x) => (float[1, 2, 4, 4] y) "
        "<float[2, 2, 1, 1] w = {1, 2, 3, 4}> { "
        f"[encoder_of_the_left_camera_0] a = {CONV} (x, w) "
        "[encoder_of_the_left_camera_1] b = Det (a) "
        "[encoder_of_the_left_camera_2] c = Erf (a) "
        f"[encoder_of_the_left_camera_3] y = {CONV} (c, w) }}"
    )


COMPILE = "compile MODEL --ep QNN --ep OpenVINO -o OUT"
EXPLAIN = "explain MODEL --ep QNN --ep VitisAI -v"


@pytest.mark.parametrize(
    ("command", "width"),
    [
        *((COMPILE, width) for width in (60, 80, 120)),
        *((EXPLAIN, width) for width in (60, 80, 120)),
        *(("inspect COMPILED -v", width) for width in (60, 80, 120)),
        ("share MODEL --ep QNN -o OUT", 60),
        ("verify COMPILED", 60),
        ("run COMPILED", 60),
        ("compare COMPILED MODEL", 60),
        ("plugins list", 60),
        ("plugins info QNN", 60),
        ("plugins check QNN --only signatures", 60),
        ("doctor", 60),
    ],
)
def test_a_report_fits_the_terminal(command, width, compiled, long_names, tmp_path):
    places = {"MODEL": long_names, "OUT": f"{tmp_path}/", "COMPILED": compiled}
    arguments = [places.get(word, word) for word in command.split()]

    _, shown = on_a_terminal(*arguments, width=width)

    assert len(lines_of(shown)) > 1
    assert list_too_wide(shown, width) == []


def test_the_list_of_a_cache_fits_the_terminal(tmp_path):
    folder = tmp_path / "cache"
    model = saved(chain(["Relu"]), tmp_path / "detector_of_the_left_camera.onnx")
    options = epctx.SessionOptions()
    options.add_provider("QNN")
    epctx.compile_cached(model, options, cache_dir=folder)

    code, shown = on_a_terminal("cache", "ls", "--cache-dir", folder, width=60)

    assert code == 0
    assert "just now" in shown
    assert list_too_wide(shown, 60) == []


def test_the_width_is_that_of_the_terminal_unless_columns_says_another(compiled):
    _, shown = on_a_terminal("inspect", compiled, width=60)
    _, wider = on_a_terminal("inspect", compiled, COLUMNS="100", width=60)

    assert list_too_wide(shown, 60) == []
    assert list_too_wide(wider, 60) != []
    assert list_too_wide(wider, 100) == []


def test_where_names_have_no_room_each_row_is_a_list(compiled):
    _, shown = on_a_terminal("inspect", compiled, width=40)

    (node,) = epctx.inspect_model(compiled).ep_contexts
    lines = lines_of(shown)
    assert "  EPContext node" in "\n".join(lines)
    assert f"  source          {node.source}" in lines


def test_a_name_that_has_no_room_is_on_a_line_of_its_own(compiled):
    _, shown = on_a_terminal("inspect", compiled, width=80)

    (node,) = epctx.inspect_model(compiled).ep_contexts
    lines = lines_of(shown)
    below = lines[lines.index(f"  {node.name}") + 1]
    assert re.match(r" +QNN +\S+\.bin +", below)


def test_names_of_eps_lose_their_ending_where_that_makes_room(long_names):
    _, shown = on_a_terminal(
        "explain", long_names, "--ep", "QNN", "--ep", "VitisAI", "-v", width=80
    )

    lines = lines_of(shown)
    assert sum(line == "Shortened: ...ExecutionProvider" for line in lines) == 1
    row = r"  encoder_of_the_left_camera_0 +Conv +QNN +0"
    assert any(re.match(row, line) for line in lines)


def test_a_fact_is_wrapped_and_keeps_its_names_whole():
    _, shown = on_a_terminal("plugins", "info", "QNN", width=40)

    words = " ".join(" ".join(lines_of(shown)).split())
    assert "sources QNNExecutionProvider, QNN, QnnExecutionProvider" in words
    assert "Shortened" not in words


def test_characters_that_take_two_columns_are_counted_as_two(model):
    path = model(
        '<ir_version: 8, opset_import: ["" : 17]> '
        "small (float[N, 3] x) => (float[N, 3] y, float[N, 3] z) { "
        "y = Erf (x) z = Relu (x) }"
    )
    name_first_output(path, "模型" * 20)

    _, shown = on_a_terminal("run", path, width=60)

    assert "".join(re.findall("[模型]+", shown)).endswith("模型" * 20)
    assert list_too_wide(shown, 60) == []


def test_control_characters_are_escaped_where_names_are_broken(model):
    path = model("y = Relu (x)")
    name_first_output(path, "\x1b[7m" * 20)

    _, shown = on_a_terminal("run", path, width=60)

    assert "\x1b[7m" not in shown
    assert r"\x1b[7m" in shown


def name_first_output(path, name):
    loaded = onnx.load(path)
    loaded.graph.node[0].output[0] = loaded.graph.output[0].name = name
    onnx.save(loaded, path)


def test_an_error_and_its_hint_are_wrapped_on_a_terminal(process, resnet):
    arguments = ("compile", resnet.path, "--ep", "FOO")

    _, shown = on_a_terminal(*arguments, width=60)
    piped = process(*arguments, COLUMNS="60")

    wrapped = lines_of(shown)
    assert list_too_wide(shown, 60) == []
    assert all(line.startswith("  ") for line in wrapped[1:])
    assert len(piped.err.splitlines()) == 2
    assert " ".join(wrapped).split() == piped.err.split()


def test_in_a_pipe_each_row_is_one_whole_line_whatever_the_width(
    process, compiled, long_names
):
    inspected = process("inspect", compiled, COLUMNS="40")
    explained = process("explain", long_names, "--ep", "QNN", "-v", COLUMNS="40")

    (node,) = epctx.inspect_model(compiled).ep_contexts
    (row,) = (r for r in inspected.out.splitlines() if r.startswith(f"  {node.name}"))
    assert re.fullmatch(rf" +{node.name} +{node.source} +\S+\.bin .*simulated\)", row)
    nodes = re.findall(
        r"^  (encoder_\w+) +\w+ +\w+ExecutionProvider ", explained.out, re.MULTILINE
    )
    assert [name[-1] for name in nodes] == ["0", "1", "2", "3"]


def test_a_pipe_gets_neither_colour_nor_progress(process, resnet):
    said = process("compile", resnet.path, "--ep", "QNN")

    assert "\x1b" not in said.out + said.err
    assert "\r" not in said.out + said.err
    assert said.err == ""


def test_an_ascii_stream_gets_ascii(process, resnet):
    said = process("compile", resnet.path, "--ep", "QNN", PYTHONIOENCODING="ascii")

    assert said.code == 0
    assert "resnet_qnn.bin" in said.out
    assert said.out.isascii()


def test_the_help_of_a_group_fits_the_terminal():
    _, shown = on_a_terminal("cache", "--help", width=60)

    assert "lookup" in shown
    assert list_too_wide(shown, 60) == []


@pytest.mark.parametrize("command", [("plugins", "list"), ("doctor",)])
def test_a_command_to_copy_stays_on_one_line(command, site):
    folder = site("epctx-acme", "AcmeExecutionProvider", npu="acme-npu>=2.7")
    path = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]

    _, shown = on_a_terminal(
        *command, width=24, PYTHONPATH=os.pathsep.join(map(str, path))
    )

    commands = [line.strip() for line in lines_of(shown) if "pip install" in line]
    assert "pip install 'epctx-acme[acme-npu]'" in commands
