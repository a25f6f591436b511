"""verify.md and the table of codes say the same."""

from __future__ import annotations

import pytest
from support.folders import ROOT
from verify.damages import documented_codes

from epctx_core.plugin import CONTAINER_CODES
from epctx_core.verify.findings import CODES

pytestmark = pytest.mark.internal


def test_the_table_lists_every_code_with_its_severity_in_the_order_of_the_checks():
    documented = [(code, severity) for code, severity, *_ in documented_codes()]

    assert documented == [(code, severity.value) for code, severity in CODES.items()]


def test_the_table_says_for_each_code_what_it_means_and_what_to_do():
    said = [text for _, _, *texts in documented_codes() for text in texts]

    assert len(said) == 2 * len(CODES)
    assert all(len(text) > 5 and text.endswith(".") for text in said)


def test_every_code_is_used_and_no_other():
    core = ROOT / "epctx_core"
    sources = [*(core / "verify").glob("*.py"), core / "context" / "node.py"]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)

    # Once in the table.
    assert [
        code
        for code in CODES
        if text.count(f'"{code}"') == 1 and code not in CONTAINER_CODES
    ] == []


def test_what_eps_can_find_is_documented():
    assert set(CODES) >= CONTAINER_CODES
