"""What a reader of a page sees, clicks and types."""

from __future__ import annotations

import pytest
from browser.samples import (
    Builder,
    chain_page,
    folder_page,
    make_ep,
    make_errors,
    make_page,
    small_page,
)
from playwright.sync_api import expect

NARROW = {"viewport": {"width": 400, "height": 800}}
LABELS = ["QNN 0", "CPU", "OpenVINO 0", "session", "QNN, compiled"]


def box(page, label):
    return page.locator("[data-box]").filter(has_text=label).first


def operator(page, name):
    return page.locator("[data-node]").filter(has_text=name)


def panel(page):
    return page.locator(".panel")


def test_summary_and_legend_say_where_the_nodes_run(show):
    page = show(small_page())
    assert page.title() == "shufflenet_int8_ctx.onnx"
    assert page.locator("h1").inner_text() == "shufflenet_int8_ctx.onnx"
    summary = page.locator(".summary").inner_text()
    assert summary.startswith(
        "29 nodes: 44.8% on QNN, 31.0% on OpenVINO, 20.7% on the CPU EP"
    )
    assert page.locator(".legend li").all_inner_texts()[:2] == [
        "QNN 13 nodes, 1 partitionsimulated",
        "OpenVINO 9 nodes, 1 partition",
    ]


def test_summary_says_what_is_inside_folded_and_of_what_the_shares_are(show):
    data = small_page()
    data["models"][0] |= {
        "total_nodes": 1_171,
        "inside_nodes": 11,
        "folded_nodes": 3,
        "share_of": "source nodes",
    }
    summary = show(data).locator(".summary").inner_text()
    assert summary.startswith(
        "1,171 nodes, 11 of them inside subgraphs and functions, 3 of them folded: "
        "44.8% on QNN"
    )
    assert "run by the session (of the source's nodes); " in summary


def test_without_shares_the_summary_has_numbers_of_nodes_alone(show):
    data = small_page()
    model = data["models"][0]
    model["share_of"] = None
    for ep in model["eps"]:
        ep["share"] = None
    summary = show(data).locator(".summary").inner_text()
    assert summary.startswith("29 nodes: 13 on QNN, 9 on OpenVINO, 6 on the CPU EP")
    assert "%" not in summary


def test_sections_stand_in_their_order(show):
    page = show(folder_page())
    assert page.locator("h2").all_inner_texts() == [
        "Overview",
        "The cut",
        "Worth a look",
        "Refused",
        "Sizes",
        "Times",
        "Model and checks",
        "Differences",
    ]


def test_boxes_of_partitions_have_the_colour_of_their_own_error(show):
    data = small_page()
    compiled = LABELS.index("QNN, compiled")
    errors = make_errors(compiled, "probabilities") | {"uncompared": [], "note": ""}
    data["models"][0]["errors"] = errors

    page = show(data)

    def colour(label):
        inside = box(page, label).locator("rect").first
        return inside.evaluate("each => getComputedStyle(each).fill")

    assert colour(LABELS[-1]) == "rgb(245, 122, 43)"
    assert colour("QNN 0") == "rgb(141, 211, 199)"
    legend = page.get_by_label("Own errors").inner_text()
    assert legend.splitlines()[1:] == [
        "80 dB or more",
        "60 to 80 dB",
        "50 to 60 dB",
        "40 to 50 dB",
        "30 to 40 dB",
        "20 to 30 dB",
        "less than 20 dB",
    ]
    row = page.locator("#errors tbody tr").inner_text().split("\t")
    assert row[1:] == ["probabilities", "0.0625", "24.0", "0.980000", "0", "0.0625"]
    box(page, LABELS[-1]).click()
    facts = panel(page).inner_text()
    assert "Error of probabilities" in facts
    assert "0.0625 relative, 0.5 at most, 0.125 in the mean; SNR 24.0 dB" in facts
    assert "0 relative, 0 at most, 0 in the mean; SNR inf dB, cosine 1" in facts


