"""Pages of real models show what the JSON of the same report says."""

from __future__ import annotations

import pytest
from epctx_report import make_report
from support.folders import MODELS, REAL

from epctx_core import ModelCompiler, SessionOptions

BERT = MODELS / "bert" / "model.onnx"
SUFFIX = "ExecutionProvider"


def with_eps(*names):
    options = SessionOptions()
    for name in names:
        options.add_provider(name)
    return options


@pytest.fixture(scope="module")
def context_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("bert") / "bert_ctx.onnx"
    ModelCompiler(with_eps("OpenVINO"), BERT).compile_to_file(path)
    return path


@pytest.fixture(params=["plain", "two EPs", "context", "vendors", "two models"])
def report(request, context_model):
    """A report of each kind."""
    makers = {
        "plain": lambda: make_report(BERT, sess_options=with_eps("OpenVINO")),
        "two EPs": lambda: make_report(BERT, sess_options=with_eps("VitisAI", "QNN")),
        "context": lambda: make_report(context_model),
        "vendors": lambda: make_report(REAL),
        "two models": lambda: make_report(context_model, BERT),
    }
    return makers[request.param]()


def test_a_page_shows_the_numbers_of_the_json(report, show):
    page = show(report.html())

    models = report.summary()
    for number, model in enumerate(models):
        if len(models) > 1:
            page.get_by_role("combobox", name="Model").select_option(index=number)
        assert page.locator("h1").inner_text() == report.data["title"]
        check_eps(page, model)
        check_cut(page, model)
        check_refusals(page, model)
        titles = page.locator("#advice h3").all_inner_texts()
        assert titles == [advice.title for advice in model.advice]
        verdict = model.verdict
        assert verdict is None or verdict in page.locator("#checks").inner_text()
    if report.differences is not None:
        counts = page.locator("#differences summary .count").all_inner_texts()
        assert sum(int(text.split()[0]) for text in counts) == report.differences


def check_eps(page, model):
    legend = page.locator(".legend li").all_inner_texts()
    assert len(legend) == len(model.eps)
    for text, ep in zip(legend, model.eps, strict=True):
        nodes = "node" if ep.nodes == 1 else "nodes"
        assert text.startswith(f"{ep.name.removesuffix(SUFFIX)} {ep.nodes} {nodes}")
        assert ("simulated" in text) == ep.simulated


def check_cut(page, model):
    size = page.locator(".panel").inner_text()
    boxes = "box" if model.boxes == 1 else "boxes"
    drawn = model.nodes - model.folded_nodes
    nodes = "node" if drawn == 1 else "nodes"
    assert f"{drawn} {nodes} in {model.boxes} {boxes}" in size
    page.get_by_role("button", name="fit").click()
    assert page.locator("[data-box]").count() == model.boxes


def check_refusals(page, model):
    counts = page.locator("#refused summary .count").all_inner_texts()
    found = sorted(int(text.split()[0].replace(",", "")) for text in counts)
    assert found == sorted(refusal.nodes for refusal in model.refusals)


def test_a_partition_opens_to_all_its_operators(show):
    page = show(make_report(BERT, sess_options=with_eps("OpenVINO")).html())

    page.locator("[data-box]").filter(has_text="OpenVINO 0").first.click()
    page.get_by_role("button", name="fit").click()

    # Of 31 nodes 3 are folded.
    assert page.locator("[data-node]").count() == 28
