"""How numbers and foreign text are shown."""

from __future__ import annotations

import pytest
from epctx_cli import text

pytestmark = pytest.mark.internal


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5.0 TiB"),
        (7 << 50, "7.0 PiB"),
        (8 << 60, "8.0 EiB"),
    ],
)
def test_sizes_are_readable(number, shown):
    assert text.byte_size(number) == shown


def test_a_size_that_no_float_holds_is_shown():
    assert text.byte_size(1 << 20_000) == "over 1024 EiB"


def test_only_what_steers_a_terminal_is_escaped():
    assert text.printable("größe 猫 a\nb") == "größe 猫 a\nb"
    assert text.printable("\x1b[31m\x00\ud800") == "\\x1b[31m\\x00\\ud800"


def test_foreign_text_in_prose_is_one_line_and_cut():
    assert text.cut("größe\n猫") == "größe\\n猫"
    assert text.cut("n" * 5000) == f"{'n' * 100}… (5,000 characters)"


def test_the_numbers_of_operators_have_separators():
    assert text.operators(["Neg"] * 50_000 + ["Abs"], shown=1) == "50,000 Neg, …"