def test_partitions_that_were_not_compared_and_other_models_are_said(show):
    data = small_page()
    compiled = LABELS.index("QNN, compiled")
    note = "1 of 2 partitions in e.json are not in this model"
    data["models"][0]["errors"] = make_errors(compiled, note) | {
        "rows": [],
        "uncompared": [{"box": compiled, "reason": "no such value"}],
    }

    page = show(data)

    section = page.locator("#errors")
    assert note in section.inner_text()
    section.locator("summary").click()
    expect(section).to_contain_text("no such value")
    assert "uncompared" in box(page, LABELS[-1]).get_attribute("class")
    assert "not compared" in page.get_by_label("Own errors").inner_text()


def test_section_without_data_is_left_out(show):
    data = small_page()
    data["models"][0] |= {
        "advice": [],
        "refusals": [],
        "timings": None,
        "files": [],
        "payloads": [],
    }
    assert show(data).locator("h2").all_inner_texts() == [
        "The cut",
        "Model and checks",
    ]


@pytest.mark.parametrize(
    "left_out", ["boxes", "nodes", "values", "uses", "eps", "refusals", "facts"]
)
def test_page_is_drawn_with_less_than_the_contract_gives(show, left_out):
    data = small_page()
    if left_out in {"boxes", "nodes"}:
        data["models"] = [{"name": "nothing.onnx"}]
    else:
        del data["models"][0][left_out]
        if left_out == "values":
            del data["models"][0]["uses"]
    page = show(data)
    assert page.locator("h1").count() == 1
    assert page.locator(".failure").count() == 0


def test_cut_shows_each_box_of_the_main_graph_with_its_operators(show):
    page = show(small_page())
    assert page.locator("[data-box] .head").all_text_contents() == [
        f"▸ {label}" if label in {"QNN 0", "CPU", "OpenVINO 0"} else label
        for label in LABELS
    ]
    texts = box(page, "QNN 0").locator("text").all_text_contents()
    assert texts == ["▸ QNN 0", "1.82 ms", "12 operators", "Conv ×6, Relu ×6"]


def test_edges_say_the_bytes_that_cross_and_a_value_counts_once_for_each_reading_box(
    show,
):
    page = show(small_page())
    labels = page.locator(".bytes").all_text_contents()
    assert sorted(labels) == ["16.0 MiB", "3.9 KiB", "784.0 KiB", "784.0 KiB", "?"]


def test_click_expands_a_box_to_its_operators_and_collapses_it_again(show):
    page = show(small_page())
    assert page.locator("[data-node]").count() == 0
    box(page, "CPU").click()
    assert page.locator("[data-node]").count() == 2
    assert operator(page, "/stage1/resize").locator("text").all_text_contents() == [
        "Resize",
        "/stage1/resize",
    ]
    box(page, "CPU").click(position={"x": 20, "y": 15})
    assert page.locator("[data-node]").count() == 0


def test_panel_shows_what_crosses_the_border_of_a_box(show):
    page = show(small_page())
    box(page, "OpenVINO 0").click()
    text = panel(page).inner_text()
    assert "OpenVINOExecutionProvider" in text
    assert "27.8 MiB" in text
    assert "Goes in (2)" in text
    assert "from /stage1/cast" in text
    assert "Comes out (1)" in text
    assert "dynamic shape of the first input (9 nodes)" in text


def test_panel_shows_all_of_an_operator_and_its_links_lead_on(show):
    page = show(small_page())
    box(page, "CPU").click()
    operator(page, "/stage1/cast").click()
    text = panel(page).inner_text()
    for expected in [
        "Cast",
        "dynamic shape of the first input",
        "/stage1/resize:0",
        "784.0 KiB",
        "float[?,64,112,112] · ?",
    ]:
        assert expected in text
    panel(page).get_by_role("button", name="/stage2/left.0").click()
    expect(operator(page, "/stage2/left.0")).to_have_class("node chosen")
    assert panel(page).locator("h3").inner_text() == "MatMul"


