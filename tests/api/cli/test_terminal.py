"""What is seen on a terminal, and what is not seen elsewhere."""

from __future__ import annotations

import re

from cli.fixtures import on_a_terminal

import epctx_core as epctx

COLOUR = r"\x1b\[[0-9;]*m"


def test_a_terminal_is_told_how_far_the_conformance_kit_is():
    _, shown = on_a_terminal("plugins", "check", "QNN", "--quick")

    assert re.search(r"\d s  \w+ .*\b[1-9]\d* of \d+\b", shown)


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


def test_a_table_too_wide_for_the_terminal_keeps_names_whole(compiled):
    _, shown = on_a_terminal("inspect", compiled, COLUMNS="60")

    (node,) = epctx.inspect_model(compiled).ep_contexts
    assert node.name in shown


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
