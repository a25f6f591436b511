"""docs/verify.md and the table of codes say the same."""

from __future__ import annotations

from pathlib import Path

from verify.damages import documented_codes

from epctx_core.plugin import CONTAINER_CODES
from epctx_core.verify.findings import CODES

ROOT = Path(__file__).parents[2]


def test_the_table_lists_every_code_with_its_severity_and_meaning_in_the_order_of_the_checks():
    documented = [(code, severity, meaning) for code, severity, meaning, _ in documented_codes()]

    assert documented == [(code, said.severity.value, said.meaning) for code, said in CODES.items()]


def test_the_table_says_for_each_code_what_to_do():
    assert all(len(what_to_do) > 5 and what_to_do.endswith(".") for *_, what_to_do in documented_codes())


def test_every_code_is_used_and_no_other():
    sources = (ROOT / "epctx_core" / "verify").glob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)

    # Once in the table.
    assert [code for code in CODES if text.count(f'"{code}"') == 1 and code not in CONTAINER_CODES] == []


def test_what_eps_can_find_is_documented():
    assert set(CODES) >= CONTAINER_CODES