def test_panel_shows_what_is_known_of_a_compiled_node(show):
    data = small_page()
    name = data["models"][0]["payloads"][0]["node"]
    node = data["models"][0]["nodes"]["name"].index(name)
    facts = [("Payload", "shufflenet_int8_qnn.bin"), ("Primary", "yes")]
    data["models"][0]["contexts"] = [
        {"node": node, "facts": [{"name": n, "value": v} for n, v in facts]}
    ]
    page = show(data)
    box(page, "QNN, compiled").click()

    rows = panel(page).locator("dl")
    assert rows.last.locator("dt").all_inner_texts() == [name for name, _ in facts]
    assert rows.last.locator("dd").all_inner_texts() == [value for _, value in facts]
    assert "Weights" not in panel(page).inner_text()
    assert panel(page).inner_text().count(name) == 1


def test_subgraph_opens_from_its_owner_and_the_breadcrumb_leads_back(show):
    page = show(small_page())
    box(page, "session").click()
    panel(page).get_by_role("button", name="Open the subgraph else_branch").click()
    assert page.locator(".crumbs").inner_text() == "main › else_branch"
    assert page.locator("[data-box]").count() == 1
    page.locator(".crumbs button").click()
    assert page.locator("[data-box]").count() == 5
    assert "/choose" in panel(page).inner_text()


def test_search_finds_nodes_operators_and_values(show):
    page = show(small_page())
    field = page.get_by_role("searchbox")
    field.fill("RESIZE")
    results = page.locator(".results li")
    expect(results).to_have_count(2)
    assert results.all_inner_texts() == [
        "Resize /stage1/resize",
        "value /stage1/resize:0",
    ]
    field.fill("matmul")
    expect(results).to_have_count(6)
    field.fill("no such thing")
    expect(page.locator(".results p")).to_have_text("0 results")


def test_result_of_a_search_is_revealed_in_its_expanded_box(show):
    page = show(small_page())
    page.get_by_role("searchbox").fill("softmax")
    page.locator(".results button").nth(1).click()
    expect(operator(page, "softmax")).to_be_in_viewport()
    assert page.locator(".crumbs").inner_text() == "main › else_branch"
    assert panel(page).locator("code").first.inner_text() == "/else_branch/softmax"


def test_page_is_used_by_keyboard_alone(show):
    page = show(small_page())
    page.keyboard.press("/")
    page.keyboard.type("/stage1/relu.5")
    page.keyboard.press("Enter")
    expect(operator(page, "/stage1/relu.5")).to_have_class("node chosen")
    for key, title in [
        ("ArrowUp", "Conv"),
        ("Escape", "QNN 0"),
        ("Enter", "QNN 0"),
        ("ArrowDown", "CPU"),
        ("ArrowDown", "OpenVINO 0"),
        ("Enter", "OpenVINO 0"),
        ("ArrowDown", "MatMul"),
        ("ArrowRight", "MatMul"),
        ("ArrowDown", "Add"),
        ("Escape", "OpenVINO 0"),
    ]:
        page.keyboard.press(key)
        assert panel(page).locator("h3").inner_text() == title, key
    assert page.locator(".frame").get_attribute("aria-activedescendant") == "box-2"
    assert page.locator("[data-node]").count() == 9
    page.keyboard.press("Escape")
    assert panel(page).locator("h3").inner_text() == "main"


def test_tab_leads_from_the_search_over_the_buttons_to_the_graph(show):
    page = show(small_page())
    page.keyboard.press("/")
    reached = []
    for _ in range(4):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.textContent.slice(0, 3) || document.activeElement.className"
            )
        )
    assert reached[:3] == ["−", "+", "fit"]
    page.keyboard.press("ArrowDown")
    assert panel(page).locator("h3").inner_text() == "QNN 0"
    page.keyboard.press("Enter")
    assert page.locator("[data-node]").count() == 12


def test_escape_leaves_the_search(show):
    page = show(small_page())
    page.keyboard.press("/")
    page.keyboard.type("conv")
    expect(page.locator(".results")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".results")).to_be_hidden()
    assert page.get_by_role("searchbox").input_value() == ""


LINES_OF_WORDS = """elements => elements.flatMap(({firstChild}) => {
  if (firstChild.data.includes(" ")) return [];
  const range = document.createRange();
  range.selectNodeContents(firstChild);
  return [[firstChild.data, range.getClientRects().length]];
})"""


