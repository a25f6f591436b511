"""Pages for contributors and pages of results come after how-to pages in the search of
the site: their front matter lowers them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def list_lowered():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    contributing = navigation.partition("\n  - Contributing:\n")[2]
    named = re.findall(r": ([\w-]+\.md)$", contributing, re.MULTILINE)
    results = re.findall(r": (vendor-results-[\w-]+\.md)$", navigation, re.MULTILINE)
    return [name for name in (*named, *results) if (ROOT / "docs" / name).is_file()]


def test_there_are_pages_of_results():
    assert {"benchmarks.md", "vendor-results-qnn.md"} < set(list_lowered())


@pytest.mark.parametrize("name", list_lowered())
def test_a_page_of_results_or_for_contributors_is_lowered_in_the_search(name):
    text = (ROOT / "docs" / name).read_text("utf-8")

    (boost,) = re.findall(r"\A---\nsearch:\n  boost: (.+)\n---\n", text)

    assert float(boost) < 1
