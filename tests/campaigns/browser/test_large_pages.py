"""Pages of 100,000 nodes: what is drawn stays small, and everything is reached."""

from __future__ import annotations

import functools

import pytest
from browser import samples
from epctx_report.page import assemble
from playwright.sync_api import expect

SHAPES = ["chain_page", "alternating_page", "fan_out_page"]
MOST_ELEMENTS = 6000


@functools.cache
def sample(name):
    return assemble(getattr(samples, name)())


def elements(page):
    return page.evaluate("document.querySelectorAll('*').length")


def head(page):
    return page.locator(".panel h3").inner_text()


@pytest.mark.parametrize("shape", SHAPES)
def test_cut_of_100000_nodes_is_painted(show, shape):
    page = show(sample(shape))
    expect(page.locator("[data-box]").first).to_be_in_viewport()
    assert "100,000 nodes" in page.locator(".summary").inner_text()
    assert elements(page) < MOST_ELEMENTS


@pytest.mark.parametrize("shape", SHAPES)
def test_few_elements_are_drawn_at_any_zoom(show, shape):
    page = show(sample(shape))
    if shape == "chain_page":
        page.locator("[data-box]").click()
    counts = []
    for _ in range(14):
        page.get_by_label("Zoom out").click()
        counts.append(elements(page))
    page.get_by_label("Fit the graph").click()
    counts.append(elements(page))
    assert max(counts) < MOST_ELEMENTS
    assert page.locator("[data-box], [data-node]").count() > 1


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ("chain_page", "layer.77777"),
        ("alternating_page", "Relu.49999"),
        ("fan_out_page", "reader.99999"),
    ],
)
def test_any_node_is_found_and_scrolled_to(show, shape, name):
    page = show(sample(shape))
    page.get_by_role("searchbox").fill(name)
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator(".chosen")).to_be_in_viewport()
    assert name in page.locator(".panel").inner_text()


def test_search_shows_the_first_hundred_and_the_count_of_all(show):
    page = show(sample("chain_page"))
    page.get_by_role("searchbox").fill("layer.")
    expect(page.locator(".results p")).to_have_text("200,000 results, the first 100:")
    expect(page.locator(".results li")).to_have_count(100)


def test_box_of_100000_operators_is_expanded_by_the_positions_given(show):
    page = show(sample("chain_page"))
    page.locator("[data-box]").click()
    tops = [node.bounding_box()["y"] for node in page.locator("[data-node]").all()]
    assert len(tops) > 5
    assert tops == sorted(tops)
    assert page.evaluate("document.querySelector('.frame').scrollHeight") > 4_000_000


def test_expanded_box_among_50000_pushes_those_below_it(show):
    page = show(sample("alternating_page"))
    second, third = page.locator("#box-1"), page.locator("#box-2")
    before = third.bounding_box()["y"] - second.bounding_box()["y"]
    second.click()
    assert page.locator("[data-node]").count() == 2
    after = third.bounding_box()["y"] - second.bounding_box()["y"]
    assert after > before + 80
    second.click(position={"x": 20, "y": 10})
    assert third.bounding_box()["y"] - second.bounding_box()["y"] == pytest.approx(
        before, abs=2
    )


def test_expanded_box_of_a_wide_layer_pushes_those_beside_it(show):
    data = samples.alternating_page(1000)
    data["models"][0]["boxes"] |= {"layer": [0] * 500, "x": list(range(500))}
    page = show(data)
    page.locator("#box-1").click()
    first = page.locator("#box-1").bounding_box()
    assert page.locator("#box-2").bounding_box()["x"] >= first["x"] + first["width"]


def test_click_on_the_overview_goes_there(show):
    page = show(sample("alternating_page"))
    overview = page.locator(".overview")
    size = overview.bounding_box()
    overview.click(position={"x": 10, "y": size["height"] / 2})
    page.wait_for_selector("#box-25000")
    expect(page.locator("#box-25000")).to_be_in_viewport()


def test_scrolling_draws_what_comes_into_view(show):
    page = show(sample("alternating_page"))
    page.evaluate("document.querySelector('.frame').scrollTop = 1e6")
    page.wait_for_selector("#box-10640")
    assert page.locator("#box-0").count() == 0


def test_arrow_keys_walk_through_a_large_graph(show):
    page = show(sample("alternating_page"))
    page.locator(".frame").focus()
    for _ in range(31):
        page.keyboard.press("ArrowDown")
    expect(page.locator("#box-30")).to_be_in_viewport()
    assert head(page) == "QNN 15"
    page.keyboard.press("ArrowUp")
    assert head(page) == "CPU"


def test_list_of_refused_nodes_shows_the_first_of_them_and_the_count(show):
    page = show(sample("alternating_page"))
    page.locator("#refused summary").click()
    items = page.locator("#refused li")
    expect(items).to_have_count(201)
    assert items.last.inner_text() == "… and 24,800 more"


def test_print_of_a_large_graph_shows_the_overview_in_its_place(show):
    page = show(sample("alternating_page"))
    page.emulate_media(media="print")
    expect(page.locator(".frame")).to_be_hidden()
    expect(page.locator(".overview canvas")).to_be_visible()


def test_graph_without_positions_is_laid_out_by_its_longest_paths(show):
    data = samples.alternating_page(2000)
    data["models"][0]["boxes"] |= {"layer": None, "x": None}
    page = show(data)
    tops = [page.locator(f"#box-{at}").bounding_box()["y"] for at in range(5)]
    assert tops == sorted(set(tops))


def test_graph_of_400_boxes_is_laid_out_by_dagre(show):
    data = samples.alternating_page(800)
    page = show(data)
    page.get_by_role("searchbox").fill("Relu.399")
    page.get_by_role("searchbox").press("Enter")
    expect(page.locator(".chosen")).to_be_in_viewport()
