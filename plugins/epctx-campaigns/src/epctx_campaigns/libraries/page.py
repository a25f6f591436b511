"""Report of a check as one HTML page, which needs nothing else: no script, no
network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from epctx_campaigns.libraries.report import Verdict, judge
from epctx_campaigns.libraries.ways import WAYS

if TYPE_CHECKING:
    from epctx_campaigns.libraries.report import LibraryReport
    from epctx_campaigns.routes import Result

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --CRASH: #b3261e; --WRONG: #b3261e;
  --REFUSED: #946200; --PASS: #1b6e3c; --UNSUPPORTED: #666; }
@media (prefers-color-scheme: dark) { :root { --CRASH: #ff8a80; --WRONG: #ff8a80;
  --REFUSED: #ffca6a; --PASS: #7fd89b; --UNSUPPORTED: #aaa; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 76rem;
  padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; overflow-wrap: normal; }
th, td { border-bottom: 1px solid var(--line); padding: .2rem .6rem .2rem 0;
  text-align: left; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums;
  padding-left: .4rem; padding-right: .4rem; }
td.zero { opacity: .35; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem;
  margin: 0; }
dd { margin: 0; min-width: 0; }
details { border-bottom: 1px solid var(--line); padding: .3rem 0; }
summary { cursor: pointer; }
code, pre { font: .85rem/1.4 ui-monospace, monospace; }
pre { white-space: pre-wrap; margin: .4rem 0; }
@media (max-width: 40rem) { body { font-size: 15px; } th, td { font-size: .8rem; }
  dl { grid-template-columns: 1fr; } dt { font-weight: 600; } }
"""


def make_page(report: LibraryReport) -> str:
    """Return the page."""
    name = report.subject.provider.name
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Check of {escape(name)}</title>",
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            f"<h1>Check of {escape(name)}</h1>",
            *_introduce(report),
            *_show_ways(report),
            *_show_faults(report),
            *_show_lost_nodes(report),
            *_show_operators(report),
            *_show_passed(report),
            "</body>",
            "</html>",
            "",
        )
    )


def _introduce(report: LibraryReport) -> Iterator[str]:
    subject = report.subject
    facts = {"library": subject.library, **report.facts}
    if subject.options:
        facts["options"] = ", ".join(
            f"{key}={value}" for key, value in subject.options.items()
        )
    if subject.tolerance:
        facts["tolerance"] = (
            f"{subject.tolerance:g} of the largest expected number, beside each "
            "case's own"
        )
    if subject.without:
        facts["abilities not asked for"] = ", ".join(subject.without)
    yield f"<p><strong>{_summarise(report)}</strong></p>"
    yield "<dl>"
    yield from (
        f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>"
        for key, text in facts.items()
        if text
    )
    yield "</dl>"
    yield f"<pre>{escape(report.reproduce())}</pre>"


def _summarise(report: LibraryReport) -> str:
    counts = Counter(report.cases.values())
    told = ", ".join(f"{counts[verdict]} {verdict.name}" for verdict in Verdict)
    return f"{len(report.cases)} cases: {told}."


def _show_ways(report: LibraryReport) -> Iterator[str]:
    yield "<h2>Outcomes</h2>"
    yield from _make_table(("way", *(v.name for v in Verdict)), report.count_ways())
    yield "<dl>"
    for verdict in Verdict:
        yield f"<dt>{verdict.name}</dt><dd>{escape(verdict.value)}</dd>"
    for way in report.ways:
        yield f"<dt>{way}</dt><dd>{escape(WAYS[way])}</dd>"
    yield "<dt>cases</dt><dd>the worst outcome of each case</dd>"
    yield "</dl>"


def _show_operators(report: LibraryReport) -> Iterator[str]:
    yield "<h2>Operators</h2>"
    yield "<p>Cases in which each operator is, by their worst outcome.</p>"
    yield from _make_table(
        ("operator", *(v.name for v in Verdict)), report.count_operators()
    )


def _make_table(
    heads: Sequence[str], rows: Mapping[str, Mapping[Verdict, int]]
) -> Iterator[str]:
    yield '<div class="wide"><table><thead><tr>'
    first, *others = heads
    yield f"<th>{escape(first)}</th>" + "".join(
        f'<th class="number" style="color: var(--{head})">{escape(head)}</th>'
        for head in others
    )
    yield "</tr></thead><tbody>"
    for name, counts in rows.items():
        cells = "".join(_make_cell(counts.get(verdict, 0)) for verdict in Verdict)
        yield f"<tr><td>{escape(name)}</td>{cells}</tr>"
    yield "</tbody></table></div>"


def _make_cell(number: int) -> str:
    return f'<td class="number{" zero" * (not number)}">{number}</td>'


def _show_faults(report: LibraryReport) -> Iterator[str]:
    for verdict in (Verdict.CRASH, Verdict.WRONG, Verdict.REFUSED):
        faults = [result for result in report.faults if judge(result) is verdict]
        if not faults:
            continue
        yield (
            f'<h2 style="color: var(--{verdict.name})">{verdict.name}: '
            f"{len(faults)}</h2>"
        )
        yield from (_show_fault(report, result) for result in faults)


def _show_lost_nodes(report: LibraryReport) -> Iterator[str]:
    if not report.lost_nodes:
        return
    yield f'<h2 style="color: var(--WRONG)">Lost nodes: {len(report.lost_nodes)}</h2>'
    yield "<p>Nodes that onnxruntime gives the EP, and that it does not get here.</p>"
    yield from (
        f"<p>{escape(case)} ({way}): {_join(names)}</p>"
        for case, ways in report.lost_nodes.items()
        for way, names in ways.items()
    )


def _show_fault(report: LibraryReport, result: Result) -> str:
    name = result.notes.get("title", result.case)
    title = f"{name} ({report.find_way(result)})"
    return (
        f"<details><summary>{escape(title)}</summary>"
        f"<p>{escape(report.explain(result))}</p>"
        f"{_show_nodes(result)}<pre>{escape(report.reproduce(result))}</pre></details>"
    )


def _show_nodes(result: Result) -> str:
    nodes = result.notes.get("nodes")
    if not nodes:
        return ""

    facts = [f"The EP took {_join(nodes['taken']) or 'no node'}"]
    if nodes["left"]:
        facts.append(f"other EPs have {_join(nodes['left'])}")
    if nodes["ran"] is not None:
        facts.append(f"kernels of the EP that ran: {nodes['ran']}")
    if nodes["elsewhere"]:
        facts.append(f"in its place ran on other EPs: {_join(nodes['elsewhere'])}")
    return f"<p>{'; '.join(facts)}.</p>"


def _join(names: Iterable[str]) -> str:
    return escape(", ".join(names))


def _show_passed(report: LibraryReport) -> Iterator[str]:
    """List the nodes that the EP took of each case that passed, in the first way in
    which it did.
    """
    first: dict[str, Result] = {}
    for trial in report.trials:
        if judge(trial) is Verdict.PASS:
            first.setdefault(trial.case, trial)
    if not first:
        return
    yield f'<h2 style="color: var(--PASS)">PASS: {len(first)}</h2>'
    yield (
        "<p>Nodes by the EP that ran them, and kernels that onnxruntime's profile has "
        "for it.</p>"
    )
    for trial in first.values():
        title = f"{trial.case} ({report.find_way(trial)})"
        summary = f"<summary>{escape(title)}</summary>"
        yield f"<details>{summary}{_show_nodes(trial)}</details>"
