"""How reports fit a terminal: tables, prose, and names out of models."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
from epctx_cli.console import Console
from rich.cells import cell_len

pytestmark = pytest.mark.internal

PIPED = """
import sys
from epctx_cli.console import Console

Console().table(("node", "operator", "of"), [("first", "Relu", 3), ("b", "Convolution", 12)])
print("rich" in sys.modules)
"""
WARNING = """
from epctx_cli.console import Console

Console().warn("many words " * 20)
"""
WIDTHS = (20, 40, 80, 120)
EP = "QNNExecutionProvider"


class Terminal(io.StringIO):
    """Terminal that keeps what it shows."""

    def isatty(self):
        return True


@pytest.fixture
def show(monkeypatch):
    """Function that returns the lines that a terminal of some columns shows of a
    report.
    """

    def show(width, write):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stdout", Terminal())
        write(Console())
        shown = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())
        return [line.rstrip() for line in shown.splitlines()]

    return show


def table(*arguments):
    return lambda console: console.table(*arguments)


def test_a_pipe_needs_no_rich():
    done = subprocess.run(
        [sys.executable, "-c", PIPED], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == [
        "  node   operator     of",
        "  first  Relu          3",
        "  b      Convolution  12",
        "False",
    ]


NAMES = [
    f"{'model.encoder.layers.' * 3}block.{block}.attention.out{part}"
    for block in range(3)
    for part in "ab"
]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("header", [("node", "operator", "of"), ("", "", "")])
@pytest.mark.parametrize("names", [NAMES, [f"{'模' * 30}{n}{'型' * 30}" for n in "12"]])
def test_each_name_is_shown_whole_at_any_width(show, width, header, names):
    rows = [(name, "Conv", 1) for name in names]

    lines = show(width, table(header, rows))

    assert all(cell_len(line) <= width for line in lines)
    # Each in its column: without the cells beside it.
    shown = "".join(
        re.sub(r"^ *node\b|operator.*|Conv|of|\b1$| ", "", x) for x in lines
    )
    for name in names:
        assert name in shown


def test_a_first_cell_that_has_no_room_is_on_a_line_of_its_own(show):
    rows = [*((name, "Conv", "CPU", "1.5 KiB") for name in NAMES[:2]), ("head", *"abc")]

    lines = show(80, table(("node", "operator", "taken by", "size"), rows))

    assert lines == [
        "  node  operator  taken by  size",
        "  model.encoder.layers.model.encoder.layers.model.encoder.layers.block.0.a",
        "        ttention.outa",
        "        Conv      CPU       1.5 KiB",
        "  model.encoder.layers.model.encoder.layers.model.encoder.layers.block.0.a",
        "        ttention.outb",
        "        Conv      CPU       1.5 KiB",
        "  head  a         b         c",
    ]


def test_a_first_cell_that_fits_a_line_of_its_own_is_whole(show):
    rows = [("n" * 78, "Conv", "1.5 KiB")]

    assert show(80, table(("node", "operator", "size"), rows)) == [
        "  node  operator  size",
        f"  {'n' * 78}",
        "        Conv      1.5 KiB",
    ]


def test_where_other_names_have_no_room_each_row_is_a_list(show):
    rows = [("a", NAMES[0], EP, "1.5 KiB"), ("b", NAMES[1], EP, "1.5 KiB")]

    lines = show(80, table(("node", "value", "taken by", "size"), rows))

    assert lines == [
        "  node      a",
        "  value     model.encoder.layers.model.encoder.layers.model.encoder.layers.block",
        "            .0.attention.outa",
        f"  taken by  {EP}",
        "  size      1.5 KiB",
        "",
        "  node      b",
        "  value     model.encoder.layers.model.encoder.layers.model.encoder.layers.block",
        "            .0.attention.outb",
        f"  taken by  {EP}",
        "  size      1.5 KiB",
    ]


def test_no_part_of_a_name_is_a_row_of_a_table_without_a_header(show):
    rows = [(f"{'p' * 69}  plain.bin", "-"), ("m.onnx", "2 bytes")]

    assert show(80, table(("", ""), rows)) == [
        f"  {'p' * 69}",
        "        plain.bin",
        "          -",
        "  m.onnx  2 bytes",
    ]


def test_standard_error_is_wrapped_to_its_own_width():
    leader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 40, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}

    subprocess.run(
        [sys.executable, "-c", WARNING],
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env=environment,
        check=True,
    )

    os.close(terminal)
    shown = os.read(leader, 4096).decode()
    os.close(leader)
    lengths = [*map(len, re.sub(r"\x1b\[[0-9;]*m", "", shown).split("\r\n"))]
    assert 30 < max(lengths) <= 40


def test_a_terminal_gets_no_blanks_at_the_end_of_a_line_of_a_page(show):
    page = "# Title\n\nwords\n\n```sh\nls\n```\n"
    show(40, lambda console: console.markdown(page))

    shown = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())
    assert "ls" in shown
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []


def test_prose_is_wrapped_beside_names_and_numbers(show):
    rows = [("first", 1200, "It has no kernel for that type"), ("second", 3, "none")]

    assert show(36, table(("node", "of", "refused because"), rows)) == [
        "  node       of  refused because",
        "  first   1,200  It has no kernel",
        "                 for that type",
        "  second      3  none",
    ]


def test_a_name_with_spaces_passes_for_no_row(show):
    rows = [(f"{'x' * 20} forged  Conv", "Relu", "It is long enough to be wrapped")]

    lines = show(60, table(("node", "operator", "refused because"), rows))

    assert [line for line in lines if line.startswith("  forged")] == []


def test_names_of_eps_lose_their_ending_where_that_makes_room(show):
    rows = [("encoder", EP, "CPUExecutionProvider"), ("head", EP, EP)]
    header = ("node", "taken by", "run by")

    assert show(40, table(header, rows)) == [
        "Shortened: ...ExecutionProvider",
        "  node     taken by  run by",
        "  encoder  QNN       CPU",
        "  head     QNN       QNN",
    ]
    assert EP in "".join(show(80, table(header, rows)))


def test_a_name_of_an_ep_stays_whole_beside_one_that_would_equal_it(show):
    rows = [("encoder", EP, "float16"), ("head", "QNN", "float16")]

    lines = show(30, table(("node", "source", "type"), rows))

    assert f"  source  {EP}" in lines
    assert "  source  QNN" in lines


def test_no_name_is_read_as_markup_or_emoji_of_rich(show):
    name = "[red]a[/red] :smile: \x1b[31m\n"

    lines = show(
        40,
        lambda console: (
            console.say(f"{name} {'and more ' * 5}"),
            console.table(("node", "words"), [(name, "some words " * 5)]),
        ),
    )

    shown = " ".join(" ".join(lines).split())
    assert shown.count("[red]a[/red] :smile:") == 2
    assert r"\x1b[31m\n" in shown


def test_prose_is_wrapped_and_its_paths_stay_whole(show):
    path = f"/models/{'x' * 40}.onnx"

    assert show(30, lambda console: console.say(f"  The model {path} is not one")) == [
        "  The model",
        f"    {path}",
        "    is not one",
    ]