def test_words_are_not_broken_and_the_largest_numbers_of_operators_are_kept(show):
    data = small_page()
    ops = data["models"][0]["nodes"]["ops"]
    ops[ops.index("Conv")] = "DequantizeLinear"
    ops[ops.index("Relu")] = "QuantizeLinear"
    state = "unused on this machine because its driver is older than the one that compiled it"
    data["models"][0]["payloads"][0]["state"] = state
    page = show(data, **NARROW)

    drawn = box(page, "QNN 0").locator("text").all_text_contents()
    assert drawn[-1] == "DequantizeLinear ×6, …"
    assert state in page.locator("#sizes").inner_text()
    words = page.locator("#sizes :is(code, bdi)").evaluate_all(LINES_OF_WORDS)
    assert [text for text, _ in words][:2] == [
        "shufflenet_int8_ctx.onnx",
        "shufflenet_int8_qnn.bin",
    ]
    assert [text for text, lines in words if lines > 1] == []


def test_model_without_checks_has_no_heading_that_promises_them(show):
    data = small_page()
    data["models"][0] |= {"verdict": None, "findings": []}
    assert show(data).locator("h2").last.inner_text() == "Model"


FOCUS = """() => {
  const {className, textContent} = document.activeElement;
  return className === "frame" ? "frame" : textContent;
}"""


def test_focus_stays_where_the_keyboard_was_used(show):
    page = show(small_page())
    page.locator(".frame").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    for label in ["Collapse", "Expand", "Collapse"]:
        page.keyboard.press("Enter")
        assert page.evaluate(FOCUS) == label


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (".panel", "Open the subgraph else_branch"),
        (".panel", "/stage2/add.2"),
        ("#advice", "CPU"),
        ("#refused", "/stage2/add.2"),
    ],
)
def test_link_leads_the_focus_to_the_graph(show, place, name):
    page = show(small_page())
    box(page, "session").click()
    page.locator("#refused summary").first.click()
    page.locator(place).get_by_role("button", name=name).first.press("Enter")
    assert page.evaluate(FOCUS) == "frame"
    expect(page.locator(".frame")).to_be_in_viewport()


def test_crumb_leads_the_focus_to_the_graph(show):
    page = show(small_page())
    box(page, "session").click()
    panel(page).get_by_role("button", name="Open the subgraph else_branch").click()
    page.locator(".crumbs button").press("Enter")
    assert page.evaluate(FOCUS) == "frame"


def test_table_has_its_name_and_is_a_tab_stop_only_where_it_overflows(show):
    page = show(small_page())
    payloads = page.get_by_role("group", name="Payloads")
    expect(payloads).not_to_have_attribute("tabindex", "0")
    page.set_viewport_size({"width": 400, "height": 800})
    expect(payloads).to_have_attribute("tabindex", "0")


def test_refusals_are_ordered_by_their_nodes_each_of_which_is_revealed(show):
    page = show(small_page())
    summaries = page.locator("#refused summary")
    assert summaries.all_inner_texts() == [
        "dynamic shape of the first input 10 nodes, 1 of them because a node that they serve is refused",
        "Resize with mode 'cubic' is not supported 1 node",
        "If is run by the session 1 node",
    ]
    summaries.first.click()
    page.locator("#refused").get_by_role("button", name="/stage2/add.2").click()
    expect(operator(page, "/stage2/add.2")).to_have_class("node chosen")
    expect(operator(page, "/stage2/add.2")).to_be_in_viewport()


def test_advice_leads_to_the_box_that_it_is_about(show):
    page = show(small_page())
    page.locator("#advice").get_by_role("button", name="CPU").click()
    assert "chosen" in box(page, "CPU").get_attribute("class")


def test_tables_show_sizes_times_and_differences(show):
    page = show(folder_page())
    assert (
        "shufflenet_int8_qnn.bin\t28.5 MiB\t2 payloads of QNN"
        in page.locator("#sizes").inner_text()
    )
    assert "load\tmodel\t41.20 ms" in page.locator("#times").inner_text()
    differences = page.locator("#differences")
    assert "node 1 difference" in differences.inner_text()
    assert "/stage1/resize\tResize\tnone" in differences.inner_text()
    assert "3 further differences left out." in differences.inner_text()


