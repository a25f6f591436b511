"""Fixtures for tests of pages in Debian's Chromium: a browser, and pages of which each
console message, dialog and request is noted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from epctx_report.page import assemble
from playwright.sync_api import Browser, Page, sync_playwright

Show = Callable[..., Page]
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    # It would ask for updates and for hosts of its maker.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        pytest.fail("Chromium was not found: apt-get install chromium, or set CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Shows data, or a page that is assembled already; afterwards nothing was requested, logged or asked by it."""
    noted: list[str] = []
    pages: list[Page] = []

    def show_data(data: dict[str, Any] | str, **options: Any) -> Page:
        path = tmp_path / f"page{len(pages)}.html"
        text = data if isinstance(data, str) else assemble(data)
        path.write_text(text, encoding="utf-8")
        options = {"viewport": {"width": 1280, "height": 900}} | options
        page = browser.new_page(**options)
        pages.append(page)
        page.on("console", lambda message: noted.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noted.append(f"error: {error}"))
        page.on("dialog", lambda dialog: noted.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                request.url == path.as_uri() or noted.append(f"request: {request.url}")
            ),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield show_data
    for page in pages:
        page.close()
    assert noted == []
