"""Writes a page of the test data, to be looked at: `python tests/campaigns/browser/write_sample.py
alternating page.html`; without arguments it lists the samples.
"""

from __future__ import annotations

import sys
from pathlib import Path

from epctx_report.page import assemble
from samples import PAGES


def main(arguments: list[str]) -> None:
    if len(arguments) != 2 or arguments[0] not in PAGES:
        raise SystemExit(f"usage: write_sample.py {{{','.join(PAGES)}}} PAGE.html")
    name, target = arguments
    Path(target).write_text(assemble(PAGES[name]()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
