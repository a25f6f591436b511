"""Pages for contributors come after how-to pages in the search of the site: their front
matter lowers them.
"""

from __future__ import annotations

import re

import pytest
from support.pages import DOCS, read_page

LOWERED = sorted(page.name for page in DOCS.glob("contributing/**/*.md"))


def test_there_are_pages_for_contributors():
    assert {"benchmarks.md", "stress.md"} < set(LOWERED)


@pytest.mark.parametrize("name", LOWERED)
def test_a_page_for_contributors_is_lowered_in_the_search(name):
    text = read_page(name)

    (boost,) = re.findall(r"\A---\nsearch:\n  boost: (.+)\n---\n", text)

    assert float(boost) < 1
