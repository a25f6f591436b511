"""The site's search finds the page that answers a question.

The index is the one that a browser loads. lunr in Python ranks it as Material's worker
does in JavaScript: its tokens and pipeline, a wildcard after each word, more for a page
than for a section and for more of the words, and results by page. Material's tokenizer
also splits at HTML tags, which are removed here.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import PurePosixPath

import pytest
from lunr.builder import Builder
from lunr.stop_word_filter import WORDS, stop_word_filter

FIRST = 3


@pytest.fixture(scope="module")
def index(site):
    return json.loads((site / "search/search_index.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def searchable(index):
    assert index["config"]["pipeline"] == ["stopWordFilter"]
    builder = Builder()
    builder.pipeline.add(stop_word_filter)
    builder.ref("location")
    for name, field in index["config"]["fields"].items():
        builder.field(name, boost=field["boost"])
    for entry in index["docs"]:
        page = {"tags": "", **entry, "text": plain(entry["text"])}
        builder.add(page, {"boost": entry.get("boost", 1)})
    return builder.build()


def plain(text):
    return html.unescape(re.sub(r"<[^>]+>", " ", text))


def found_pages(searchable, question):
    words = re.findall(r"\S+", question.rstrip("?").lower())
    ranked = []
    for result in searchable.search(" ".join(f"{word}*" for word in words)):
        terms = result["match_data"].metadata
        matched = {word for word in words if any(t.startswith(word) for t in terms)}
        counted = matched | {word for word in words if word not in WORDS}
        boost = ("#" not in result["ref"]) + len(matched) / len(counted)
        ranked.append((result["score"] * (1 + boost**2), result["ref"]))
    addresses = [ref.partition("#")[0] for _, ref in sorted(ranked, reverse=True)]
    return list(dict.fromkeys(PurePosixPath(address).name for address in addresses))


@pytest.mark.parametrize(
    ("question", "pages"),
    [
        ("Which options has QNN?", {"epctx-sim-qnn", "real-hardware"}),
        ("Why was my node refused?", {"report", "hosts", "commands"}),
        ("How do I ship a context model?", {"serving"}),
        ("How to pin or disable a plugin?", {"plugins"}),
        ("receipts in a container", {"serving", "load-checks"}),
        ("Where does it write?", {"hosts", "questions"}),
        ("How to measure?", {"benchmarking"}),
        ("How to encrypt?", {"encrypted-context"}),
        ("What does error NOT_IMPLEMENTED mean?", {"errors"}),
        ("dynamic shapes", {"dynamic-shapes"}),
        ("many models", {"batch"}),
        ("write an EP", {"write-an-ep"}),
        ("run it in docker", {"questions"}),
        ("use a GPU CUDA DirectML", {"questions"}),
        ("my EP takes nothing, why", {"questions"}),
        ("fall back to the CPU", {"questions"}),
        ("a driver was updated", {"questions"}),
        ("quantised models", {"questions"}),
        ("several shapes", {"questions", "dynamic-shapes"}),
        ("smaller files", {"questions"}),
        ("where is the time at the start", {"questions", "performance"}),
        ("ship to a device without Python", {"questions"}),
        ("check a vendor's file", {"questions"}),
        ("compile on a build server", {"questions"}),
    ],
)
def test_a_question_finds_the_page_that_answers_it_among_the_first(
    searchable, question, pages
):
    found = found_pages(searchable, question)

    assert pages & set(found[:FIRST]), found[:10]


def test_a_word_that_no_page_has_finds_nothing(searchable):
    assert found_pages(searchable, "qwertzuiop") == []
