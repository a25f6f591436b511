"""Numbers of a run, as a page of docs/ has them between two markers."""

from __future__ import annotations

import platform
import sys
from collections import Counter
from importlib.metadata import distributions
from typing import TYPE_CHECKING

import onnx
from conformance import shares
from conformance.catalogue import TWINS
from conformance.twins import read_index
from support.pages import FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from epctx_conformance.cases.case import Case
    from epctx_onnxruntime.checking.result import Result

PAGES = {
    "conformance": FILES["conformance-results.md"],
    "zoo": FILES["zoo.md"],
    "hosts": FILES["programs-of-others.md"],
}
"""The page of each block."""

LIBRARIES = ("onnx", "onnxruntime", "numpy", "onnxruntime-qnn", "openvino")
COLUMNS = {
    "passed": ("passed",),
    "wrong": ("wrong",),
    "differs": ("differs",),
    "refused": ("refused", "raised"),
    "crashed": ("crashed", "hung"),
    "claimed": ("claimed",),
    "not claimed": ("unclaimed",),
}
"""Columns, and the outcomes that they count; `claimed` counts cases of which EPs took a
node.
"""


def write(
    results: Sequence[Result], suites: Mapping[str, Mapping[str, Case]], *, block: str
) -> None:
    """Replace the numbers of a block of its page.

    Args:
        results: of a run.
        suites: the cases that ran, by suite.
        block: name of the block, which stands in its markers.

    Raises:
        ValueError: the page does not have the block.
    """
    write_block(block, describe(results, suites))


def write_block(block: str, text: str) -> None:
    """Replace the text of a block of its page.

    Raises:
        ValueError: the page does not have the block.
    """
    begin, end = f"<!-- {block}: begin -->\n", f"<!-- {block}: end -->"
    if block not in PAGES:
        raise ValueError(f"no page has the block {block!r}")
    path = PAGES[block]
    page = path.read_text("utf-8")
    before, begin, rest = page.partition(begin)
    _, end, after = rest.partition(end)
    if not end:
        raise ValueError(f"{path.name} lacks the block {block!r}")
    path.write_text(f"{before}{begin}{text}\n{end}{after}", "utf-8")


def describe(
    results: Sequence[Result], suites: Mapping[str, Mapping[str, Case]]
) -> str:
    """Return a table for each suite, the versions, and what all suites together
    show.
    """
    parts = []
    for suite, cases in suites.items():
        of_suite = [result for result in results if result.case in cases]
        count = len({result.case for result in of_suite})
        parts.append(f"\nSuite `{suite}`, {count:,} cases:\n\n{_table(of_suite)}")
        if suite == "twins" and (index := read_index(TWINS)):
            parts.append(f"\n{shares.describe(results, index)}\n")
    facts = "\n".join(f"- {line}" for line in summarise(results, suites))
    return f"{_versions()}\n{''.join(parts)}\n{facts}"


def _table(results: Iterable[Result]) -> str:
    counts = Counter(
        (r.route, what)
        for r in results
        for what in (r.outcome, "claimed" * bool(r.claimed))
    )
    rows = [("route", *COLUMNS), ("---", *["---:"] * len(COLUMNS))]
    for route in dict.fromkeys(route for route, _ in counts):
        numbers = [
            sum(counts[route, outcome] for outcome in outcomes)
            for outcomes in COLUMNS.values()
        ]
        rows.append((f"`{route}`", *(f"{number:,}" for number in numbers)))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _versions() -> str:
    found = {
        name: next((d.version for d in distributions(name=name)), "")
        for name in LIBRARIES
    }
    names = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return (
        f"{names}; CPython {platform.python_version()} on {sys.platform}, "
        f"{platform.machine()}."
    )


def summarise(
    results: Sequence[Result], suites: Mapping[str, Mapping[str, Case]]
) -> list[str]:
    """Return what a run has to show, a sentence each."""
    alone = {
        result.case
        for result in results
        if result.route == "onnxruntime.direct" and _passed(result)
    }
    routes = {result.route for result in results}
    lines = []
    if {"onnxruntime.direct", "cpu.direct"} <= routes:
        lost = sum(
            r.route == "cpu.direct" and r.case in alone and not _passed(r)
            for r in results
        )
        lines.append(
            f"{lost} cases that onnxruntime passes are failed by the CPU EP "
            "(`cpu.direct`)."
        )
    through = [r for r in results if not r.route.endswith(".direct") and r.claimed]
    differ = sum(r.outcome == "differs" for r in through)
    lines.append(
        f"{differ} of {len(through):,} runs over context models have other bits than "
        "the direct ones."
    )
    for eps in ("greedy", "turns"):
        if any(route.startswith(f"{eps}.") for route in routes):
            blamed = sum(
                r.route.startswith(f"{eps}.") and r.kind == "PluginError"
                for r in results
            )
            lines.append(f"{blamed} `PluginError`s on the routes of `{eps}`.")
    refused = {
        r.case for r in results if (r.outcome, r.kind) == ("refused", "InvalidGraph")
    }
    valid = sum(
        _is_valid(cases[name].model())
        for cases in suites.values()
        for name in refused & set(cases)
    )
    lines.append(
        f"{valid} of {len(refused)} cases refused as `InvalidGraph` are valid by "
        "ONNX's full check."
    )
    aliased = sum(r.kind in {"aliasing", "inputs"} for r in results)
    lines.append(f"{aliased} second runs changed an input or the first run's outputs.")
    return lines


def _passed(result: Result) -> bool:
    return result.outcome == "passed"


def _is_valid(model: bytes) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # noqa: BLE001 - a checker's, of several classes
        return False
    return True
