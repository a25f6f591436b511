"""Mistakes in the kit's own table."""

from __future__ import annotations

import pytest
from epctx_conformance.table import all_checks, check


def test_a_check_of_an_unknown_group_or_need_is_a_mistake():
    with pytest.raises(ValueError, match="no such group or need"):
        check("wishes", "it grants them")
    with pytest.raises(ValueError, match="no such group or need"):
        check("claims", "it takes something", needs=("magic",))


def test_a_title_that_is_taken_is_a_mistake():
    with pytest.raises(ValueError, match="two checks with the title"):
        check("claims", all_checks()[0].title)(lambda _harness: None)
