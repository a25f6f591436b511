"""`make_page`: one page of a folder, with its stages, their cuts, and what flows
between them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from epctx_core.errors import one_line
from epctx_core.ext import import_installed
from epctx_genai.inspection import inspect_folder

if TYPE_CHECKING:
    from epctx_genai.configuration import PathInput
    from epctx_genai.inspection import StageInfo

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; }
table { border-collapse: collapse; margin: 0 0 2rem; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; }
tr { border-bottom: 1px solid #ddd; }
td.number { text-align: right; }
iframe { width: 100%; height: 85vh; border: 1px solid #ddd; }
"""


def make_page(folder: PathInput) -> str:
    """Return the page of a folder as HTML that needs no network and no other file.

    Raises:
        NoSuchFile, InvalidGraph: see `inspect_folder`.
        PackageMissing: epctx-report is not installed, which draws the models.
    """
    report = import_installed("epctx_report", needed_by="the page of a folder")
    info = inspect_folder(folder)
    title = html.escape(one_line(f"{Path(folder).resolve().name}: {info.type}"))
    stages = [
        (
            stage.name,
            stage.file,
            stage.runs_for,
            _name_eps(stage),
            f"{stage.partitions:,}",
            f"{stage.other_nodes:,}",
            f"{stage.bytes:,}",
        )
        for stage in info.stages
    ]
    flows = [(flow.value, flow.type, flow.source, flow.target) for flow in info.flows]
    drawn = html.escape(report.make_report(folder).html(), quote=True)
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
            "<h2>Stages</h2>",
            _make_table(_STAGE_HEADINGS, stages),
            "<h2>What flows between them</h2>" if flows else "",
            _make_table(("value", "type", "from", "to"), flows) if flows else "",
            "<h2>Their models</h2>",
            f'<iframe sandbox="allow-scripts" srcdoc="{drawn}"></iframe>',
        )
    )


_STAGE_HEADINGS = (
    "stage",
    "model",
    "runs for",
    "EPs",
    "partitions",
    "nodes on the CPU",
    "bytes",
)


def _name_eps(stage: StageInfo) -> str:
    names = (f"{ep} (simulated)" if ep in stage.simulated else ep for ep in stage.eps)
    return ", ".join(names) or "CPU"


def _make_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    lines = [f"<tr>{''.join(map(_make_cell, row))}</tr>" for row in rows]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def _make_cell(text: str) -> str:
    number = ' class="number"' if text.replace(",", "").isdigit() else ""
    return f"<td{number}>{html.escape(one_line(text))}</td>"