def test_differences_begin_with_a_comparison_of_both_cuts(show):
    data = folder_page()
    row = {"name": "Nodes on the CPU EP", "first": "6", "second": "2", "change": "−4"}
    data["differences"] |= {"summary": [row], "rows": [], "left_out": 0}
    page = show(data)
    assert page.locator("#differences th").all_inner_texts() == [
        "",
        "shufflenet_int8_ctx.onnx",
        "decoder_ctx.onnx",
        "Change",
    ]
    cells = page.locator("#differences td").all_inner_texts()
    assert cells == list(row.values())
    assert "do not differ" not in page.locator("#differences").inner_text()


def test_many_differences_are_opened_by_a_click(show):
    page_data = folder_page()
    (row,) = page_data["differences"]["rows"]
    page_data["differences"]["rows"] = [
        {**row, "name": f"n{number}"} for number in range(41)
    ]
    page = show(page_data)

    assert "n40" not in page.locator("#differences").inner_text()
    page.get_by_text("41 differences").click()
    expect(page.locator("#differences")).to_contain_text("n40")


def test_folder_begins_with_a_table_of_its_models_which_leads_to_each(show):
    data = folder_page()
    data["models"][1] |= {"label": "b/decoder_ctx.onnx", "verdict": None}
    page = show(data)
    rows = page.locator("#overview tbody tr")
    assert rows.nth(0).inner_text().split("\t")[:5] == [
        "shufflenet_int8_ctx.onnx",
        "29",
        "2",
        "QNN\u00a013, OpenVINO\u00a09, CPU\u00a06, session\u00a01",
        "4.6 MiB",
    ]
    assert rows.nth(0).inner_text().endswith("; 1 error, 1 warning")
    assert rows.nth(1).inner_text().endswith("\t1 error, 1 warning")

    rows.nth(1).get_by_role("button", name="b/decoder_ctx.onnx").press("Enter")
    assert page.locator(".model-name").inner_text() == "b/decoder_ctx.onnx"
    assert page.get_by_role("combobox", name="Model").input_value() == "1"
    expect(page.locator(".model")).to_be_focused()


def test_model_that_could_not_be_read_shows_its_error_only(show):
    data = folder_page()
    error = "damaged.onnx is no ONNX model: byte 17"
    data["models"].append({"name": "damaged.onnx", "bytes": 17, "error": error})
    page = show(data)
    assert error in page.locator("#overview tr").last.inner_text()

    page.get_by_role("combobox", name="Model").select_option("damaged.onnx")
    assert error in page.locator(".model").inner_text()
    assert page.locator(".model section").count() == 0
    page.keyboard.press("/")
    page.emulate_media(media="print")
    page.emulate_media(media="screen")
    page.get_by_role("combobox", name="Model").select_option(index=0)
    assert page.locator("[data-box]").count() == 5


def test_other_model_of_a_folder_is_chosen(show):
    page = show(folder_page())
    box(page, "CPU").click()
    page.get_by_role("combobox", name="Model").select_option("decoder_ctx.onnx")
    assert page.locator(".model-name").inner_text() == "decoder_ctx.onnx"
    assert page.locator("[data-box]").count() == 5
    assert page.locator("[data-node]").count() == 0
    page.get_by_role("combobox", name="Model").select_option("shufflenet_int8_ctx.onnx")
    assert page.locator("[data-node]").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_contrast_with_their_ground(show, scheme):
    page = show(small_page(), color_scheme=scheme)
    page.locator("summary").first.click()
    ratios = page.evaluate(CONTRASTS)
    assert len(ratios) > 12
    assert [entry for entry in ratios if entry[1] < 4.5] == []


@pytest.mark.parametrize("width", [400, 860, 1280])
def test_page_is_as_wide_as_the_window_and_the_graph_scrolls_in_its_frame(show, width):
    page = show(folder_page(), viewport={"width": width, "height": 800})
    box(page, "OpenVINO 0").click()
    page.get_by_label("Zoom in").click(click_count=5)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(
        "(({scrollWidth, clientWidth}) => scrollWidth > clientWidth)(document.querySelector('.frame'))"
    )


