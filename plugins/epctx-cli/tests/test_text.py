"""How numbers, tables, trees and foreign text are shown."""

from __future__ import annotations

import pytest
from epctx_cli import text


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_sizes_are_readable(number, shown):
    assert text.size(number) == shown


def test_numbers_stand_at_the_right_and_text_at_the_left():
    lines = text.table(("name", "n"), [("a", 5), ("bcdef", 1234)])

    assert lines == ["name       n", "a          5", "bcdef  1,234"]


def test_a_tree_without_leaves_is_its_root():
    assert text.tree("out/", [], ascii_only=False) == ["out/"]


def test_only_what_steers_a_terminal_is_escaped():
    assert text.printable("größe 猫 a\nb") == "größe 猫 a\nb"
    assert text.printable("\x1b[31m\x00\ud800") == "\\x1b[31m\\x00\\ud800"
    assert text.one_line("a\nb") == "a\\nb"
