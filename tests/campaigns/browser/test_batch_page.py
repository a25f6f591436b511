"""The page of a batch in Chromium: nothing is blocked, head and models stay in sight, and
failed ones can be looked at alone.
"""

from __future__ import annotations

import time

import pytest
from browser.samples import HOSTILE
from epctx_batch import BatchResult, TaskError, TaskResult
from epctx_batch.page import write_page
from playwright.sync_api import expect


def write_batch(folder, models, targets, *, failed=("model 1",), message="it failed."):
    """Write the page of a batch in which some models fail for their first target."""
    tasks = []
    for model in models:
        for target in targets:
            is_failed = model in failed and target == targets[0]
            error = TaskError(code="EP_FAIL", message=message, hint="")
            task = TaskResult(
                id=f"task-{len(tasks):08x}",
                model=model,
                target=target,
                state="failed" if is_failed else "done",
                was_cached=False,
                seconds=1.5,
                nodes={"QNNExecutionProvider": 3},
                output=None,
                bytes=2048,
                error=error if is_failed else None,
                versions={},
            )
            tasks.append(task)
    batch = BatchResult(
        fleet=str(folder / "fleet.toml"), output=str(folder), ok=False, tasks=tasks
    )
    return write_page(batch)


@pytest.fixture
def show(browser):
    """Shows a file; afterwards nothing was requested, logged or asked by it."""
    noted, pages = [], []

    def show_file(path, width=1280, **options):
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda message: noted.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noted.append(f"error: {error}"))
        page.on("dialog", lambda dialog: noted.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: request.url == path.as_uri() or noted.append(request.url),
        )
        page.goto(path.as_uri())
        return page

    yield show_file
    for page in pages:
        page.close()
    assert noted == []


@pytest.mark.parametrize("width", [400, 1280])
def test_head_and_models_stay_in_sight(show, tmp_path, width):
    models = [f"model {n}" for n in range(100)]
    path = write_batch(tmp_path, models, [f"target {n}" for n in range(20)])

    page = show(path, width)
    page.locator(".scrolled").evaluate("box => box.scrollTo(900, 1500)")

    box = page.locator(".scrolled").bounding_box()
    head = page.locator("thead th").nth(10).bounding_box()
    model = page.locator("tbody th").nth(50).bounding_box()
    assert head["y"] == pytest.approx(box["y"], abs=2)
    assert model["x"] == pytest.approx(box["x"], abs=2)
    assert model["width"] < width / 2
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_failed_ones_are_shown_alone_without_a_script(show, tmp_path):
    path = write_batch(tmp_path, ["model 0", "model 1", "model 2"], ["phone"])

    page = show(path, java_script_enabled=False)
    page.get_by_label("only models with failed tasks").check()

    expect(page.locator("tbody tr:visible")).to_have_count(1)
    assert "it failed." in page.locator("tbody tr:visible").inner_text()


@pytest.mark.parametrize("width", [400, 1280])
def test_no_text_widens_the_page_or_becomes_markup(show, tmp_path, width):
    path = write_batch(
        tmp_path, HOSTILE, HOSTILE, failed=HOSTILE, message=" ".join(HOSTILE)
    )

    page = show(path, width)

    assert page.locator("script, img, svg, iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_dark_system_gets_a_dark_page_and_paper_a_light_one(show, tmp_path):
    page = show(write_batch(tmp_path, ["model 1"], ["phone"]), color_scheme="dark")
    colour = "getComputedStyle(document.body).backgroundColor"

    assert page.evaluate(colour) == "rgb(22, 25, 29)"
    page.emulate_media(media="print")
    assert page.evaluate(colour) == "rgb(255, 255, 255)"


def test_2000_models_for_20_targets_are_shown(show, tmp_path):
    models = [f"models/network_{n:04}.onnx" for n in range(2000)]
    path = write_batch(tmp_path, models, [f"target {n}" for n in range(20)])

    start = time.monotonic()
    page = show(path)
    expect(page.locator("tbody tr").last).to_be_attached()
    print(f"\n2,000 models for 20 targets: {time.monotonic() - start:.1f} s")

    assert page.locator("td").count() == 40_000
