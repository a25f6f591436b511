"""Picture of a report page for README.md: `python tests/campaigns/browser/take_picture.py PAGE.html
docs/images/report.png`, with the page that `make demo` ends with.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SIZE = {"width": 1000, "height": 760}


def main(arguments: list[str]) -> None:
    """Take the picture of a page, with its third box open."""
    if len(arguments) != 2:
        raise SystemExit("usage: take_picture.py PAGE.html PICTURE.png")
    source, picture = map(Path, arguments)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox"],
        )
        page = browser.new_page(viewport=SIZE)
        page.goto(source.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        page.locator("[data-box]").nth(2).click()
        page.mouse.move(0, 0)
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