def test_panel_is_below_the_graph_in_a_narrow_window(show):
    page = show(small_page(), **NARROW)
    frame, aside = page.locator(".framed").bounding_box(), panel(page).bounding_box()
    assert aside["y"] >= frame["y"] + frame["height"]


def test_print_shows_the_whole_small_graph_and_every_list_without_controls(show):
    page = show(small_page(), viewport={"width": 700, "height": 500})
    box(page, "CPU").click()
    page.emulate_media(media="print")
    page.wait_for_selector(".cut.whole")
    expect(page.locator("[data-box]")).to_have_count(5)
    expect(page.locator("details:not([open])")).to_have_count(0)
    expect(page.locator(".tools")).to_be_hidden()
    drawing, frame = (
        page.locator(".cut-drawing").bounding_box(),
        page.locator(".framed").bounding_box(),
    )
    assert drawing["height"] <= frame["height"] + 1
    assert page.locator("#refused .nodes li").count() == 12
    page.emulate_media(media="screen")
    expect(page.locator(".tools")).to_be_visible()
    # A listener of the page closes them, some time after the medium has changed.
    expect(page.locator("#refused details[open]")).to_have_count(0)


def test_print_of_a_graph_too_wide_for_paper_lists_its_boxes(show):
    builder = Builder("wide.onnx")
    builder.model["eps"] = [make_ep("QNNExecutionProvider")]
    first = builder.node("Conv", "first", builder.box(0, 0), [])
    value = builder.value(first)
    for partition in range(1, 21):
        builder.node("Relu", f"r{partition}", builder.box(0, partition), [value])
    page = show(make_page(builder.finish()))
    expect(page.locator(".paper")).to_be_hidden()
    page.emulate_media(media="print")

    rows = page.locator(".paper tbody tr")
    expect(rows).to_have_count(21)
    assert rows.last.inner_text().split("\t") == [
        "21",
        "QNN\u00a020",
        "1",
        "Relu",
        "1\u00a0(784.0\u00a0KiB)",
    ]
    expect(page.locator(".frame")).to_be_hidden()
    expect(page.locator(".keys")).to_be_hidden()
    page.emulate_media(media="screen")
    expect(page.locator(".frame")).to_be_visible()
    expect(rows).to_have_count(0)


def test_head_of_an_open_box_stays_in_view_and_collapses_it(show):
    page = show(chain_page(200))
    head = page.locator(".open-head")
    page.locator("[data-box]").click()
    expect(head).to_be_hidden()
    page.locator(".frame").evaluate("frame => { frame.scrollTop = 5_000; }")
    expect(head).to_have_text("▾ QNN 0, 200 operators")
    expect(head).to_be_in_viewport()

    head.click()
    assert page.locator("[data-node]").count() == 0
    expect(head).to_be_hidden()
    assert page.evaluate(FOCUS) == "frame"


def test_fit_shows_the_whole_of_a_long_graph(show):
    page = show(chain_page(300))
    page.locator("[data-box]").click()
    page.get_by_role("button", name="fit").click()
    size = "({scrollWidth: a, clientWidth: b, scrollHeight: c, clientHeight: d}) => [a - b, c - d]"
    assert page.locator(".frame").evaluate(size) == [0, 0]
    assert page.locator(".open-head").inner_text() == "▾ QNN 0, 300 operators"


def test_print_is_light_in_dark_mode_too(show):
    page = show(small_page(), color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) != "rgb(255, 255, 255)"
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"


CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const ground = getComputedStyle(document.body).backgroundColor;
  const found = [];
  for (const svg of document.querySelectorAll(".box")) {
    const fill = getComputedStyle(svg.querySelector("rect")).fill;
    for (const text of svg.querySelectorAll("text")) {
      const own = getComputedStyle(text);
      found.push([text.textContent, ratio(paint([ground, fill]), paint([own.fill]))]);
    }
  }
  for (const element of document.querySelectorAll("h1, h2, p, .link, .hint, .type, .severity, dt, dd, td, .simulated, .count")) {
    const behind = [];
    for (let up = element; up; up = up.parentElement) behind.unshift(getComputedStyle(up).backgroundColor);
    found.push([element.textContent.slice(0, 40), ratio(paint(behind), paint([getComputedStyle(element).color]))]);
  }
  return found;
}"""
