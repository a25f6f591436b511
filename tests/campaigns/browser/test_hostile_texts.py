"""Texts of a model are shown as text, whatever they are."""

from __future__ import annotations

import functools

import pytest
from browser.samples import HOSTILE, hostile_page
from epctx_report.page import assemble
from playwright.sync_api import expect

hostile_text = functools.cache(lambda: assemble(hostile_page()))
NUMBERED = list(enumerate(HOSTILE))
IDS = range(len(HOSTILE))
MARKUP = """() => [...document.querySelectorAll("*")].filter((element) =>
  ["IMG", "IFRAME", "OBJECT", "A", "BASE", "FORM"].includes(element.tagName) ||
  [...element.attributes].some(({name}) => name.startsWith("on") || name === "href" && element.tagName !== "LINK")
).map((element) => element.outerHTML)"""


def use_everything(page, index):
    page.locator("#model").select_option(str(index))
    page.locator("[data-box]").first.click()
    page.locator("[data-node]").first.click()
    page.locator("[data-box]").last.click()
    for summary in page.locator("summary").all():
        summary.click()


@pytest.mark.parametrize(("index", "text"), NUMBERED, ids=IDS)
@pytest.mark.parametrize("width", [400, 1280])
def test_no_text_becomes_markup_or_script_or_widens_the_page(show, index, text, width):
    page = show(hostile_text(), viewport={"width": width, "height": 800})
    use_everything(page, index)
    assert page.evaluate(MARKUP) == []
    assert page.locator("script").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HOSTILE[0], "</script><script>alert(1)</script>"),
        (HOSTILE[5], "right‹U+202E›to left‹U+202C›"),
        (HOSTILE[6], "two␊lines␍␉and a NUL␀here"),
        (HOSTILE[7], "‹U+D800› alone ‹U+DFFF›"),
        (HOSTILE[8], "__proto__"),
        (HOSTILE[9], "constructor"),
    ],
)
def test_text_is_shown_with_its_control_characters_visible(show, text, shown):
    page = show(hostile_text())
    use_everything(page, HOSTILE.index(text))
    assert page.locator(".model-name").text_content() == shown
    assert page.locator(".verdict").text_content() == shown
    assert page.locator(".legend b").first.text_content() == shown
    assert page.locator("#refused summary bdi").first.text_content() == shown
    assert page.locator("#times td").first.text_content() == shown
    assert page.locator("#checks .facts dd").text_content() == shown


def test_long_text_is_shortened_in_its_middle(show):
    page = show(hostile_text())
    page.locator("#model").select_option(str(len(HOSTILE) - 1))
    assert len(page.locator(".verdict").text_content()) == 600
    assert "…" in page.locator(".verdict").text_content()
    # No character of two surrogates is cut.
    page.locator("#model").select_option(str(len(HOSTILE) - 2))
    for part in ("#cut", ".verdict", ".legend >> nth=0", "#refused"):
        assert "U+D8" not in page.locator(part).text_content()


def test_hostile_names_are_found_and_revealed(show):
    page = show(hostile_text())
    page.get_by_role("searchbox").fill("<SCRIPT>alert(1)")
    expect(page.locator(".results li")).to_have_count(7)
    page.locator(".results button").first.click()
    assert page.locator(".panel code").first.text_content() == HOSTILE[0]


def test_policy_stops_markup_and_scripts_that_are_put_in_from_outside(
    browser, tmp_path
):
    path = tmp_path / "page.html"
    path.write_text(
        assemble(hostile_page()).replace(
            "</main>",
            "</main><script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">",
        ),
        encoding="utf-8",
    )
    page = browser.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert page.title() == HOSTILE[0]
    assigned = "() => { document.body.innerHTML = '<b>text</b>'; }"
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate(assigned)
    page.close()
