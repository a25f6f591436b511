"""The table of drop-in-names.md, made by a run of `every_name.py` under onnxruntime
and under the drop-in; `make tables` writes it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[4] / "tests"))

from drop_in.differences import DIFFERENCES
from support.pages import FILES

HERE = Path(__file__).parent
PAGE = FILES["drop-in-names.md"]
BEGIN, END = "<!-- names: begin -->\n", "<!-- names: end -->"
DROP_IN = ("-m", "epctx_onnxruntime")
SAME, DIFFERS, UNSUPPORTED = "same", "differs", "not supported"


@cache
def run_program(*launcher: str) -> dict[str, Any]:
    """Return what `every_name.py` prints, run by the interpreter with a launcher."""
    done = subprocess.run(
        [sys.executable, *launcher, str(HERE / "every_name.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def agrees(real: Any, ours: Any) -> bool:
    """Return whether a program sees no difference: results are equal, and errors can be
    caught as all that onnxruntime's can be caught as.
    """
    if isinstance(real, dict) and isinstance(ours, dict) and "caught as" in real:
        return set(real["caught as"]) <= set(ours.get("caught as", ()))
    if isinstance(real, list) and isinstance(ours, list):
        return len(real) == len(ours) and all(map(agrees, real, ours))
    return bool(real == ours)


def is_error(result: Any) -> bool:
    return isinstance(result, dict) and "error" in result


def outcomes() -> dict[str, str]:
    """Return what came of each use: same, differs, or not supported."""
    real, ours = run_program(), run_program(*DROP_IN)
    return {
        use: SAME
        if agrees(real[use], ours[use])
        else UNSUPPORTED
        if is_error(ours[use])
        else DIFFERS
        for use in real
    }


def make_table() -> str:
    """Return the numbers, and a line for each class and outcome, or reason."""
    found = outcomes()
    counts = {
        outcome: sum(each == outcome for each in found.values())
        for outcome in (SAME, DIFFERS, UNSUPPORTED)
    }
    rows: dict[tuple[str, str, str], list[str]] = {}
    for use, outcome in sorted(found.items()):
        name, _, case = use.partition(": ")
        if outcome == SAME and case:
            continue  # Its name has a line.
        cls, _, attribute = name.rpartition(".")
        shown = f"`{attribute}`" + (f" ({case})" if case else "")
        reason = DIFFERENCES.get(use, "")
        rows.setdefault((cls, outcome, reason), []).append(shown)
    lines = [
        f"| {f'`{cls}`' if cls else 'the module'} | {', '.join(names)} | {outcome} | "
        f"{reason} |"
        for (cls, outcome, reason), names in rows.items()
    ]
    numbers = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    head = ["| of | name (special use) | result | reason |", "|---|---|---|---|"]
    # Plain sorting puts the module first.
    ordered = sorted(lines, key=lambda line: (line[2] == "`", line.partition(" | ")[0]))
    return "\n".join([f"{len(found)} uses: {numbers}.\n", *head, *ordered, ""])


def with_table(page: str) -> str:
    """Return the text of the page with the table of a run."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, "the page lacks the markers"
    return f"{before}{begin}{make_table()}{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text("utf-8")), "utf-8")
