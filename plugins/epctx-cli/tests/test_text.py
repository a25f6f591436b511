"""How numbers and foreign text are shown."""

from __future__ import annotations

import pytest
from epctx_cli import text


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (3 << 20, "3.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)
def test_sizes_are_readable(number, shown):
    assert text.byte_size(number) == shown


def test_only_what_steers_a_terminal_is_escaped():
    assert text.printable("größe 猫 a\nb") == "größe 猫 a\nb"
    assert text.printable("\x1b[31m\x00\ud800") == "\\x1b[31m\\x00\\ud800"
